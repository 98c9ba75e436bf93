/* The journal's tables, one pair of functions each: write, and call back with every row. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/limits.h"
#include "server/journal/internal.h"

static double number_at(sqlite3_stmt *row, int column)
{
    bool none = sqlite3_column_type(row, column) == SQLITE_NULL;
    return none ? __builtin_nan("") : sqlite3_column_double(row, column);
}

static enum status end_rows(sqlite3_stmt *row, enum status st)
{
    (void)sqlite3_reset(row);
    return st == ST_NOT_FOUND ? ST_OK : st;
}

/* ---- events, generations ---- */

enum status journal_put_event(struct journal *journal, const char *id,
                              const struct journal_event *event)
{
    enum status st =
        journal_run(journal, SQL_PUT_EVENT, "tiiitt", id, event->wall_ms,
                    (int64_t)event->generation, (int64_t)event->step, event->kind, event->message);
    if (st != ST_OK)
        return st;
    /* Not with every one: the bound may be passed by a hundred. */
    if (sqlite3_last_insert_rowid(journal->db) % 100 != 0)
        return ST_OK;
    return journal_run(journal, SQL_BOUND_EVENTS, "t", id);
}

enum status journal_each_event(struct journal *journal, const char *id, uint32_t count_max,
                               journal_event_fn fn, void *arg)
{
    sqlite3_stmt *row;
    enum status st = journal_bind(journal, SQL_EACH_EVENT, &row, "ti", id, (int64_t)count_max);
    bool more = true;
    while (st == ST_OK && more && (st = journal_next(journal, row)) == ST_OK) {
        struct journal_event event = { .wall_ms = sqlite3_column_int64(row, 1),
                                       .generation = (uint32_t)sqlite3_column_int64(row, 2),
                                       .step = (uint64_t)sqlite3_column_int64(row, 3),
                                       .kind = journal_text_at(row, 4),
                                       .message = journal_text_at(row, 5) };
        more = fn(arg, &event);
    }
    return end_rows(row, st);
}

enum status journal_put_generation(struct journal *journal, const char *id,
                                   const struct journal_generation *row)
{
    enum status st =
        journal_run(journal, SQL_PUT_GENERATION, "tiiiittt", id, (int64_t)row->generation,
                    row->begin_ms, (int64_t)row->restore_step, (int64_t)row->end_step, row->nodes,
                    row->recovery, row->numbers);
    /* The bounds may be passed by some. */
    if (st == ST_OK && row->generation % 16 == 0)
        st = journal_run(journal, SQL_BOUND_GENERATION_BYTES, "t", id);
    if (st != ST_OK || row->generation % 100 != 0)
        return st;
    return journal_run(journal, SQL_BOUND_GENERATIONS, "ti", id, (int64_t)JOURNAL_TIDY_ROWS);
}

enum status journal_end_generation(struct journal *journal, const char *id,
                                   const struct journal_generation *row)
{
    return journal_run(journal, SQL_END_GENERATION, "tiiitt", id, (int64_t)row->generation,
                       row->end_ms, (int64_t)row->end_step, row->cause, row->message);
}

enum status journal_put_recovery(struct journal *journal, const char *id, uint32_t generation,
                                 uint64_t restore_step, const char *recovery)
{
    return journal_run(journal, SQL_PUT_RECOVERY, "tiit", id, (int64_t)generation,
                       (int64_t)restore_step, recovery);
}

enum status journal_each_recovery(struct journal *journal, const char *id, uint32_t count_max,
                                  journal_recovery_fn fn, void *arg)
{
    sqlite3_stmt *row;
    enum status st = journal_bind(journal, SQL_EACH_RECOVERY, &row, "ti", id, (int64_t)count_max);
    bool more = true;
    while (st == ST_OK && more && (st = journal_next(journal, row)) == ST_OK)
        more = fn(arg, (uint32_t)sqlite3_column_int64(row, 0), journal_text_at(row, 1));
    return end_rows(row, st);
}

static enum status read_generations(struct journal *journal, sqlite3_stmt *row,
                                    journal_generation_fn fn, void *arg)
{
    enum status st = ST_OK;
    bool more = true;
    while (st == ST_OK && more && (st = journal_next(journal, row)) == ST_OK) {
        struct journal_generation g = { .generation = (uint32_t)sqlite3_column_int64(row, 0),
                                        .begin_ms = sqlite3_column_int64(row, 1),
                                        .end_ms = sqlite3_column_int64(row, 2),
                                        .restore_step = (uint64_t)sqlite3_column_int64(row, 3),
                                        .end_step = (uint64_t)sqlite3_column_int64(row, 4),
                                        .nodes = journal_text_at(row, 5),
                                        .cause = journal_text_at(row, 6),
                                        .message = journal_text_at(row, 7),
                                        .recovery = journal_text_at(row, 8),
                                        .numbers = journal_text_at(row, 9) };
        more = fn(arg, &g);
    }
    return end_rows(row, st);
}

