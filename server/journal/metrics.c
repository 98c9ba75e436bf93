/*
 * Rows of metrics, in blocks: what a job's rank 0 sent within about a second is one row of SQLite.
 *
 * A block holds rows ascending by step, from `first` to `last`. Blocks of a job don't overlap: rows
 * that come again, after a restart, split those that have their steps, so that no block grows by
 * it. A job's rows are counted as they are written. With each BLOCK_ROWS more, the newest so many
 * become one block: a small one takes as much of the file as one of twice its bytes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/limits.h"
#include "server/journal/internal.h"

#define BLOCK_ROWS 256 /* rows of a block that is written anew, at least */
#define BYTES_MAX  ((size_t)256 * 1024 * 1024)
#define EVAL_BIT   0x80000000u
#define SLICE_ROWS 1024 /* rows that are put at a time */
#define STRIDES    65   /* powers of two that a step can be a multiple of; 0: of all */

/* ---- blocks as bytes ---- */

/* The head before the bytes of a row. */
struct row_head {
    uint64_t step;
    uint32_t size; /* and EVAL_BIT */
    uint32_t zero;
};

static enum status append_row(struct buf *out, const struct journal_metric *row)
{
    const struct row_head head = { .step = row->step,
                                   .size = (uint32_t)row->size | (row->eval ? EVAL_BIT : 0) };
    if (row->size >= EVAL_BIT)
        return ST_FULL;
    enum status st = buf_append(out, &head, sizeof(head));
    return st == ST_OK ? buf_append(out, row->data, row->size) : st;
}

struct row_reader {
    const char *at, *end;
};

static struct row_reader read_column(sqlite3_stmt *row, int column)
{
    const char *data = sqlite3_column_blob(row, column);
    return (struct row_reader){ data,
                                data != NULL ? data + sqlite3_column_bytes(row, column) : NULL };
}

static struct row_reader reader_of(const struct buf *bytes)
{
    const char *data = bytes->data != NULL ? bytes->data : "";
    return (struct row_reader){ data, data + bytes->size };
}

/* Reads the next row. false: there are no more; *out points into what is read. */
static bool read_row(struct row_reader *reader, struct journal_metric *out)
{
    struct row_head head;
    if ((size_t)(reader->end - reader->at) < sizeof(head))
        return false;
    memcpy(&head, reader->at, sizeof(head));
    const size_t size = head.size & ~EVAL_BIT;
    if ((size_t)(reader->end - reader->at) - sizeof(head) < size)
        return false;
    *out = (struct journal_metric){ .step = head.step,
                                    .eval = (head.size & EVAL_BIT) != 0,
                                    .data = reader->at + sizeof(head),
                                    .size = size };
    reader->at += sizeof(head) + size;
    return true;
}

/* The number of rows, and their bytes as they lie in blocks. */
struct sum {
    int64_t rows, bytes;
};

/* rows: ascending by step; they are added to sum. */
static enum status put_block(struct journal *journal, const char *id,
                             const struct journal_metric *rows, size_t count, struct sum *sum)
{
    auto_buf struct buf bytes;
    int64_t evals = 0;
    enum status st = ST_OK;
    buf_init(&bytes, BYTES_MAX);
    for (size_t i = 0; st == ST_OK && i < count; i++) {
        st = append_row(&bytes, &rows[i]);
        evals += rows[i].eval;
    }
    if (st != ST_OK || count == 0)
        return st;
    sum->rows += (int64_t)count;
    sum->bytes += (int64_t)bytes.size;
    return journal_run(journal, SQL_PUT_METRICS, "tiiiib", id, (int64_t)rows[0].step,
                       (int64_t)rows[count - 1].step, (int64_t)count, evals, bytes.data,
                       bytes.size);
}

