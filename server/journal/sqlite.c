/* An open journal: transactions, and statements by name. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/limits.h"
#include "server/journal/internal.h"
#include "server/journal/journal.h"

#define BESIDE_MS 10000 /* a reader beside waits while the WAL is emptied */

/* Blocks of metrics with steps from ?2 to ?3: they don't overlap each other. */
#define OVER                                                                                       \
    "first>=coalesce((SELECT max(first) FROM blocks WHERE job=?1 AND first<=?2),?2) AND "          \
    "first<=?3 AND last>=?2"

#define GENERATION                                                                                 \
    "generation,begin_ms,end_ms,restore_step,end_step,nodes,cause,message,recovery,numbers"
/* Jobs that ended have numbers, which rise. */
#define LAST_END(ended)  "coalesce((SELECT max(ended_no) FROM jobs WHERE ended=" #ended "),0)"
#define NEXT_END         "1+max(" LAST_END(1) "," LAST_END(2) "," LAST_END(3) ")"
#define FIRST_END(ended) "(SELECT id,ended_no FROM jobs WHERE ended=" #ended " ORDER BY 2 LIMIT 1)"
#define FIRST_ENDS                                                                                 \
    "SELECT * FROM " FIRST_END(1) " UNION ALL SELECT * FROM " FIRST_END(                           \
        2) " UNION ALL SELECT * FROM " FIRST_END(3)
