/* The table of jobs: those that live, those that ended and what is kept of them; finding one. */
#include <stdio.h>
#include <string.h>

#include "server/journal/internal.h"

/* ---- writes ---- */

enum status journal_put_job(struct journal *journal, const struct journal_job *job)
{
    return journal_run(journal, SQL_PUT_JOB, "ttittt", job->id, job->name, job->seq, job->job_file,
                       job->pins, job->state);
}

enum status journal_put_state(struct journal *journal, const char *id, const char *state)
{
    return journal_run(journal, SQL_PUT_STATE, "tt", id, state);
}

enum status journal_put_pins(struct journal *journal, const char *id, const char *pins)
{
    return journal_run(journal, SQL_PUT_PINS, "tt", id, pins);
}

enum status journal_put_ended(struct journal *journal, const char *id, enum journal_ended ended,
                              const void *row, size_t size)
{
    enum status st = journal_run(journal, SQL_PUT_ENDED, "ti", id, (int64_t)ended);
    if (st != ST_OK)
        return st;
    if (ended == JOURNAL_LIVE || size == 0)
        return journal_run(journal, SQL_FORGET_SUMMARY, "t", id);
    return journal_run(journal, SQL_PUT_SUMMARY, "tb", id, row, size);
}

/* ---- what is kept no longer ---- */

enum status journal_forget_job(struct journal *journal, const char *id)
{
    enum status st = journal_run(journal, SQL_FORGET_JOB, "t", id);
    if (st == ST_OK)
        st = journal_run(journal, SQL_FORGET_SUMMARY, "t", id);
    return st == ST_OK ? journal_run(journal, SQL_FORGET_LATER, "t", id) : st;
}

/* Deletes by each statement as many rows of the job as there is room for; *room: what is left of
 * it. */
static enum status delete_some(struct journal *journal, const char *id,
                               const enum journal_sql *statements, size_t count, int64_t *room)
{
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i<count && * room> 0; i++) {
        st = journal_run(journal, statements[i], "ti", id, *room);
        *room -= sqlite3_changes(journal->db);
    }
    return st;
}

/* The id in a statement's next row; it is reset by the caller. ST_NOT_FOUND: there is none. */
static enum status take_id(struct journal *journal, sqlite3_stmt *row, char out[16])
{
    enum status st = journal_next(journal, row);
    if (st != ST_OK)
        return st;
    (void)snprintf(out, 16, "%s", journal_text_at(row, 0));
    return ST_OK;
}

static enum status find_id(struct journal *journal, enum journal_sql sql, char out[16])
{
    sqlite3_stmt *row;
    enum status st = journal_bind(journal, sql, &row, "");
    if (st == ST_OK)
        st = take_id(journal, row, out);
    (void)sqlite3_reset(row);
    return st;
}

/* Blocks that have as many rows together, or one; whoever deletes any has done enough. */
static enum status forget_metrics(struct journal *journal, const char *id, int64_t *room)
{
    const enum status st = journal_run(journal, SQL_FORGET_METRICS, "ti", id, *room);
    if (sqlite3_changes(journal->db) > 0)
        *room = 0;
    return st;
}

static enum status forget_some(struct journal *journal, const char *id, int64_t *room)
{
    static const enum journal_sql all[] = { SQL_FORGET_EVENTS,  SQL_FORGET_GENERATIONS,
                                            SQL_FORGET_CKPTS,   SQL_FORGET_SAVES,
                                            SQL_FORGET_REPORTS, SQL_FORGET_RANKS,
                                            SQL_FORGET_COUNTS };
    enum status st = forget_metrics(journal, id, room);
    if (st == ST_OK)
        st = delete_some(journal, id, all, sizeof(all) / sizeof(all[0]), room);
    if (st != ST_OK || *room <= 0)
        return st;
    st = journal_run(journal, SQL_FORGET_KEYS, "t", id);
    return st == ST_OK ? journal_run(journal, SQL_FORGET_DONE, "t", id) : st;
}