enum status journal_each_generation(struct journal *journal, const char *id, uint32_t count_max,
                                    journal_generation_fn fn, void *arg)
{
    sqlite3_stmt *row;
    enum status st = journal_bind(journal, SQL_EACH_GENERATION, &row, "ti", id, (int64_t)count_max);
    return st == ST_OK ? read_generations(journal, row, fn, arg) : st;
}

enum status journal_get_generation(struct journal *journal, const char *id, uint32_t generation,
                                   journal_generation_fn fn, void *arg)
{
    sqlite3_stmt *row;
    enum status st = journal_bind(journal, SQL_GET_GENERATION, &row, "ti", id, (int64_t)generation);
    return st == ST_OK ? read_generations(journal, row, fn, arg) : st;
}

/* ---- ranks ---- */

enum status journal_put_rank(struct journal *journal, const char *id, uint32_t rank,
                             const struct fsm_rank_row *row)
{
    return journal_run(journal, SQL_PUT_RANK, "titiiiiiiiiii", id, (int64_t)rank, row->node,
                       (int64_t)row->slot, (int64_t)row->holder, (int64_t)row->gone,
                       (int64_t)row->birth, (int64_t)row->parked, (int64_t)row->source,
                       (int64_t)row->number, (int64_t)row->lanes, (int64_t)row->lane_us,
                       (int64_t)row->stage);
}

enum status journal_each_rank(struct journal *journal, const char *id, journal_rank_fn fn,
                              void *arg)
{
    sqlite3_stmt *row;
    enum status st = journal_bind(journal, SQL_EACH_RANK, &row, "t", id);
    bool more = true;
    while (st == ST_OK && more && (st = journal_next(journal, row)) == ST_OK) {
        struct fsm_rank_row rank = { .slot = (uint32_t)sqlite3_column_int64(row, 2),
                                     .holder = (uint32_t)sqlite3_column_int64(row, 3),
                                     .gone = sqlite3_column_int(row, 4) != 0,
                                     .birth = (uint32_t)sqlite3_column_int64(row, 5),
                                     .parked = sqlite3_column_int(row, 6) != 0,
                                     .source = sqlite3_column_int(row, 7) != 0,
                                     .number = (uint32_t)sqlite3_column_int64(row, 8),
                                     .lanes = (uint32_t)sqlite3_column_int64(row, 9),
                                     .lane_us = (uint32_t)sqlite3_column_int64(row, 10),
                                     .stage = (uint32_t)sqlite3_column_int64(row, 11) };
        const char *node = journal_text_at(row, 1);
        if (strlen(node) >= sizeof(rank.node)) {
            st = ST_CORRUPT;
            break;
        }
        (void)snprintf(rank.node, sizeof(rank.node), "%s", node);
        more = fn(arg, (uint32_t)sqlite3_column_int64(row, 0), &rank);
    }
    return end_rows(row, st);
}

/* ---- saves, reports, checkpoints ---- */

enum status journal_put_save(struct journal *journal, const char *id,
                             const struct journal_save *save)
{
    return journal_run(journal, SQL_PUT_SAVE, "tiiiibtiiiiiiii", id, (int64_t)save->step,
                       (int64_t)save->generation, (int64_t)save->state, save->wall_ms,
                       save->manifest, save->manifest_size, save->digest, (int64_t)save->bytes,
                       (int64_t)save->raw_bytes, (int64_t)save->shards, (int64_t)save->base_step,
                       (int64_t)save->base_generation, (int64_t)save->parent_step,
                       (int64_t)save->parent_generation, (int64_t)save->try_number);
}

enum status journal_drop_reports(struct journal *journal, const char *id, uint64_t step,
                                 uint32_t generation)
{
    return journal_run(journal, SQL_DROP_REPORTS, "tii", id, (int64_t)step, (int64_t)generation);
}

enum status journal_drop_save(struct journal *journal, const char *id, uint64_t step,
                              uint32_t generation)
{
    enum status st = journal_drop_reports(journal, id, step, generation);
    if (st != ST_OK)
        return st;
    return journal_run(journal, SQL_DROP_SAVE, "tii", id, (int64_t)step, (int64_t)generation);
}

