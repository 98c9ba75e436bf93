/*
 * The journal's SQLite file: opened, locked, brought up to date; transactions; statements by name.
 *
 * user_version is 6. An older file (0 or 1 to 5) gets the columns and indexes that it lacks, and
 * loses a table that nobody needs; nothing else of the schema ever changed.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/limits.h"
#include "server/journal/internal.h"
#include "server/journal/journal.h"

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS jobs(id TEXT PRIMARY KEY, name TEXT NOT NULL, seq INTEGER NOT "
    "NULL, job_file TEXT NOT NULL, pins TEXT NOT NULL, state TEXT NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS generations(job TEXT, generation INTEGER, begin_ms INTEGER, "
    "end_ms INTEGER, restore_step INTEGER, end_step INTEGER, nodes TEXT, cause TEXT, message "
    "TEXT, PRIMARY KEY(job, generation)) WITHOUT ROWID;"
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
    "CREATE TABLE IF NOT EXISTS metrics(job TEXT, step INTEGER, eval INTEGER, row BLOB, PRIMARY "
    "KEY(job, step)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS keys(seq INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE, "
    "what TEXT, wall_ms INTEGER);"
    "CREATE TABLE IF NOT EXISTS summaries(job TEXT PRIMARY KEY, row BLOB) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS forgotten(job TEXT PRIMARY KEY) WITHOUT ROWID;";

/* What a save or checkpoint holds differences to; metrics of a checkpoint. */
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

/* What a checkpoint took. */
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

/* Which try of a save its folder is named after. */
static const char upgrade_to_4[] =
    "BEGIN;"
    "ALTER TABLE saves ADD COLUMN retry INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE checkpoints ADD COLUMN retry INTEGER NOT NULL DEFAULT 0;"
    "PRAGMA user_version=4;"
    "COMMIT;";

/* Which jobs are over (enum journal_ended). Whether anything is left of those that an older version
 * ended is looked at one by one, later. */
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

#define BEAT_STEPS 1000 /* of SQLite's machine, between two beats of an upgrade */

#define ID_OFFSET 68 /* of application_id in the file's header: 4 bytes, big endian */