/* Deletes old rows of the job; those of its checkpoints and metrics stay. */
static enum status thin_some(struct journal *journal, const char *id, int64_t *room)
{
    static const enum journal_sql all[] = { SQL_THIN_EVENTS, SQL_THIN_GENERATIONS, SQL_FORGET_SAVES,
                                            SQL_FORGET_REPORTS, SQL_FORGET_RANKS };
    enum status st = delete_some(journal, id, all, sizeof(all) / sizeof(all[0]), room);
    if (st != ST_OK || *room <= 0)
        return st;
    return journal_run(journal, SQL_PUT_ENDED, "ti", id, (int64_t)JOURNAL_THIN);
}

/* ---- the file as a whole ---- */

/* Asks a pragma that answers with a number. */
static enum status ask_number(struct journal *journal, enum journal_sql sql, int64_t *out)
{
    sqlite3_stmt *row;
    enum status st = journal_bind(journal, sql, &row, "");
    if (st == ST_OK)
        st = journal_next(journal, row);
    if (st == ST_OK)
        *out = sqlite3_column_int64(row, 0);
    (void)sqlite3_reset(row);
    return st == ST_NOT_FOUND ? ST_OK : st; /* as if it was nothing */
}

static enum status find_large(struct journal *journal, char out[16])
{
    sqlite3_stmt *row;
    enum status st = journal_bind(journal, SQL_THIN_BYTES, &row, "i", JOURNAL_BARE_BYTES);
    if (st == ST_OK)
        st = take_id(journal, row, out);
    (void)sqlite3_reset(row);
    return st;
}

/* ST_NOT_FOUND: no job can give any. */
static enum status make_space(struct journal *journal, struct journal_tidied *out)
{
    static const struct journal_thin bare = { JOURNAL_BARE_ROWS, JOURNAL_BARE_BYTES / 2,
                                              JOURNAL_BARE_ROWS / 4 };
    enum status st = find_large(journal, out->id);
    if (st == ST_OK)
        return journal_thin_metrics(journal, out->id, &bare, &out->rows);
    if (st == ST_NOT_FOUND)
        st = journal_oldest_ended(journal, out->id);
    if (st == ST_OK)
        st = journal_forget_job(journal, out->id);
    out->forgotten = st == ST_OK;
    return st;
}

/* Pages that are free go from the file's end, some at a time, unless they are few: those are used
 * again. */
static enum status tidy_pages(struct journal *journal, struct journal_tidied *out)
{
    int64_t pages = 0, unused = 0, size = 0;
    enum status st = ask_number(journal, SQL_PAGES, &pages);
    if (st == ST_OK)
        st = ask_number(journal, SQL_UNUSED_PAGES, &unused);
    if (st == ST_OK)
        st = ask_number(journal, SQL_PAGE_SIZE, &size);
    if (st != ST_OK)
        return st;
    if ((pages - unused) * size > journal->bytes_max) {
        st = make_space(journal, out);
        out->more = st == ST_OK;
        return st == ST_NOT_FOUND ? ST_OK : st;
    }
    const bool many = journal->shrinks && unused > JOURNAL_UNUSED_PAGES && unused > pages / 8;
    out->more = many;
    return many ? journal_shrink(journal) : ST_OK;
}

enum status journal_tidy(struct journal *journal, struct journal_tidied *out)
{
    char id[16];
    int64_t room = JOURNAL_TIDY_ROWS;
    *out = (struct journal_tidied){ .more = true };
    enum status st = find_id(journal, SQL_FORGET_NEXT, id);
    if (st == ST_OK)
        return forget_some(journal, id, &room);
    if (st == ST_NOT_FOUND)
        st = find_id(journal, SQL_THIN_NEXT, id);
    if (st == ST_OK)
        return thin_some(journal, id, &room);
    return st == ST_NOT_FOUND ? tidy_pages(journal, out) : st;
}

void journal_bound(struct journal *journal, int64_t bytes)
{
    journal->bytes_max = bytes;
}

/* ---- reads ---- */

static struct journal_job job_at(sqlite3_stmt *row)
{
    return (struct journal_job){ .id = journal_text_at(row, 0),
                                 .name = journal_text_at(row, 1),
                                 .seq = sqlite3_column_int64(row, 2),
                                 .job_file = journal_text_at(row, 3),
                                 .pins = journal_text_at(row, 4),
                                 .state = journal_text_at(row, 5),
                                 .ended = (enum journal_ended)sqlite3_column_int(row, 6) };
}