enum status journal_each_save(struct journal *journal, const char *id, journal_save_fn fn,
                              void *arg)
{
    sqlite3_stmt *row;
    enum status st = journal_bind(journal, SQL_EACH_SAVE, &row, "t", id);
    bool more = true;
    while (st == ST_OK && more && (st = journal_next(journal, row)) == ST_OK) {
        struct journal_save save = { .step = (uint64_t)sqlite3_column_int64(row, 0),
                                     .generation = (uint32_t)sqlite3_column_int64(row, 1),
                                     .state = sqlite3_column_int(row, 2),
                                     .wall_ms = sqlite3_column_int64(row, 3),
                                     .manifest = sqlite3_column_blob(row, 4),
                                     .manifest_size = (size_t)sqlite3_column_bytes(row, 4),
                                     .digest = journal_text_at(row, 5),
                                     .bytes = (uint64_t)sqlite3_column_int64(row, 6),
                                     .raw_bytes = (uint64_t)sqlite3_column_int64(row, 7),
                                     .shards = (uint32_t)sqlite3_column_int64(row, 8),
                                     .base_step = (uint64_t)sqlite3_column_int64(row, 9),
                                     .base_generation = (uint32_t)sqlite3_column_int64(row, 10),
                                     .parent_step = (uint64_t)sqlite3_column_int64(row, 11),
                                     .parent_generation = (uint32_t)sqlite3_column_int64(row, 12),
                                     .try_number = (uint32_t)sqlite3_column_int64(row, 13) };
        more = fn(arg, &save);
    }
    return end_rows(row, st);
}

enum status journal_put_report(struct journal *journal, const char *id, uint64_t step,
                               uint32_t generation, uint32_t rank, const void *report, size_t size)
{
    return journal_run(journal, SQL_PUT_REPORT, "tiiib", id, (int64_t)step, (int64_t)generation,
                       (int64_t)rank, report, size);
}

enum status journal_each_report(struct journal *journal, const char *id, uint64_t step,
                                uint32_t generation, journal_report_fn fn, void *arg)
{
    sqlite3_stmt *row;
    enum status st =
        journal_bind(journal, SQL_EACH_REPORT, &row, "tii", id, (int64_t)step, (int64_t)generation);
    bool more = true;
    while (st == ST_OK && more && (st = journal_next(journal, row)) == ST_OK) {
        more = fn(arg, (uint32_t)sqlite3_column_int64(row, 0), sqlite3_column_blob(row, 1),
                  (size_t)sqlite3_column_bytes(row, 1));
    }
    return end_rows(row, st);
}

enum status journal_read_reports(const char *path, const char *id, uint64_t step,
                                 uint32_t generation, journal_report_fn fn, void *arg)
{
    struct journal *beside;
    enum status st = journal_open_beside(path, &beside);
    if (st != ST_OK)
        return st;
    st = journal_each_report(beside, id, step, generation, fn, arg);
    journal_close(beside);
    return st == ST_EXISTS ? ST_IO : st;
}

enum status journal_put_ckpt(struct journal *journal, const char *id, const struct fsm_ckpt *ckpt)
{
    return journal_run(
        journal, SQL_PUT_CKPT, "tiiiiitiiiiirrriiiiiii", id, (int64_t)ckpt->step,
        (int64_t)ckpt->generation, (int64_t)ckpt->state, (int64_t)ckpt->verified, ckpt->wall_ms,
        ckpt->digest, (int64_t)ckpt->bytes, (int64_t)ckpt->raw_bytes, (int64_t)ckpt->shards,
        (int64_t)ckpt->parent_step, (int64_t)ckpt->parent_generation, ckpt->loss, ckpt->eval_loss,
        ckpt->eval_accuracy, ckpt->times.stall_us, ckpt->times.encode_us, ckpt->times.io_us,
        ckpt->times.sync_us, ckpt->times.save_us, ckpt->times.commit_us, (int64_t)ckpt->try_number);
}

enum status journal_drop_ckpt(struct journal *journal, const char *id, uint64_t step,
                              uint32_t generation)
{
    return journal_run(journal, SQL_DROP_CKPT, "tii", id, (int64_t)step, (int64_t)generation);
}