static enum status put_blocks(struct journal *journal, const char *id,
                              const struct journal_metric *rows, size_t count, struct sum *sum)
{
    enum status st = ST_OK;
    for (size_t at = 0; st == ST_OK && at < count; at += BLOCK_ROWS) {
        const size_t left = count - at;
        st = put_block(journal, id, rows + at, left < BLOCK_ROWS ? left : BLOCK_ROWS, sum);
    }
    return st;
}

/* More by that much, or less; out: what there is. */
static enum status add_count(struct journal *journal, const char *id, const struct sum *more,
                             struct sum *out)
{
    sqlite3_stmt *row;
    enum status st =
        journal_bind(journal, SQL_COUNT_METRICS, &row, "tii", id, more->rows, more->bytes);
    if (st == ST_OK)
        st = journal_next(journal, row);
    if (st != ST_OK)
        return st == ST_NOT_FOUND ? ST_CORRUPT : st;
    *out = (struct sum){ sqlite3_column_int64(row, 0), sqlite3_column_int64(row, 1) };
    st = journal_next(journal, row); /* to its end */
    return st == ST_NOT_FOUND ? ST_OK : st;
}

/* ---- blocks that are written anew ---- */

/* Rows that were read, ascending; both owned. */
struct loaded {
    struct buf bytes;
    struct journal_metric *list;
    size_t count;
};

static void release_loaded(struct loaded *loaded)
{
    buf_release(&loaded->bytes);
    free(loaded->list);
}

/* The rows of the blocks that a statement finds, in its column 0. */
static enum status load_blocks(struct journal *journal, sqlite3_stmt *row, struct loaded *out)
{
    enum status st;
    *out = (struct loaded){ .list = NULL };
    buf_init(&out->bytes, BYTES_MAX);
    while ((st = journal_next(journal, row)) == ST_OK) {
        const struct row_reader block = read_column(row, 0);
        st = buf_append(&out->bytes, block.at, (size_t)(block.end - block.at));
        if (st != ST_OK)
            break;
    }
    (void)sqlite3_reset(row);
    out->list = calloc(out->bytes.size / sizeof(struct row_head) + 1, sizeof(*out->list));
    if (out->list == NULL)
        return ST_NO_MEMORY;
    struct row_reader reader = reader_of(&out->bytes);
    while (out->bytes.size > 0 && read_row(&reader, &out->list[out->count]))
        out->count++;
    return st == ST_NOT_FOUND ? ST_OK : st;
}

/* Blocks of those steps go, which hold what was loaded. */
static enum status drop_loaded(struct journal *journal, const char *id, int64_t first, int64_t last,
                               const struct loaded *loaded, struct sum *sum)
{
    sum->rows -= (int64_t)loaded->count;
    sum->bytes -= (int64_t)loaded->bytes.size;
    return journal_run(journal, SQL_DROP_METRICS, "tii", id, first, last);
}

/* Old rows of steps that new ones have go, the others stay. */
static enum status merge(struct journal *journal, const char *id, const struct journal_metric *rows,
                         size_t count, const struct loaded *old, struct sum *sum)
{
    const uint64_t first = rows[0].step, last = rows[count - 1].step;
    auto_free struct journal_metric *both = calloc(count + old->count, sizeof(*both));
    size_t left = 0, used = 0, at = 0;
    if (both == NULL)
        return ST_NO_MEMORY;
    while (left < old->count && old->list[left].step < first)
        left++;
    size_t right = left;
    for (; right < old->count && old->list[right].step <= last; right++) {
        while (at < count && rows[at].step < old->list[right].step)
            both[used++] = rows[at++];
        if (at == count || rows[at].step != old->list[right].step)
            both[used++] = old->list[right];
    }
    while (at < count)
        both[used++] = rows[at++];
    enum status st = put_blocks(journal, id, old->list, left, sum);
    if (st == ST_OK)
        st = put_blocks(journal, id, both, used, sum);
    return st == ST_OK ? put_blocks(journal, id, old->list + right, old->count - right, sum) : st;
}