static const char *const sql_texts[SQL_COUNT] = {
    [SQL_PUT_JOB] = "INSERT OR REPLACE INTO jobs(id,name,seq,job_file,pins,state) "
                    "VALUES(?,?,?,?,?,?)",
    [SQL_PUT_STATE] = "UPDATE jobs SET state=?2 WHERE id=?1",
    [SQL_PUT_PINS] = "UPDATE jobs SET pins=?2 WHERE id=?1",
    [SQL_PUT_ENDED] = "UPDATE jobs SET ended=?2 WHERE id=?1",
    [SQL_PUT_SUMMARY] = "INSERT OR REPLACE INTO summaries VALUES(?,?)",
    [SQL_FORGET_JOB] = "DELETE FROM jobs WHERE id=?",
    [SQL_FORGET_SUMMARY] = "DELETE FROM summaries WHERE job=?",
    [SQL_FORGET_LATER] = "INSERT OR REPLACE INTO forgotten VALUES(?)",
    [SQL_FORGET_NEXT] = "SELECT job FROM forgotten LIMIT 1",
    [SQL_FORGET_DONE] = "DELETE FROM forgotten WHERE job=?",
    [SQL_FORGET_EVENTS] = "DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE job=? "
                          "LIMIT ?)",
    [SQL_FORGET_METRICS] = "DELETE FROM metrics WHERE job=?1 AND step IN (SELECT step FROM metrics "
                           "WHERE job=?1 LIMIT ?2)",
    [SQL_FORGET_GENERATIONS] = "DELETE FROM generations WHERE job=?1 AND generation IN (SELECT "
                               "generation FROM generations WHERE job=?1 LIMIT ?2)",
    [SQL_FORGET_CKPTS] = "DELETE FROM checkpoints WHERE job=?1 AND (step,generation) IN (SELECT "
                         "step,generation FROM checkpoints WHERE job=?1 LIMIT ?2)",
    [SQL_FORGET_SAVES] = "DELETE FROM saves WHERE job=?1 AND (step,generation) IN (SELECT step,"
                         "generation FROM saves WHERE job=?1 LIMIT ?2)",
    [SQL_FORGET_REPORTS] =
        "DELETE FROM reports WHERE job=?1 AND (step,generation,rank) IN (SELECT step,generation,"
        "rank FROM reports WHERE job=?1 LIMIT ?2)",
    [SQL_FORGET_KEYS] = "DELETE FROM keys WHERE what=?",
    [SQL_THIN_NEXT] = "SELECT id FROM jobs WHERE ended=2 ORDER BY seq DESC LIMIT 1 OFFSET " STRING(
        JOURNAL_WHOLE_JOBS),
    [SQL_THIN_EVENTS] =
        "DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE job=?1 AND seq <= (SELECT "
        "seq FROM events WHERE job=?1 ORDER BY seq DESC LIMIT 1 OFFSET " STRING(
            JOURNAL_THIN_ROWS) ") LIMIT ?2)",
    [SQL_THIN_GENERATIONS] =
        "DELETE FROM generations WHERE job=?1 AND generation IN (SELECT generation FROM "
        "generations WHERE job=?1 AND generation <= (SELECT generation FROM generations WHERE "
        "job=?1 ORDER BY generation DESC LIMIT 1 OFFSET " STRING(JOURNAL_THIN_ROWS) ") LIMIT ?2)",
    [SQL_PUT_EVENT] =
        "INSERT INTO events(job,wall_ms,generation,step,kind,message) VALUES(?,?,?,?,?,?)",
    [SQL_BOUND_EVENTS] =
        "DELETE FROM events WHERE job=?1 AND seq <= (SELECT seq FROM events WHERE "
        "job=?1 ORDER BY seq DESC LIMIT 1 OFFSET " STRING(LIMIT_EVENTS_PER_JOB) ")",
    [SQL_PUT_GENERATION] = "INSERT OR REPLACE INTO generations VALUES(?,?,?,0,?,?,?,'','')",
    [SQL_END_GENERATION] =
        "UPDATE generations SET end_ms=?3, end_step=?4, cause=?5, message=?6 WHERE job=?1 "
        "AND generation=?2",
    [SQL_PUT_SAVE] = "INSERT OR REPLACE INTO saves VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
    [SQL_DROP_SAVE] = "DELETE FROM saves WHERE job=? AND step=? AND generation=?",
    [SQL_DROP_REPORTS] = "DELETE FROM reports WHERE job=? AND step=? AND generation=?",
    [SQL_PUT_REPORT] = "INSERT OR REPLACE INTO reports VALUES(?,?,?,?,?)",
    [SQL_PUT_CKPT] = "INSERT OR REPLACE INTO checkpoints "
                     "VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
    [SQL_DROP_CKPT] = "DELETE FROM checkpoints WHERE job=? AND step=? AND generation=?",
    [SQL_PUT_METRIC] = "INSERT OR REPLACE INTO metrics VALUES(?,?,?,?)",
    [SQL_COUNT_METRICS] = "SELECT count(*), max(step) FROM metrics WHERE job=?",
    [SQL_THIN_METRICS] = "DELETE FROM metrics WHERE job=? AND eval=0 AND step%?<>0 AND step<?",
    [SQL_METRIC_BACK] = "SELECT min(step) FROM (SELECT step FROM metrics WHERE job=? ORDER BY step "
                        "DESC LIMIT ?)",
    [SQL_LAST_EVAL] = "SELECT step,row FROM metrics WHERE job=? AND step<=? AND eval<>0 ORDER BY "
                      "step DESC LIMIT 1",
    [SQL_PUT_KEY] = "INSERT OR REPLACE INTO keys(key,what,wall_ms) VALUES(?,?,?)",
    [SQL_BOUND_KEYS] =
        "DELETE FROM keys WHERE seq <= (SELECT seq FROM keys ORDER BY seq DESC LIMIT "
        "1 OFFSET " STRING(JOURNAL_KEYS_MAX) ")",
    [SQL_EACH_JOB] = "SELECT id,name,seq,job_file,pins,state,ended FROM jobs WHERE ended=0 ORDER "
                     "BY seq",
    [SQL_GET_JOB] = "SELECT id,name,seq,job_file,pins,state,ended FROM jobs WHERE id=?",
    [SQL_FIND_PREFIX] = "SELECT id FROM jobs WHERE id>=? AND id<? ORDER BY id LIMIT 2",
    [SQL_FIND_NAME] = "SELECT id FROM jobs WHERE name=? ORDER BY seq DESC LIMIT 1",
    [SQL_LIST_JOBS] = "SELECT id,row FROM jobs LEFT JOIN summaries ON job=id WHERE id<? ORDER "
                      "BY id DESC LIMIT ?",
    [SQL_COUNT_JOBS] = "SELECT count(*), max(seq) FROM jobs",
    [SQL_OLDEST_ENDED] =
        "SELECT id FROM (SELECT * FROM (SELECT id,seq FROM jobs WHERE ended=1 ORDER BY seq LIMIT 1)"
        " UNION ALL SELECT * FROM (SELECT id,seq FROM jobs WHERE ended=2 ORDER BY seq LIMIT 1)"
        " UNION ALL SELECT * FROM (SELECT id,seq FROM jobs WHERE ended=3 ORDER BY seq LIMIT 1))"
        " ORDER BY seq LIMIT 1",
    [SQL_NEXT_LEFT] = "SELECT id,seq FROM jobs WHERE ended=1 AND seq>? ORDER BY seq LIMIT 1",
    [SQL_EACH_SAVE] =
        "SELECT step,generation,state,wall_ms,manifest,digest,bytes,raw_bytes,shards,"
        "base_step,base_generation,parent_step,parent_generation,retry FROM saves WHERE "
        "job=? ORDER BY step",
    [SQL_EACH_REPORT] =
        "SELECT rank,report FROM reports WHERE job=? AND step=? AND generation=? ORDER BY rank",
    [SQL_EACH_CKPT] =
        "SELECT step,generation,state,verified,wall_ms,digest,bytes,raw_bytes,shards,"
        "parent_step,parent_generation,loss,eval_loss,eval_accuracy,stall_us,"
        "encode_us,write_us,sync_us,save_us,commit_us,retry FROM checkpoints WHERE job=? "
        "ORDER BY step, generation",
    [SQL_EACH_EVENT] = "SELECT * FROM (SELECT seq,wall_ms,generation,step,kind,message FROM events "
                       "WHERE job=? ORDER BY seq DESC LIMIT ?) ORDER BY seq",
    [SQL_EACH_GENERATION] = "SELECT generation,begin_ms,end_ms,restore_step,end_step,nodes,cause,"
                            "message FROM generations WHERE job=? ORDER BY generation",
    [SQL_EACH_METRIC] =
        "SELECT step,row FROM metrics WHERE job=? AND step>=? ORDER BY step LIMIT ?",
    [SQL_GET_KEY] = "SELECT what FROM keys WHERE key=?",
};