enum status journal_each_ckpt(struct journal *journal, const char *id, journal_ckpt_fn fn,
                              void *arg)
{
    sqlite3_stmt *row;
    enum status st = journal_bind(journal, SQL_EACH_CKPT, &row, "t", id);
    bool more = true;
    while (st == ST_OK && more && (st = journal_next(journal, row)) == ST_OK) {
        struct fsm_ckpt ckpt = { .step = (uint64_t)sqlite3_column_int64(row, 0),
                                 .generation = (uint32_t)sqlite3_column_int64(row, 1),
                                 .state = (enum fsm_ckpt_state)sqlite3_column_int(row, 2),
                                 .verified = sqlite3_column_int(row, 3) != 0,
                                 .wall_ms = sqlite3_column_int64(row, 4),
                                 .bytes = (uint64_t)sqlite3_column_int64(row, 6),
                                 .raw_bytes = (uint64_t)sqlite3_column_int64(row, 7),
                                 .shards = (uint32_t)sqlite3_column_int64(row, 8),
                                 .parent_step = (uint64_t)sqlite3_column_int64(row, 9),
                                 .parent_generation = (uint32_t)sqlite3_column_int64(row, 10),
                                 .try_number = (uint32_t)sqlite3_column_int64(row, 20),
                                 .loss = number_at(row, 11),
                                 .eval_loss = number_at(row, 12),
                                 .eval_accuracy = number_at(row, 13),
                                 .times = { .stall_us = sqlite3_column_int64(row, 14),
                                            .encode_us = sqlite3_column_int64(row, 15),
                                            .io_us = sqlite3_column_int64(row, 16),
                                            .sync_us = sqlite3_column_int64(row, 17),
                                            .save_us = sqlite3_column_int64(row, 18),
                                            .commit_us = sqlite3_column_int64(row, 19) } };
        (void)snprintf(ckpt.digest, sizeof(ckpt.digest), "%s", journal_text_at(row, 5));
        more = fn(arg, &ckpt);
    }
    return end_rows(row, st);
}

/* ---- idempotency ---- */

enum status journal_put_key(struct journal *journal, const char *key, const char *what,
                            int64_t wall_ms)
{
    enum status st = journal_run(journal, SQL_PUT_KEY, "tti", key, what, wall_ms);
    if (st != ST_OK || sqlite3_last_insert_rowid(journal->db) % 100 != 0)
        return st;
    return journal_run(journal, SQL_BOUND_KEYS, "");
}

enum status journal_get_key(struct journal *journal, const char *key, char *out, size_t capacity)
{
    sqlite3_stmt *row;
    enum status st = journal_bind(journal, SQL_GET_KEY, &row, "t", key);
    if (st == ST_OK)
        st = journal_next(journal, row);
    if (st != ST_OK)
        return st;
    (void)snprintf(out, capacity, "%s", journal_text_at(row, 0));
    (void)sqlite3_reset(row);
    return ST_OK;
}

/* ---- nodes that people keep free ---- */

enum status journal_put_drain(struct journal *journal, const char *node, const char *reason,
                              int64_t until_ms)
{
    enum status st = journal_run(journal, SQL_PUT_DRAIN, "tt", node, reason);
    return st == ST_OK ? journal_run(journal, SQL_PUT_DRAIN_DEADLINE, "ti", node, until_ms) : st;
}

enum status journal_drop_drain(struct journal *journal, const char *node)
{
    return journal_run(journal, SQL_DROP_DRAIN, "t", node); /* its deadline goes with it */
}

enum status journal_each_drain(struct journal *journal, journal_drain_fn fn, void *arg)
{
    sqlite3_stmt *row;
    enum status st = journal_bind(journal, SQL_EACH_DRAIN, &row, "");
    bool more = true;
    while (st == ST_OK && more && (st = journal_next(journal, row)) == ST_OK) {
        more =
            fn(arg, journal_text_at(row, 0), journal_text_at(row, 1), sqlite3_column_int64(row, 2));
    }
    return end_rows(row, st);
}

/* ---- nodes whose certificates count no more ---- */

enum status journal_forget_node(struct journal *journal, const char *node, int64_t time_s)
{
    return journal_run(journal, SQL_FORGET_NODE, "ti", node, time_s);
}

enum status journal_drop_withdrawn(struct journal *journal, int64_t before_s)
{
    return journal_run(journal, SQL_DROP_WITHDRAWN, "i", before_s);
}

enum status journal_each_forgotten_node(struct journal *journal, journal_forgotten_fn fn, void *arg)
{
    sqlite3_stmt *row;
    enum status st = journal_bind(journal, SQL_EACH_FORGOTTEN_NODE, &row, "");
    bool more = true;
    while (st == ST_OK && more && (st = journal_next(journal, row)) == ST_OK)
        more = fn(arg, journal_text_at(row, 0), sqlite3_column_int64(row, 1));
    return end_rows(row, st);
}