/* Rows of steps from first to last are there already, or may be. */
static enum status put_over(struct journal *journal, const char *id,
                            const struct journal_metric *rows, size_t count, struct sum *sum)
{
    const int64_t first = (int64_t)rows[0].step, last = (int64_t)rows[count - 1].step;
    struct loaded old = { .list = NULL };
    sqlite3_stmt *row;
    enum status st = journal_bind(journal, SQL_OVER_METRICS, &row, "tii", id, first, last);
    if (st == ST_OK)
        st = load_blocks(journal, row, &old);
    if (st == ST_OK && old.count > 0)
        st = drop_loaded(journal, id, first, last, &old, sum);
    if (st == ST_OK) {
        st = old.count > 0 ? merge(journal, id, rows, count, &old, sum)
                           : put_block(journal, id, rows, count, sum);
    }
    release_loaded(&old);
    return st;
}

/* The blocks of the newest BLOCK_ROWS rows become one; two, where the first is a large one. */
static enum status join(struct journal *journal, const char *id, struct sum *sum)
{
    struct loaded old = { .list = NULL };
    sqlite3_stmt *row;
    uint64_t first = 0;
    enum status st = journal_metric_back(journal, id, BLOCK_ROWS, &first);
    if (st == ST_OK)
        st = journal_bind(journal, SQL_OVER_METRICS, &row, "tii", id, (int64_t)first, INT64_MAX);
    if (st == ST_OK)
        st = load_blocks(journal, row, &old);
    if (st == ST_OK)
        st = drop_loaded(journal, id, (int64_t)first, INT64_MAX, &old, sum);
    if (st == ST_OK) {
        st = old.count < (size_t)2 * BLOCK_ROWS ? put_block(journal, id, old.list, old.count, sum)
                                                : put_blocks(journal, id, old.list, old.count, sum);
    }
    release_loaded(&old);
    return st;
}

/* Finds the highest step: a job that went back has rows beyond those that came last. */
static enum status newest_of(struct journal *journal, const char *id, uint64_t *out)
{
    sqlite3_stmt *row;
    enum status st = journal_bind(journal, SQL_NEWEST_METRIC, &row, "t", id);
    if (st == ST_OK)
        st = journal_next(journal, row);
    if (st != ST_OK)
        return st;
    *out = (uint64_t)sqlite3_column_int64(row, 0);
    (void)sqlite3_reset(row);
    return ST_OK;
}

/*
 * ---- thinning ----
 *
 * Of the rows before the newest ones those stay whose step is a multiple of a power of two, the
 * smallest with which there is room for them. Evaluations have a power of their own, with which
 * they take half of the room, or more if the others leave it. Rows are read twice, block by block:
 * first to count, then to keep.
 */

struct thinning {
    const struct journal_thin *to;
    uint64_t before;            /* steps from here on stay */
    struct sum all[2][STRIDES]; /* rows by what their step is a multiple of; 1: evaluations */
    struct sum old;             /* all of them, and those of steps that stay beside them */
    int stride[2];              /* as powers of two */
    struct buf kept;
};

static int multiple_of(uint64_t step)
{
    return step == 0 ? STRIDES - 1 : __builtin_ctzll(step);
}

static bool stays(const struct thinning *t, const struct journal_metric *row)
{
    return row->step >= t->before || multiple_of(row->step) >= t->stride[row->eval];
}

static enum status count_row(struct thinning *t, const struct journal_metric *row)
{
    const int64_t bytes = (int64_t)(sizeof(struct row_head) + row->size);
    struct sum *sum = &t->all[row->eval][multiple_of(row->step)];
    if (row->step < t->before) {
        sum->rows++;
        sum->bytes += bytes;
    }
    t->old.rows++;
    t->old.bytes += bytes;
    return ST_OK;
}

static enum status keep_row(struct thinning *t, const struct journal_metric *row)
{
    return stays(t, row) ? append_row(&t->kept, row) : ST_OK;
}