enum status journal_status(struct journal *journal, int rc)
{
    if (rc == SQLITE_OK || rc == SQLITE_DONE || rc == SQLITE_ROW)
        return ST_OK;
    (void)snprintf(journal->error, sizeof journal->error, "%s",
                   journal->db ? sqlite3_errmsg(journal->db) : sqlite3_errstr(rc));
    switch (rc & 0xff) {
    case SQLITE_FULL:
        return ST_FULL;
    case SQLITE_NOMEM:
        return ST_NO_MEMORY;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return ST_CORRUPT;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return ST_EXISTS;
    default:
        return ST_IO;
    }
}

/* One coordinator per journal, whatever the sockets say. */
static enum status take_lock(struct journal *journal, const char *path)
{
    char lock[LIMIT_PATH];
    int used = snprintf(lock, sizeof lock, "%s.lock", path);
    if (used < 0 || (size_t)used >= sizeof lock)
        return ST_FULL;
    journal->lock_fd = open(lock, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (journal->lock_fd < 0)
        return status_from_errno(errno);
    if (flock(journal->lock_fd, LOCK_EX | LOCK_NB) == 0)
        return ST_OK;
    return errno == EWOULDBLOCK ? ST_EXISTS : status_from_errno(errno);
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

static enum status open_db(struct journal *journal, const char *path)
{
    int rc = sqlite3_open_v2(
        path, &journal->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    if (rc == SQLITE_OK && journal->watch.beat)
        sqlite3_progress_handler(journal->db, BEAT_STEPS, on_progress, journal);
    static const char *const settings[] = {
        "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=FULL",
        "PRAGMA wal_autocheckpoint=1000",
        "PRAGMA journal_size_limit=16777216",
        schema,
    };
    for (size_t i = 0; rc == SQLITE_OK && i < sizeof settings / sizeof settings[0]; i++)
        rc = sqlite3_exec(journal->db, settings[i], NULL, NULL, NULL);
    int version = 0;
    if (rc == SQLITE_OK)
        rc = read_version(journal->db, &version);
    if (rc == SQLITE_OK && version < 2)
        rc = sqlite3_exec(journal->db, upgrade_to_2, NULL, NULL, NULL);
    if (rc == SQLITE_OK && version < 3)
        rc = sqlite3_exec(journal->db, upgrade_to_3, NULL, NULL, NULL);
    if (rc == SQLITE_OK && version < 4)
        rc = sqlite3_exec(journal->db, upgrade_to_4, NULL, NULL, NULL);
    if (rc == SQLITE_OK && version < 5)
        rc = sqlite3_exec(journal->db, upgrade_to_5, NULL, NULL, NULL);
    if (rc == SQLITE_OK && version < 6)
        rc = sqlite3_exec(journal->db, upgrade_to_6, NULL, NULL, NULL);
    const enum status st = journal_status(journal, rc);
    sqlite3_progress_handler(journal->db, 0, NULL, NULL);
    return st;
}

/* ---- a copy in the journal's place ---- */

/* Before the file is opened: whether it is a copy. A WAL is then another file's, and removed. */
static enum status take_restored(struct journal *journal, const char *path)
{
    unsigned char id[4] = { 0 };
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? ST_OK : status_from_errno(errno);
    const ssize_t got = pread(fd, id, sizeof id, ID_OFFSET);
    const uint32_t found =
        (uint32_t)id[0] << 24 | (uint32_t)id[1] << 16 | (uint32_t)id[2] << 8 | id[3];
    journal->restored = got == (ssize_t)sizeof id && found == strtoul(JOURNAL_BACKUP_ID, NULL, 10);
    if (!journal->restored)
        return ST_OK;
    static const char *const ends[] = { "-wal", "-shm" };
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        char name[LIMIT_PATH + 8];
        const int size = snprintf(name, sizeof name, "%s%s", path, ends[i]);
        if (size < 0 || (size_t)size >= sizeof name)
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
    struct journal *journal = calloc(1, sizeof *journal);
    if (!journal)
        return ST_NO_MEMORY;
    journal->lock_fd = -1;
    journal->watch = *watch;
    enum status st = take_lock(journal, path);
    if (st == ST_OK)
        st = take_restored(journal, path);
    if (st == ST_OK)
        st = open_db(journal, path);
    if (st != ST_OK) {
        journal_close(journal);
        return st;
    }
    *out = journal;
    return ST_OK;
}

void journal_close(struct journal *journal)
{
    if (!journal)
        return;
    for (int i = 0; i < SQL_COUNT; i++)
        (void)sqlite3_finalize(journal->statements[i]);
    (void)sqlite3_close(journal->db);
    if (journal->lock_fd >= 0)
        (void)close(journal->lock_fd);
    free(journal);
}

const char *journal_error(const struct journal *journal)
{
    return journal->error;
}

void journal_freeze(struct journal *journal)
{
    journal->frozen = true;
}

enum status journal_begin(struct journal *journal)
{
    return journal_status(journal, sqlite3_exec(journal->db, "BEGIN IMMEDIATE", NULL, NULL, NULL));
}

enum status journal_commit(struct journal *journal)
{
    const char *sql = journal->frozen ? "ROLLBACK" : "COMMIT";
    return journal_status(journal, sqlite3_exec(journal->db, sql, NULL, NULL, NULL));
}

bool journal_is_restored(const struct journal *journal)
{
    return journal->restored;
}

enum status journal_end_restore(struct journal *journal)
{
    static const char end[] = "PRAGMA application_id=0; COMMIT; PRAGMA wal_checkpoint(TRUNCATE);";
    enum status st = journal_status(journal, sqlite3_exec(journal->db, end, NULL, NULL, NULL));
    if (st == ST_OK)
        journal->restored = false;
    return st;
}

/* ---- statements ---- */

const char *journal_text_at(sqlite3_stmt *row, int column)
{
    const char *value = (const char *)sqlite3_column_text(row, column);
    return value ? value : "";
}

static enum status bind_values(struct journal *journal, enum journal_sql sql, sqlite3_stmt **out,
                               const char *types, va_list args)
{
    sqlite3_stmt *statement = journal->statements[sql];
    int rc = SQLITE_OK;
    if (!statement) {
        rc = sqlite3_prepare_v3(journal->db, sql_texts[sql], -1, SQLITE_PREPARE_PERSISTENT,
                                &statement, NULL);
        if (rc != SQLITE_OK)
            return journal_status(journal, rc);
        journal->statements[sql] = statement;
    }
    (void)sqlite3_reset(statement);
    for (int i = 0; rc == SQLITE_OK && types[i]; i++) {
        if (types[i] == 't') {
            const char *text = va_arg(args, const char *);
            rc = sqlite3_bind_text(statement, i + 1, text ? text : "", -1, SQLITE_STATIC);
        } else if (types[i] == 'i') {
            rc = sqlite3_bind_int64(statement, i + 1, va_arg(args, int64_t));
        } else if (types[i] == 'r') {
            rc = sqlite3_bind_double(statement, i + 1, va_arg(args, double));
        } else {
            const void *data = va_arg(args, const void *);
            size_t size = va_arg(args, size_t);
            rc = sqlite3_bind_blob64(statement, i + 1, data ? data : "", size, SQLITE_STATIC);
        }
    }
    *out = statement;
    return journal_status(journal, rc);
}

enum status journal_bind(struct journal *journal, enum journal_sql sql, sqlite3_stmt **out,
                         const char *types, ...)
{
    va_list args;
    va_start(args, types);
    enum status st = bind_values(journal, sql, out, types, args);
    va_end(args);
    return st;
}

enum status journal_run(struct journal *journal, enum journal_sql sql, const char *types, ...)
{
    sqlite3_stmt *statement = NULL;
    va_list args;
    va_start(args, types);
    enum status st = bind_values(journal, sql, &statement, types, args);
    va_end(args);
    if (st != ST_OK)
        return st;
    int rc = sqlite3_step(statement);
    st = journal_status(journal, rc);
    (void)sqlite3_reset(statement);
    return st;
}

enum status journal_next(struct journal *journal, sqlite3_stmt *statement)
{
    int rc = sqlite3_step(statement);
    if (rc == SQLITE_ROW)
        return ST_OK;
    enum status st = journal_status(journal, rc);
    (void)sqlite3_reset(statement);
    return st == ST_OK ? ST_NOT_FOUND : st;
}