static const char *const sql_texts[SQL_COUNT] = {
    [SQL_PUT_JOB] = "INSERT OR REPLACE INTO jobs(id,name,seq,job_file,pins,state) "
                    "VALUES(?,?,?,?,?,?)",
    [SQL_PUT_STATE] = "UPDATE jobs SET state=?2 WHERE id=?1",
    [SQL_PUT_PINS] = "UPDATE jobs SET pins=?2 WHERE id=?1",
    [SQL_PUT_ENDED] = "UPDATE jobs SET ended=?2, ended_no=CASE WHEN ?2=0 THEN 0 WHEN ended_no>0 "
                      "THEN ended_no ELSE " NEXT_END " END WHERE id=?1",
    [SQL_PUT_SUMMARY] = "INSERT OR REPLACE INTO summaries VALUES(?,?)",
    [SQL_FORGET_JOB] = "DELETE FROM jobs WHERE id=?",
    [SQL_FORGET_SUMMARY] = "DELETE FROM summaries WHERE job=?",
    [SQL_FORGET_LATER] = "INSERT OR REPLACE INTO forgotten VALUES(?)",
    [SQL_FORGET_NEXT] = "SELECT job FROM forgotten LIMIT 1",
    [SQL_FORGET_DONE] = "DELETE FROM forgotten WHERE job=?",
    [SQL_FORGET_EVENTS] = "DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE job=? "
                          "LIMIT ?)",
    [SQL_FORGET_METRICS] =
        "DELETE FROM blocks WHERE job=?1 AND first IN (SELECT first FROM (SELECT first, count, "
        "sum(count) OVER (ORDER BY first) AS sum FROM (SELECT first,count FROM blocks WHERE job=?1 "
        "ORDER BY first LIMIT ?2)) WHERE sum<=?2 OR sum=count)",
    [SQL_FORGET_COUNTS] = "DELETE FROM metric_counts WHERE job=?1 AND ?2>0",
    [SQL_FORGET_GENERATIONS] = "DELETE FROM generations WHERE job=?1 AND generation IN (SELECT "
                               "generation FROM generations WHERE job=?1 LIMIT ?2)",
    [SQL_FORGET_CKPTS] = "DELETE FROM checkpoints WHERE job=?1 AND (step,generation) IN (SELECT "
                         "step,generation FROM checkpoints WHERE job=?1 LIMIT ?2)",
    [SQL_FORGET_SAVES] = "DELETE FROM saves WHERE job=?1 AND (step,generation) IN (SELECT step,"
                         "generation FROM saves WHERE job=?1 LIMIT ?2)",
    [SQL_FORGET_REPORTS] =
        "DELETE FROM reports WHERE job=?1 AND (step,generation,rank) IN (SELECT step,generation,"
        "rank FROM reports WHERE job=?1 LIMIT ?2)",
    [SQL_FORGET_RANKS] = "DELETE FROM ranks WHERE job=?1 AND rank IN (SELECT rank FROM ranks WHERE "
                         "job=?1 LIMIT ?2)",
    [SQL_FORGET_KEYS] = "DELETE FROM keys WHERE what=?",
    [SQL_THIN_NEXT] =
        "SELECT id FROM jobs WHERE ended=2 ORDER BY ended_no DESC LIMIT 1 OFFSET " STRING(
            JOURNAL_WHOLE_JOBS),
    [SQL_THIN_BYTES] = "SELECT id FROM jobs JOIN metric_counts ON job=id WHERE ended IN (2,3) AND "
                       "bytes>? ORDER BY ended_no LIMIT 1",
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
    [SQL_PUT_GENERATION] =
        "INSERT OR REPLACE INTO generations(job,generation,begin_ms,end_ms,restore_step,end_step,"
        "nodes,cause,message,recovery,numbers) VALUES(?,?,?,0,?,?,?,'','',?,?)",
    [SQL_BOUND_GENERATIONS] =
        "DELETE FROM generations WHERE job=?1 AND generation IN (SELECT generation FROM "
        "generations WHERE job=?1 AND generation <= (SELECT generation FROM generations WHERE "
        "job=?1 ORDER BY generation DESC LIMIT 1 OFFSET " STRING(LIMIT_GENERATIONS) ") LIMIT ?2)",
    [SQL_END_GENERATION] =
        "UPDATE generations SET end_ms=?3, end_step=?4, cause=?5, message=?6 WHERE job=?1 "
        "AND generation=?2",
    [SQL_BOUND_GENERATION_BYTES] =
        "DELETE FROM generations WHERE job=?1 AND generation<=coalesce((SELECT max(generation) "
        "FROM (SELECT generation, row_number() OVER newest AS age, sum(length(nodes)+"
        "length(numbers)+length(message)+length(recovery)) OVER newest AS bytes FROM generations "
        "WHERE job=?1 WINDOW newest AS (ORDER BY generation DESC)) WHERE age>" STRING(
            JOURNAL_GENERATIONS_MIN) " AND bytes>" STRING(JOURNAL_GENERATIONS_BYTES) "),-1)",
    [SQL_PUT_RECOVERY] =
        "UPDATE generations SET restore_step=?3, recovery=?4 WHERE job=?1 AND generation=?2",
    [SQL_PUT_RANK] = "INSERT OR REPLACE INTO ranks VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?)",
    [SQL_PUT_SAVE] = "INSERT OR REPLACE INTO saves VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
    [SQL_DROP_SAVE] = "DELETE FROM saves WHERE job=? AND step=? AND generation=?",
    [SQL_DROP_REPORTS] = "DELETE FROM reports WHERE job=? AND step=? AND generation=?",
    [SQL_PUT_REPORT] = "INSERT OR REPLACE INTO reports VALUES(?,?,?,?,?)",
    [SQL_PUT_CKPT] = "INSERT OR REPLACE INTO checkpoints "
                     "VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
    [SQL_DROP_CKPT] = "DELETE FROM checkpoints WHERE job=? AND step=? AND generation=?",
    [SQL_PUT_METRICS] = "INSERT INTO blocks(job,first,last,count,evals,rows) VALUES(?,?,?,?,?,?)",
    [SQL_OVER_METRICS] = "SELECT rows FROM blocks WHERE job=?1 AND " OVER " ORDER BY first",
    [SQL_DROP_METRICS] = "DELETE FROM blocks WHERE job=?1 AND " OVER,
    [SQL_COUNT_METRICS] = "INSERT INTO metric_counts(job,rows,bytes) VALUES(?1,?2,?3) ON "
                          "CONFLICT(job) DO UPDATE SET rows=rows+?2, bytes=bytes+?3 RETURNING "
                          "rows, bytes",
    [SQL_NEWEST_METRIC] = "SELECT last FROM blocks WHERE job=? ORDER BY first DESC LIMIT 1",
    [SQL_METRIC_BACK] = "SELECT count,rows FROM blocks WHERE job=? ORDER BY first DESC",
    [SQL_LAST_EVAL] = "SELECT rows FROM blocks WHERE job=?1 AND first<=?2 AND evals>0 ORDER "
                      "BY first DESC LIMIT 2",
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
    [SQL_OLDEST_ENDED] = "SELECT id FROM (" FIRST_ENDS ") ORDER BY ended_no LIMIT 1",
    [SQL_NEXT_LEFT] = "SELECT id,seq FROM jobs WHERE ended=1 AND seq>? ORDER BY seq LIMIT 1",
    [SQL_EACH_RANK] = "SELECT rank,node,slot,holder,gone,birth,parked,source,number,lanes,lane_us,"
                      "stage FROM ranks WHERE "
                      "job=? ORDER BY rank",
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
    [SQL_EACH_EVENT] =
        "SELECT seq,wall_ms,generation,step,kind,message FROM events WHERE job=?1 AND seq >= "
        "(SELECT min(seq) FROM (SELECT seq FROM events WHERE job=?1 ORDER BY seq DESC LIMIT ?2)) "
        "ORDER BY seq",
    [SQL_EACH_GENERATION] =
        "SELECT * FROM (SELECT " GENERATION " FROM generations WHERE job=? ORDER BY generation "
        "DESC LIMIT ?) ORDER BY generation",
    [SQL_GET_GENERATION] = "SELECT " GENERATION " FROM generations WHERE job=? AND generation=?",
    [SQL_EACH_RECOVERY] =
        "SELECT * FROM (SELECT generation,recovery FROM generations WHERE job=? AND recovery<>'' "
        "ORDER BY generation DESC LIMIT ?) ORDER BY generation",
    [SQL_EACH_METRICS] =
        "SELECT rows FROM blocks WHERE job=?1 AND first>=coalesce((SELECT max(first) FROM "
        "blocks WHERE job=?1 AND first<=?2),0) ORDER BY first",
    [SQL_GET_KEY] = "SELECT what FROM keys WHERE key=?",
    [SQL_PUT_DRAIN] = "INSERT OR REPLACE INTO drains(node,reason) VALUES(?,?)",
    [SQL_PUT_DRAIN_DEADLINE] = "INSERT OR REPLACE INTO drain_deadlines(node,wall_ms) VALUES(?,?)",
    [SQL_DROP_DRAIN] = "DELETE FROM drains WHERE node=?",
    [SQL_EACH_DRAIN] = "SELECT d.node,d.reason,coalesce(t.wall_ms,0) FROM drains d LEFT JOIN "
                       "drain_deadlines t ON t.node=d.node",
    [SQL_FORGET_NODE] = "INSERT OR REPLACE INTO forgotten_nodes(node,time_s) VALUES(?,?)",
    [SQL_DROP_WITHDRAWN] = "DELETE FROM forgotten_nodes WHERE time_s<?",
    [SQL_EACH_FORGOTTEN_NODE] = "SELECT node,time_s FROM forgotten_nodes",
    [SQL_PAGES] = "PRAGMA page_count",
    [SQL_UNUSED_PAGES] = "PRAGMA freelist_count",
    [SQL_PAGE_SIZE] = "PRAGMA page_size",
};

