/*
 * The interface of sqlite.c (statements) for the tables' files: an open journal, and the statements
 * by name. open.c, which stands above all of them, makes it.
 */
#pragma once

#include <sqlite3.h>

#include "server/journal/journal.h"

#define STRING_OF(x) #x
#define STRING(x)    STRING_OF(x) /* of a number, for a statement's text */

/* application_id of a copy: "CaBK". */
#define JOURNAL_BACKUP_ID "1130447435"
/* The place of that in the file's header: 4 bytes, big endian. */
#define JOURNAL_ID_OFFSET 68
/* user_version, which every upgrade of open.c raises. */
#define JOURNAL_VERSION 15

enum journal_sql {
    SQL_PUT_JOB,
    SQL_PUT_STATE,
    SQL_PUT_PINS,
    SQL_PUT_ENDED,
    SQL_PUT_SUMMARY,
    SQL_FORGET_JOB,
    SQL_FORGET_SUMMARY,
    SQL_FORGET_LATER,
    SQL_FORGET_NEXT,
    SQL_FORGET_DONE,
    SQL_FORGET_EVENTS,
    SQL_FORGET_METRICS,
    SQL_FORGET_COUNTS,
    SQL_FORGET_GENERATIONS,
    SQL_FORGET_CKPTS,
    SQL_FORGET_SAVES,
    SQL_FORGET_REPORTS,
    SQL_FORGET_RANKS,
    SQL_FORGET_KEYS,
    SQL_THIN_NEXT,
    SQL_THIN_BYTES,
    SQL_THIN_EVENTS,
    SQL_THIN_GENERATIONS,
    SQL_PUT_EVENT,
    SQL_BOUND_EVENTS,
    SQL_PUT_GENERATION,
    SQL_BOUND_GENERATIONS,
    SQL_BOUND_GENERATION_BYTES,
    SQL_END_GENERATION,
    SQL_PUT_RECOVERY,
    SQL_PUT_RANK,
    SQL_PUT_SAVE,
    SQL_DROP_SAVE,
    SQL_DROP_REPORTS,
    SQL_PUT_REPORT,
    SQL_PUT_CKPT,
    SQL_DROP_CKPT,
    SQL_PUT_METRICS,
    SQL_OVER_METRICS,
    SQL_DROP_METRICS,
    SQL_COUNT_METRICS,
    SQL_NEWEST_METRIC,
    SQL_METRIC_BACK,
    SQL_LAST_EVAL,
    SQL_PUT_KEY,
    SQL_BOUND_KEYS,
    SQL_PUT_DRAIN,
    SQL_PUT_DRAIN_DEADLINE,
    SQL_DROP_DRAIN,
    SQL_EACH_JOB,
    SQL_GET_JOB,
    SQL_FIND_PREFIX,
    SQL_FIND_NAME,
    SQL_LIST_JOBS,
    SQL_COUNT_JOBS,
    SQL_OLDEST_ENDED,
    SQL_NEXT_LEFT,
    SQL_EACH_RANK,
    SQL_EACH_SAVE,
    SQL_EACH_REPORT,
    SQL_EACH_CKPT,
    SQL_EACH_EVENT,
    SQL_EACH_GENERATION,
    SQL_GET_GENERATION,
    SQL_EACH_RECOVERY,
    SQL_EACH_METRICS,
    SQL_GET_KEY,
    SQL_EACH_DRAIN,
    SQL_FORGET_NODE,
    SQL_DROP_WITHDRAWN,
    SQL_EACH_FORGOTTEN_NODE,
    SQL_PAGES,
    SQL_UNUSED_PAGES,
    SQL_PAGE_SIZE,
    SQL_COUNT,
};

struct journal {
    sqlite3 *db;
    char *path;                 /* owned */
    int file_fd;                /* of the file itself, for reserve.c; -1: none */
    int lock_fd;                /* of the lock file beside it; -1: none */
    bool frozen;                /* journal_freeze */
    int64_t bytes_max;          /* journal_bound */
    bool shrinks;               /* free pages of it can be given back */
    bool exposed;               /* the file's mode lets others read it, and is not ours to change */
    bool restored;              /* a copy in the journal's place */
    struct journal_watch watch; /* while it is opened */
    char error[256];            /* what failed last */
    sqlite3_stmt *statements[SQL_COUNT]; /* prepared with their first use */
};

#define JOURNAL_UNUSED_PAGES 1024  /* of the file that nothing needs may stay */
#define JOURNAL_SHRINK_PAGES "500" /* are given back at a time */

/* Gives some pages that nothing needs back, within a transaction. */
enum status journal_shrink(struct journal *journal);
/* Returns what a code of SQLite means; keeps its message for journal_error. */
enum status journal_status(struct journal *journal, int rc);
/*
 * Prepares (once) a statement, and binds its values: 't' const char *, 'i' int64_t, 'r' double (NaN
 * is NULL), 'b' const void * and size_t. The statement is reset by the next use of it.
 */
enum status journal_bind(struct journal *journal, enum journal_sql sql, sqlite3_stmt **out,
                         const char *types, ...);
/* Returns a column's text; NULL is "". It is valid until the next step. */
const char *journal_text_at(sqlite3_stmt *row, int column);
/* Binds and runs a statement that has no rows. */
enum status journal_run(struct journal *journal, enum journal_sql sql, const char *types, ...);
/* Takes the next row. ST_OK: there is one; ST_NOT_FOUND: no more, the statement is reset. */
enum status journal_next(struct journal *journal, sqlite3_stmt *statement);
/* The bound of a job's metrics: so many rows and bytes stay at most. Of the newest steps all rows
 * stay, unless those alone take half of the bytes. */
struct journal_thin {
    int64_t rows, bytes;
    uint64_t newest;
};
/* Thins a job's metrics. out_dropped: rows. ST_NOT_FOUND: it has none. */
enum status journal_thin_metrics(struct journal *journal, const char *id,
                                 const struct journal_thin *to, int64_t *out_dropped);
/* Puts the rows of the table that versions before 7 had into blocks, within a transaction. */
enum status journal_convert_metrics(struct journal *journal);
