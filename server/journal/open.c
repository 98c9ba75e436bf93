/*
 * The journal's SQLite file: locked, opened, brought up to date.
 *
 * user_version is 15 (JOURNAL_VERSION). A newer one is left alone. An older file (0 or 1 to 14)
 * gets the columns, tables and indexes that it lacks, loses a table that nobody needs, and has its
 * metrics in blocks. Ranks were in the jobs' states until 7; a job's go into their table when its
 * state is written next (server/jobfsm/persist.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/limits.h"
#include "server/journal/internal.h"

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS jobs(id TEXT PRIMARY KEY, name TEXT NOT NULL, seq INTEGER NOT "
    "NULL, job_file TEXT NOT NULL, pins TEXT NOT NULL, state TEXT NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS generations(job TEXT, generation INTEGER, begin_ms INTEGER, "
    "end_ms INTEGER, restore_step INTEGER, end_step INTEGER, nodes TEXT, cause TEXT, message "
    "TEXT, PRIMARY KEY(job, generation)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS ranks(job TEXT, rank INTEGER, node TEXT, slot INTEGER, holder "
    "INTEGER, gone INTEGER, PRIMARY KEY(job, rank)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS saves(job TEXT, step INTEGER, generation INTEGER, state INTEGER, "
    "wall_ms INTEGER, manifest BLOB, digest TEXT, bytes INTEGER, raw_bytes INTEGER, shards "
    "INTEGER, PRIMARY KEY(job, step, generation)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS reports(job TEXT, step INTEGER, generation INTEGER, rank "
    "INTEGER, report BLOB, PRIMARY KEY(job, step, generation, rank)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS checkpoints(job TEXT, step INTEGER, generation INTEGER, state "
    "INTEGER, verified INTEGER, wall_ms INTEGER, digest TEXT, bytes INTEGER, raw_bytes INTEGER, "
    "shards INTEGER, PRIMARY KEY(job, step, generation)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS events(seq INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT, wall_ms "
    "INTEGER, generation INTEGER, step INTEGER, kind TEXT, message TEXT);"
    "CREATE INDEX IF NOT EXISTS events_of ON events(job, seq);"
    /* Blocks of metrics. They have a rowid: else a search for one reads those that it is compared
     * with. */
    "CREATE TABLE IF NOT EXISTS blocks(number INTEGER PRIMARY KEY, job TEXT, first INTEGER, last "
    "INTEGER, count INTEGER, evals INTEGER, rows BLOB);"
    "CREATE UNIQUE INDEX IF NOT EXISTS blocks_of ON blocks(job, first);"
    "CREATE INDEX IF NOT EXISTS blocks_evals ON blocks(job, first) WHERE evals>0;"
    "CREATE TABLE IF NOT EXISTS metric_counts(job TEXT PRIMARY KEY, rows INTEGER) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS keys(seq INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE, "
    "what TEXT, wall_ms INTEGER);"
    "CREATE TABLE IF NOT EXISTS summaries(job TEXT PRIMARY KEY, row BLOB) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS forgotten(job TEXT PRIMARY KEY) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS drains(node TEXT PRIMARY KEY, reason TEXT) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS drain_deadlines(node TEXT PRIMARY KEY, wall_ms INTEGER) WITHOUT "
    "ROWID;"
    /* A version that knows drains only keeps to this, too: a deadline is of one drain. */
    "DELETE FROM drain_deadlines WHERE node NOT IN (SELECT node FROM drains);"
    "CREATE TRIGGER IF NOT EXISTS drain_ends AFTER DELETE ON drains BEGIN DELETE FROM "
    "drain_deadlines WHERE node=old.node; END;"
    "CREATE TRIGGER IF NOT EXISTS drain_begins AFTER INSERT ON drains BEGIN DELETE FROM "
    "drain_deadlines WHERE node=new.node; END;"
    "CREATE TABLE IF NOT EXISTS forgotten_nodes(node TEXT PRIMARY KEY, time_s INTEGER) WITHOUT "
    "ROWID;";