enum status journal_status(struct journal *journal, int rc)
{
    if (rc == SQLITE_OK || rc == SQLITE_DONE || rc == SQLITE_ROW)
        return ST_OK;
    (void)snprintf(journal->error, sizeof(journal->error), "%s",
                   journal->db != NULL ? sqlite3_errmsg(journal->db) : sqlite3_errstr(rc));
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

enum status journal_open_beside(const char *path, struct journal **out)
{
    struct journal *journal = calloc(1, sizeof(*journal));
    if (journal == NULL)
        return ST_NO_MEMORY;
    journal->lock_fd = journal->file_fd = -1;                      /* the writer has the lock */
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX; /* of a WAL readers keep notes */
    int rc = sqlite3_open_v2(path, &journal->db, flags, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_busy_timeout(journal->db, BESIDE_MS);
    const enum status st = journal_status(journal, rc);
    if (st == ST_OK) {
        *out = journal;
        return ST_OK;
    }
    journal_close(journal);
    return st == ST_EXISTS ? ST_IO : st;
}

void journal_close(struct journal *journal)
{
    if (journal == NULL)
        return;
    for (int i = 0; i < SQL_COUNT; i++)
        (void)sqlite3_finalize(journal->statements[i]);
    (void)sqlite3_close(journal->db);
    if (journal->file_fd >= 0)
        (void)close(journal->file_fd);
    if (journal->lock_fd >= 0)
        (void)close(journal->lock_fd);
    free(journal->path);
    free(journal);
}

const char *journal_path(const struct journal *journal)
{
    return journal->path;
}

bool journal_is_exposed(const struct journal *journal)
{
    return journal->exposed;
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

enum status journal_shrink(struct journal *journal)
{
    static const char sql[] = "PRAGMA incremental_vacuum(" JOURNAL_SHRINK_PAGES ")";
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
    return value != NULL ? value : "";
}

static enum status bind_values(struct journal *journal, enum journal_sql sql, sqlite3_stmt **out,
                               const char *types, va_list args)
{
    sqlite3_stmt *statement = journal->statements[sql];
    int rc = SQLITE_OK;
    if (statement == NULL) {
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
            rc = sqlite3_bind_text(statement, i + 1, text != NULL ? text : "", -1, SQLITE_STATIC);
        } else if (types[i] == 'i') {
            rc = sqlite3_bind_int64(statement, i + 1, va_arg(args, int64_t));
        } else if (types[i] == 'r') {
            rc = sqlite3_bind_double(statement, i + 1, va_arg(args, double));
        } else {
            const void *data = va_arg(args, const void *);
            size_t size = va_arg(args, size_t);
            rc = sqlite3_bind_blob64(statement, i + 1, data != NULL ? data : "", size,
                                     SQLITE_STATIC);
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