/* Rows in blocks with steps before t->before. */
static enum status each_old(struct journal *journal, const char *id, struct thinning *t,
                            enum status (*fn)(struct thinning *t, const struct journal_metric *row))
{
    sqlite3_stmt *row;
    const int64_t last = t->before > 0 ? (int64_t)(t->before - 1) : 0;
    enum status st = journal_bind(journal, SQL_OVER_METRICS, &row, "tii", id, (int64_t)0, last);
    while (st == ST_OK && (st = journal_next(journal, row)) == ST_OK) {
        struct row_reader block = read_column(row, 0);
        struct journal_metric one;
        while (st == ST_OK && read_row(&block, &one))
            st = fn(t, &one);
    }
    (void)sqlite3_reset(row);
    return st == ST_NOT_FOUND ? ST_OK : st;
}

/* Sums the rows of a kind that a stride leaves. */
static struct sum with_stride(const struct thinning *t, int kind, int stride)
{
    struct sum sum = { 0 };
    for (int i = stride; i < STRIDES; i++) {
        sum.rows += t->all[kind][i].rows;
        sum.bytes += t->all[kind][i].bytes;
    }
    return sum;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void choose_strides(struct thinning *t, const struct sum *all)
{
    struct sum room = { t->to->rows - all->rows, t->to->bytes - all->bytes };
    struct sum plain = with_stride(t, 0, 0), evals = with_stride(t, 1, 0);
    room.rows += plain.rows + evals.rows; /* what the newest ones leave */
    room.bytes += plain.bytes + evals.bytes;
    const struct sum most = { larger(room.rows / 2, room.rows - plain.rows),
                              larger(room.bytes / 2, room.bytes - plain.bytes) };
    while ((evals.rows > most.rows || evals.bytes > most.bytes) && t->stride[1] < STRIDES)
        evals = with_stride(t, 1, ++t->stride[1]);
    while ((plain.rows + evals.rows > room.rows || plain.bytes + evals.bytes > room.bytes) &&
           t->stride[0] < STRIDES)
        plain = with_stride(t, 0, ++t->stride[0]);
}

static enum status count_old(struct journal *journal, const char *id, struct thinning *t,
                             uint64_t newest, uint64_t spare)
{
    memset(t->all, 0, sizeof(t->all));
    t->old = (struct sum){ 0 };
    t->before = newest > spare ? newest - spare : 0;
    return each_old(journal, id, t, count_row);
}

static enum status replace_old(struct journal *journal, const char *id, struct thinning *t,
                               struct sum *sum)
{
    const int64_t last = t->before > 0 ? (int64_t)(t->before - 1) : 0;
    auto_free struct journal_metric *rows =
        calloc(t->kept.size / sizeof(struct row_head) + 1, sizeof(*rows));
    size_t count = 0;
    if (rows == NULL)
        return ST_NO_MEMORY;
    struct row_reader reader = reader_of(&t->kept);
    while (t->kept.size > 0 && read_row(&reader, &rows[count]))
        count++;
    sum->rows -= t->old.rows;
    sum->bytes -= t->old.bytes;
    enum status st = journal_run(journal, SQL_DROP_METRICS, "tii", id, (int64_t)0, last);
    return st == ST_OK ? put_blocks(journal, id, rows, count, sum) : st;
}

enum status journal_thin_metrics(struct journal *journal, const char *id,
                                 const struct journal_thin *to, int64_t *out_dropped)
{
    struct thinning t = { .to = to };
    struct sum all = { 0 }, change = { 0 };
    uint64_t newest = 0;
    enum status st = newest_of(journal, id, &newest);
    if (st == ST_OK)
        st = add_count(journal, id, &change, &all);
    if (st == ST_OK)
        st = count_old(journal, id, &t, newest, to->newest);
    if (st == ST_OK && all.bytes - t.old.bytes > to->bytes / 2) /* the newest alone are too much */
        st = count_old(journal, id, &t, newest, 0);
    if (st != ST_OK)
        return st;
    choose_strides(&t, &all);
    buf_init(&t.kept, BYTES_MAX);
    st = each_old(journal, id, &t, keep_row);
    if (st == ST_OK)
        st = replace_old(journal, id, &t, &change);
    if (st == ST_OK)
        st = add_count(journal, id, &change, &all);
    buf_release(&t.kept);
    *out_dropped = -change.rows;
    return st;
}

/* ---- writes ---- */

static int compare_rows(const void *a, const void *b)
{
    const struct journal_metric *x = *(const struct journal_metric *const *)a;
    const struct journal_metric *y = *(const struct journal_metric *const *)b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return x < y ? -1 : x > y; /* as they came */
}

/* Ascending by step, of each step the last that came, without those that are too large; returns how
 * many. */
static size_t sort_rows(const struct journal_metric *rows, size_t count,
                        const struct journal_metric **order, struct journal_metric *out)
{
    size_t used = 0, fit = 0;
    for (size_t i = 0; i < count; i++) {
        if (rows[i].size <= JOURNAL_ROW_BYTES)
            order[fit++] = &rows[i];
    }
    qsort(order, fit, sizeof(void *), compare_rows);
    for (size_t i = 0; i < fit; i++) {
        if (used > 0 && out[used - 1].step == order[i]->step)
            used--;
        out[used++] = *order[i];
    }
    return used;
}

static enum status put_slice(struct journal *journal, const char *id,
                             const struct journal_metric *rows, size_t count)
{
    static const struct journal_thin to = { LIMIT_METRIC_ROWS / 2, JOURNAL_METRIC_BYTES / 2,
                                            LIMIT_METRIC_ROWS / 4 };
    struct sum more = { 0 }, joined = { 0 }, all = { 0 };
    int64_t dropped;
    enum status st = put_over(journal, id, rows, count, &more);
    if (st == ST_OK)
        st = add_count(journal, id, &more, &all);
    if (st == ST_OK && all.rows / BLOCK_ROWS > (all.rows - more.rows) / BLOCK_ROWS)
        st = join(journal, id, &joined);
    if (st == ST_OK && joined.rows + joined.bytes != 0)
        st = add_count(journal, id, &joined, &all);
    if (st == ST_OK && (all.rows > LIMIT_METRIC_ROWS || all.bytes > JOURNAL_METRIC_BYTES))
        st = journal_thin_metrics(journal, id, &to, &dropped);
    return st;
}

enum status journal_put_metrics(struct journal *journal, const char *id,
                                const struct journal_metric *rows, size_t count)
{
    if (count == 0)
        return ST_OK;
    auto_free const struct journal_metric **order = calloc(count, sizeof(void *));
    auto_free struct journal_metric *sorted = calloc(count, sizeof(*sorted));
    if (order == NULL || sorted == NULL)
        return ST_NO_MEMORY;
    const size_t used = sort_rows(rows, count, order, sorted);
    enum status st = ST_OK;
    for (size_t at = 0; st == ST_OK && at < used; at += SLICE_ROWS) {
        const size_t left = used - at;
        st = put_slice(journal, id, sorted + at, left < SLICE_ROWS ? left : SLICE_ROWS);
    }
    return st;
}

/* ---- reads ---- */

enum status journal_each_metric(struct journal *journal, const char *id, uint64_t from,
                                uint32_t count_max, journal_metric_fn fn, void *arg)
{
    sqlite3_stmt *row;
    uint32_t count = 0;
    bool more = count_max > 0;
    enum status st = journal_bind(journal, SQL_EACH_METRICS, &row, "ti", id, (int64_t)from);
    while (st == ST_OK && more && (st = journal_next(journal, row)) == ST_OK) {
        struct row_reader block = read_column(row, 0);
        struct journal_metric one;
        while (more && read_row(&block, &one)) {
            if (one.step >= from)
                more = fn(arg, one.step, one.data, one.size) && ++count < count_max;
        }
    }
    (void)sqlite3_reset(row);
    return st == ST_NOT_FOUND ? ST_OK : st;
}

enum status journal_last_eval(struct journal *journal, const char *id, uint64_t step,
                              journal_metric_fn fn, void *arg)
{
    sqlite3_stmt *row;
    bool found = false;
    enum status st = journal_bind(journal, SQL_LAST_EVAL, &row, "ti", id, (int64_t)step);
    while (st == ST_OK && !found && (st = journal_next(journal, row)) == ST_OK) {
        struct row_reader block = read_column(row, 0);
        struct journal_metric one, last = { .step = 0 };
        while (read_row(&block, &one)) {
            if (one.eval && one.step <= step) {
                last = one;
                found = true;
            }
        }
        if (found)
            (void)fn(arg, last.step, last.data, last.size);
    }
    (void)sqlite3_reset(row);
    return st == ST_NOT_FOUND ? ST_OK : st;
}

enum status journal_metric_back(struct journal *journal, const char *id, uint32_t n,
                                uint64_t *out_step)
{
    sqlite3_stmt *row;
    int64_t left = n;
    bool any = false;
    enum status st = journal_bind(journal, SQL_METRIC_BACK, &row, "t", id);
    while (st == ST_OK && left > 0 && (st = journal_next(journal, row)) == ST_OK) {
        const int64_t count = sqlite3_column_int64(row, 0);
        struct row_reader block = read_column(row, 1);
        struct journal_metric one;
        any = true;
        for (int64_t i = 0; i == 0 || i <= count - left; i++) {
            if (!read_row(&block, &one))
                break;
            *out_step = one.step;
        }
        left -= count;
    }
    (void)sqlite3_reset(row);
    if (st != ST_OK && st != ST_NOT_FOUND)
        return st;
    return any ? ST_OK : ST_NOT_FOUND;
}

/* ---- an older journal ---- */

/* Up to BLOCK_ROWS rows of one job, as they are read from the table of before. */
struct converted {
    char id[16];
    struct buf bytes;
    size_t count;
};

static enum status put_converted(struct journal *journal, struct converted *from)
{
    struct journal_metric rows[BLOCK_ROWS];
    size_t count = 0;
    struct sum sum = { 0 }; /* the upgrade to 15 counts them */
    if (from->count == 0)
        return ST_OK;
    struct row_reader reader = reader_of(&from->bytes);
    while (count < BLOCK_ROWS && read_row(&reader, &rows[count]))
        count++;
    const enum status st = put_block(journal, from->id, rows, count, &sum);
    buf_clear(&from->bytes);
    from->count = 0;
    return st;
}

static enum status convert_row(struct journal *journal, sqlite3_stmt *row, struct converted *to)
{
    const char *id = journal_text_at(row, 0);
    enum status st = ST_OK;
    if (to->count == BLOCK_ROWS || strcmp(id, to->id) != 0)
        st = put_converted(journal, to);
    (void)snprintf(to->id, sizeof(to->id), "%s", id);
    const struct journal_metric one = { .step = (uint64_t)sqlite3_column_int64(row, 1),
                                        .eval = sqlite3_column_int(row, 2) != 0,
                                        .data = sqlite3_column_blob(row, 3),
                                        .size = (size_t)sqlite3_column_bytes(row, 3) };
    to->count++;
    return st == ST_OK ? append_row(&to->bytes, &one) : st;
}

enum status journal_convert_metrics(struct journal *journal)
{
    struct converted to = { .id = "" };
    sqlite3_stmt *row = NULL;
    buf_init(&to.bytes, BYTES_MAX);
    enum status st = journal_status(
        journal,
        sqlite3_prepare_v2(journal->db, "SELECT job,step,eval,row FROM metrics ORDER BY job,step",
                           -1, &row, NULL));
    while (st == ST_OK && (st = journal_next(journal, row)) == ST_OK)
        st = convert_row(journal, row, &to);
    (void)sqlite3_finalize(row);
    if (st == ST_NOT_FOUND)
        st = put_converted(journal, &to);
    buf_release(&to.bytes);
    return st;
}