/* Adds what a save or checkpoint holds differences to, and the metrics of a checkpoint. */
static const char upgrade_to_2[] =
    "BEGIN;"
    "ALTER TABLE saves ADD COLUMN base_step INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE saves ADD COLUMN base_generation INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE saves ADD COLUMN parent_step INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE saves ADD COLUMN parent_generation INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE checkpoints ADD COLUMN parent_step INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE checkpoints ADD COLUMN parent_generation INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE checkpoints ADD COLUMN loss REAL;"
    "ALTER TABLE checkpoints ADD COLUMN eval_loss REAL;"
    "ALTER TABLE checkpoints ADD COLUMN eval_accuracy REAL;"
    "PRAGMA user_version=2;"
    "COMMIT;";

/* Adds the times that a checkpoint took. */
static const char upgrade_to_3[] =
    "BEGIN;"
    "ALTER TABLE checkpoints ADD COLUMN stall_us INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE checkpoints ADD COLUMN encode_us INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE checkpoints ADD COLUMN write_us INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE checkpoints ADD COLUMN sync_us INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE checkpoints ADD COLUMN save_us INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE checkpoints ADD COLUMN commit_us INTEGER NOT NULL DEFAULT 0;"
    "PRAGMA user_version=3;"
    "COMMIT;";

/* Adds the try of a save that its folder is named after. */
static const char upgrade_to_4[] =
    "BEGIN;"
    "ALTER TABLE saves ADD COLUMN retry INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE checkpoints ADD COLUMN retry INTEGER NOT NULL DEFAULT 0;"
    "PRAGMA user_version=4;"
    "COMMIT;";

/* Adds which jobs are over (enum journal_ended). Whether anything is left of those that an older
 * version ended is looked at one by one, later. */
static const char upgrade_to_5[] =
    "BEGIN;"
    "ALTER TABLE jobs ADD COLUMN ended INTEGER NOT NULL DEFAULT 0;"
    "UPDATE jobs SET ended=1 WHERE CASE WHEN json_valid(state) THEN json_extract(state,'$.state') "
    "ELSE 0 END BETWEEN 8 AND 11;"
    "CREATE INDEX jobs_ended ON jobs(ended, seq);"
    "CREATE INDEX jobs_named ON jobs(name, seq);"
    "PRAGMA user_version=5;"
    "COMMIT;";

/* The rendezvous was journalled. */
static const char upgrade_to_6[] = "BEGIN;"
                                   "DROP TABLE IF EXISTS kv;"
                                   "PRAGMA user_version=6;"
                                   "COMMIT;";

/* Metrics in blocks: journal_convert_metrics comes between the two. */
static const char upgrade_to_7[] =
    "BEGIN;"
    "CREATE TABLE IF NOT EXISTS metrics(job TEXT, step INTEGER, eval INTEGER, row BLOB, PRIMARY "
    "KEY(job, step)) WITHOUT ROWID;";
static const char upgraded_to_7[] = "DROP TABLE metrics;"
                                    "PRAGMA user_version=7;"
                                    "COMMIT;";

/* The ranks' table, which the schema makes. */
static const char upgrade_to_8[] = "PRAGMA user_version=8;";

/* Workers outlive generations. */
static const char upgrade_to_9[] = "BEGIN;"
                                   "ALTER TABLE ranks ADD COLUMN birth INTEGER NOT NULL DEFAULT 0;"
                                   "ALTER TABLE ranks ADD COLUMN parked INTEGER NOT NULL DEFAULT 0;"
                                   "ALTER TABLE ranks ADD COLUMN source INTEGER NOT NULL DEFAULT 0;"
                                   "PRAGMA user_version=9;"
                                   "COMMIT;";

/* Adds how a generation's job came to it from the one before. */
static const char upgrade_to_10[] =
    "BEGIN;"
    "ALTER TABLE generations ADD COLUMN recovery TEXT NOT NULL DEFAULT '';"
    "PRAGMA user_version=10;"
    "COMMIT;";

/* Workers have numbers, which had been their ranks. Every job's file said `min: 1`, which meant
 * nothing: now that would let the job go on with one worker. */