enum status journal_each_job(struct journal *journal, journal_job_fn fn, void *arg)
{
    sqlite3_stmt *row;
    enum status st = journal_bind(journal, SQL_EACH_JOB, &row, "");
    bool more = true;
    while (st == ST_OK && more && (st = journal_next(journal, row)) == ST_OK) {
        struct journal_job job = job_at(row);
        more = fn(arg, &job);
    }
    (void)sqlite3_reset(row);
    return st == ST_NOT_FOUND ? ST_OK : st;
}

enum status journal_get_job(struct journal *journal, const char *id, journal_job_fn fn, void *arg)
{
    sqlite3_stmt *row;
    enum status st = journal_bind(journal, SQL_GET_JOB, &row, "t", id);
    if (st == ST_OK)
        st = journal_next(journal, row);
    if (st != ST_OK)
        return st;
    struct journal_job job = job_at(row);
    (void)fn(arg, &job);
    (void)sqlite3_reset(row);
    return ST_OK;
}

/* The ids that begin with a text stand together: up to the same with a byte after all of theirs. */
static enum status find_prefix(struct journal *journal, const char *prefix, char out[16])
{
    char end[32], second[16];
    sqlite3_stmt *row;
    (void)snprintf(end, sizeof(end), "%.15s\x7f", prefix);
    enum status st = journal_bind(journal, SQL_FIND_PREFIX, &row, "tt", prefix, end);
    if (st == ST_OK)
        st = take_id(journal, row, out);
    if (st == ST_OK && strcmp(out, prefix) != 0) { /* else the name is that id, whatever follows */
        const enum status next = take_id(journal, row, second);
        st = next == ST_OK ? ST_INVALID : next == ST_NOT_FOUND ? ST_OK : next;
    }
    (void)sqlite3_reset(row);
    return st;
}

enum status journal_find_job(struct journal *journal, const char *name, char out[16])
{
    sqlite3_stmt *row;
    size_t size = strlen(name);
    enum status st = ST_NOT_FOUND;
    if (strncmp(name, "j-", 2) == 0 && size > 2 && size < 16)
        st = find_prefix(journal, name, out);
    if (st != ST_NOT_FOUND)
        return st;
    st = journal_bind(journal, SQL_FIND_NAME, &row, "t", name);
    if (st == ST_OK)
        st = take_id(journal, row, out);
    (void)sqlite3_reset(row);
    return st;
}

enum status journal_count_jobs(struct journal *journal, size_t *out_count, int64_t *out_seq)
{
    sqlite3_stmt *row;
    enum status st = journal_bind(journal, SQL_COUNT_JOBS, &row, "");
    if (st == ST_OK)
        st = journal_next(journal, row);
    if (st != ST_OK)
        return st;
    *out_count = (size_t)sqlite3_column_int64(row, 0);
    *out_seq = sqlite3_column_int64(row, 1);
    (void)sqlite3_reset(row);
    return ST_OK;
}

enum status journal_oldest_ended(struct journal *journal, char out[16])
{
    return find_id(journal, SQL_OLDEST_ENDED, out);
}

enum status journal_next_left(struct journal *journal, int64_t *seq, char out[16])
{
    sqlite3_stmt *row;
    enum status st = journal_bind(journal, SQL_NEXT_LEFT, &row, "i", *seq);
    if (st == ST_OK)
        st = take_id(journal, row, out);
    if (st == ST_OK)
        *seq = sqlite3_column_int64(row, 1);
    (void)sqlite3_reset(row);
    return st;
}

enum status journal_list_jobs(struct journal *journal, const char *before, uint32_t count_max,
                              journal_list_fn fn, void *arg)
{
    sqlite3_stmt *row;
    enum status st = journal_bind(journal, SQL_LIST_JOBS, &row, "ti", before[0] ? before : "\x7f",
                                  (int64_t)count_max);
    bool more = true;
    while (st == ST_OK && more && (st = journal_next(journal, row)) == ST_OK) {
        more = fn(arg, journal_text_at(row, 0), sqlite3_column_blob(row, 1),
                  (size_t)sqlite3_column_bytes(row, 1));
    }
    (void)sqlite3_reset(row);
    return st == ST_NOT_FOUND ? ST_OK : st;
}