static const char upgrade_to_11[] =
    "BEGIN;"
    "UPDATE jobs SET job_file=replace(job_file, char(10)||'  min: 1'||char(10), char(10));"
    "ALTER TABLE ranks ADD COLUMN number INTEGER NOT NULL DEFAULT 0;"
    "UPDATE ranks SET number=rank;"
    "ALTER TABLE generations ADD COLUMN numbers TEXT NOT NULL DEFAULT '';"
    "PRAGMA user_version=11;"
    "COMMIT;";

/* Lanes that ranks have by their speed. */
static const char upgrade_to_12[] =
    "BEGIN;"
    "ALTER TABLE ranks ADD COLUMN lanes INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE ranks ADD COLUMN lane_us INTEGER NOT NULL DEFAULT 0;"
    "PRAGMA user_version=12;"
    "COMMIT;";

/* Stages of a pipeline. */
static const char upgrade_to_13[] = "BEGIN;"
                                    "ALTER TABLE ranks ADD COLUMN stage INTEGER NOT NULL DEFAULT 0;"
                                    "PRAGMA user_version=13;"
                                    "COMMIT;";

/* Metrics' blocks got another table: move_blocks. */
static const char upgrade_to_14[] = "PRAGMA user_version=14;";

/* Adds which job ended last, as far as its events tell, and how many bytes metrics take. It runs
 * after move_blocks, so that it counts those, too. */
static const char upgrade_to_15[] =
    "BEGIN;"
    "ALTER TABLE jobs ADD COLUMN ended_no INTEGER NOT NULL DEFAULT 0;"
    "UPDATE jobs SET ended_no=n.number FROM (SELECT id, row_number() OVER (ORDER BY coalesce(("
    "SELECT wall_ms FROM events WHERE job=id ORDER BY events.seq DESC LIMIT 1),0), seq) AS number "
    "FROM jobs WHERE ended>0) AS n WHERE n.id=jobs.id;"
    "CREATE INDEX jobs_ends ON jobs(ended, ended_no);"
    "ALTER TABLE metric_counts ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;"
    "DELETE FROM metric_counts;"
    "INSERT INTO metric_counts(job,rows,bytes) SELECT job,sum(count),sum(length(rows)) FROM blocks "
    "GROUP BY job;"
    "PRAGMA user_version=15;"
    "COMMIT;";

/* The first blocks of the older table. */
#define FIRST_BLOCKS "FROM metric_blocks ORDER BY job, first LIMIT 500"
static const char move_some[] =
    "BEGIN;"
    "INSERT INTO blocks(job,first,last,count,evals,rows) SELECT "
    "job,first,last,count,evals,rows " FIRST_BLOCKS ";"
    "DELETE FROM metric_blocks WHERE (job, first) IN (SELECT job, first " FIRST_BLOCKS ");"
    "COMMIT;";

#define VACUUM_MAX (INT64_C(256) * 1024 * 1024)
#define BEAT_STEPS 1000 /* of SQLite's machine, between two beats of an upgrade */
#define BUSY_MS    2000 /* a reader beside may have a lock for an instant */

/* Allows one coordinator per journal, whatever the sockets say. */
enum status journal_lock(const char *path, int *out_fd)
{
    char lock[LIMIT_PATH];
    int used = snprintf(lock, sizeof(lock), "%s.lock", path);
    if (used < 0 || (size_t)used >= sizeof(lock))
        return ST_FULL;
    int fd = open(lock, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return status_from_errno(errno);
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        *out_fd = fd;
        return ST_OK;
    }
    const enum status st = errno == EWOULDBLOCK ? ST_EXISTS : status_from_errno(errno);
    (void)close(fd);
    return st;
}

/* True if only its owner may read the file, as its mode says now. */
static bool is_private(int fd)
{
    struct stat stat_of;
    return fstat(fd, &stat_of) == 0 && (stat_of.st_mode & 077) == 0;
}

/* Lets only its owner read the file: it holds the tokens of generations. A link to another disk is
 * followed; what is beside the file there is ours. */
static enum status make_private(struct journal *journal, const char *path)
{
    static const char *const ends[] = { "", "-wal", "-shm" };
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        char name[LIMIT_PATH + 8];
        const int flags = O_RDWR | O_CLOEXEC | (i == 0 ? O_CREAT : O_NOFOLLOW);
        const int size = snprintf(name, sizeof(name), "%s%s", path, ends[i]);
        if (size < 0 || (size_t)size >= sizeof(name))
            return ST_FULL;
        auto_close int fd = open(name, flags, 0600);
        if (fd < 0 && errno == ENOENT)
            continue; /* SQLite makes it like the first */
        if (fd < 0)
            return status_from_errno(errno);
        if (is_private(fd) || fchmod(fd, 0600) == 0)
            continue;
        if (errno != EPERM) /* else another user owns it, and lets us write it */
            return status_from_errno(errno);
        journal->exposed = true;
    }
    return ST_OK;
}

static int read_version(sqlite3 *db, int *out)
{
    sqlite3_stmt *statement = NULL;
    int rc = sqlite3_prepare_v2(db, "PRAGMA user_version", -1, &statement, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(statement);
    if (rc == SQLITE_ROW)
        *out = sqlite3_column_int(statement, 0);
    (void)sqlite3_finalize(statement);
    return rc == SQLITE_ROW ? SQLITE_OK : rc;
}

static int on_progress(void *arg)
{
    const struct journal *journal = arg;
    journal->watch.beat(journal->watch.arg);
    return 0;
}

static enum status run_sql(struct journal *journal, const char *sql)
{
    return journal_status(journal, sqlite3_exec(journal->db, sql, NULL, NULL, NULL));
}

static enum status upgrade_metrics(struct journal *journal)
{
    enum status st = run_sql(journal, upgrade_to_7);
    if (st == ST_OK)
        st = journal_convert_metrics(journal);
    return st == ST_OK ? run_sql(journal, upgraded_to_7) : st;
}

/* Upgrades from that version to the one before JOURNAL_VERSION, one by one. */
static enum status upgrade(struct journal *journal, int version)
{
    static const char *const upgrades[JOURNAL_VERSION] = {
        [2] = upgrade_to_2,   [3] = upgrade_to_3,   [4] = upgrade_to_4,   [5] = upgrade_to_5,
        [6] = upgrade_to_6,   [8] = upgrade_to_8,   [9] = upgrade_to_9,   [10] = upgrade_to_10,
        [11] = upgrade_to_11, [12] = upgrade_to_12, [13] = upgrade_to_13, [14] = upgrade_to_14,
    };
    enum status st = ST_OK;
    for (int to = version < 2 ? 2 : version + 1; st == ST_OK && to < JOURNAL_VERSION; to++)
        st = to == 7 ? upgrade_metrics(journal) : run_sql(journal, upgrades[to]);
    return st;
}

/* Moves some blocks at a time, so that the WAL stays small and the file has room for them. A
 * process that ends in the middle goes on when it opens the file again. */
static enum status move_blocks(struct journal *journal)
{
    enum status st = ST_OK;
    while (st == ST_OK &&
           sqlite3_table_column_metadata(journal->db, NULL, "metric_blocks", NULL, NULL, NULL, NULL,
                                         NULL, NULL) == SQLITE_OK) {
        st = run_sql(journal, move_some);
        if (st == ST_OK && sqlite3_changes(journal->db) == 0)
            st = run_sql(journal, "DROP TABLE metric_blocks");
    }
    return st;
}

static int64_t ask(struct journal *journal, const char *sql)
{
    sqlite3_stmt *statement = NULL;
    int64_t answer = 0;
    if (sqlite3_prepare_v2(journal->db, sql, -1, &statement, NULL) == SQLITE_OK &&
        sqlite3_step(statement) == SQLITE_ROW)
        answer = sqlite3_column_int64(statement, 0);
    (void)sqlite3_finalize(statement);
    return answer;
}

/* Writes a file anew if its version couldn't give back what is free in it. It does not if the file
 * is large, the disk has no room, or it is a copy that isn't taken yet: then free pages are used
 * again only. */
static enum status learn_to_shrink(struct journal *journal)
{
    static const char sql[] = "PRAGMA auto_vacuum=INCREMENTAL; VACUUM;";
    enum status st = ST_OK;
    if (!journal->restored && ask(journal, "PRAGMA auto_vacuum") == 0 &&
        ask(journal, "PRAGMA page_count") * ask(journal, "PRAGMA page_size") <= VACUUM_MAX)
        st = run_sql(journal, sql);
    journal->shrinks = ask(journal, "PRAGMA auto_vacuum") == 2;
    return st == ST_FULL ? ST_OK : st;
}

static enum status open_db(struct journal *journal, const char *path)
{
    int rc = sqlite3_open_v2(
        path, &journal->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_busy_timeout(journal->db, BUSY_MS);
    if (rc == SQLITE_OK && journal->watch.beat != NULL)
        sqlite3_progress_handler(journal->db, BEAT_STEPS, on_progress, journal);
    int version = 0;
    if (rc == SQLITE_OK)
        rc = read_version(journal->db, &version);
    if (rc == SQLITE_OK && version > JOURNAL_VERSION)
        return ST_VERSION;
    static const char *const settings[] = {
        "PRAGMA auto_vacuum=INCREMENTAL", /* of a file that is new */
        "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=FULL",
        "PRAGMA wal_autocheckpoint=1000",
        "PRAGMA journal_size_limit=16777216",
        schema,
    };
    for (size_t i = 0; rc == SQLITE_OK && i < sizeof(settings) / sizeof(settings[0]); i++)
        rc = sqlite3_exec(journal->db, settings[i], NULL, NULL, NULL);
    enum status st = journal_status(journal, rc);
    if (st == ST_OK)
        st = upgrade(journal, version);
    if (st == ST_OK)
        st = move_blocks(journal);
    if (st == ST_OK && version < JOURNAL_VERSION)
        st = run_sql(journal, upgrade_to_15);
    if (st == ST_OK)
        st = learn_to_shrink(journal);
    sqlite3_progress_handler(journal->db, 0, NULL, NULL);
    return st;
}

/* ---- a copy in the journal's place ---- */

/* Finds out, before the file is opened, whether it is a copy. A WAL is then another file's, and
 * removed. */
static enum status take_restored(struct journal *journal, const char *path)
{
    unsigned char id[4] = { 0 };
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? ST_OK : status_from_errno(errno);
    const ssize_t got = pread(fd, id, sizeof(id), JOURNAL_ID_OFFSET);
    const uint32_t found =
        (uint32_t)id[0] << 24 | (uint32_t)id[1] << 16 | (uint32_t)id[2] << 8 | id[3];
    journal->restored = got == (ssize_t)sizeof(id) && found == strtoul(JOURNAL_BACKUP_ID, NULL, 10);
    if (!journal->restored)
        return ST_OK;
    static const char *const ends[] = { "-wal", "-shm" };
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        char name[LIMIT_PATH + 8];
        const int size = snprintf(name, sizeof(name), "%s%s", path, ends[i]);
        if (size < 0 || (size_t)size >= sizeof(name))
            return ST_FULL;
        if (unlink(name) != 0 && errno != ENOENT)
            return status_from_errno(errno);
    }
    return ST_OK;
}

enum status journal_open(const char *path, struct journal **out)
{
    return journal_open_watched(path, &(struct journal_watch){ NULL, NULL }, out);
}

enum status journal_open_watched(const char *path, const struct journal_watch *watch,
                                 struct journal **out)
{
    struct journal *journal = calloc(1, sizeof(*journal));
    if (journal == NULL)
        return ST_NO_MEMORY;
    journal->lock_fd = journal->file_fd = -1;
    journal->bytes_max = JOURNAL_BYTES_MAX;
    journal->watch = *watch;
    journal->path = strdup(path);
    enum status st = journal->path != NULL ? journal_lock(path, &journal->lock_fd) : ST_NO_MEMORY;
    auto_free char *real = realpath(path, NULL); /* SQLite's files are beside that */
    const char *at = real != NULL ? real : path;
    if (st == ST_OK)
        st = take_restored(journal, at);
    if (st == ST_OK)
        st = make_private(journal, at);
    if (st == ST_OK)
        journal->file_fd = open(at, O_RDWR | O_CLOEXEC);
    if (st == ST_OK)
        st = open_db(journal, path);
    if (st != ST_OK) {
        journal_close(journal);
        return st;
    }
    *out = journal;
    return ST_OK;
}
