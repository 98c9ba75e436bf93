#include "trainer/pipeline/schedule.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "common/limits.h"

static const char *const words[PIPELINE_SCHEDULES] = { "gpipe", "1f1b", "interleaved", "zb-h1" };

const char *pipeline_schedule_word(enum pipeline_schedule schedule)
{
    return words[schedule];
}

bool pipeline_schedule_parse(const char *word, enum pipeline_schedule *out)
{
    for (int i = 0; i < PIPELINE_SCHEDULES; i++) {
        if (strcmp(word, words[i]) == 0) {
            *out = (enum pipeline_schedule)i;
            return true;
        }
    }
    return false;
}

/* ---- what goes from part to part ---- */

static uint32_t neighbour(const struct pipeline_table *table, uint32_t part, bool behind)
{
    if (behind)
        return part + 1 < table->stages * table->chunks ? part + 1 : PIPELINE_NOWHERE;
    return part > 0 ? part - 1 : PIPELINE_NOWHERE;
}

uint32_t pipeline_input(const struct pipeline_table *table, uint32_t stage,
                        const struct pipeline_action *action)
{
    if (action->kind == PIPELINE_W)
        return PIPELINE_NOWHERE;
    return neighbour(table, pipeline_part(table, stage, action->chunk), action->kind != PIPELINE_F);
}

uint32_t pipeline_output(const struct pipeline_table *table, uint32_t stage,
                         const struct pipeline_action *action)
{
    if (action->kind == PIPELINE_W)
        return PIPELINE_NOWHERE;
    return neighbour(table, pipeline_part(table, stage, action->chunk), action->kind == PIPELINE_F);
}

/* ---- the order of one stage; micro-batches are 0 to micros - 1 ---- */

struct action_order {
    enum pipeline_sends sends;
    uint32_t stages, stage, chunks, micros;
    uint32_t count;
    struct pipeline_action *actions; /* [3 * chunks * micros] */
};

static void put(struct action_order *order, enum pipeline_kind kind, uint32_t chunk, uint32_t micro)
{
    order->actions[order->count++] =
        (struct pipeline_action){ .kind = kind, .chunk = chunk, .micro = micro };
}

static uint32_t at_most(uint32_t count, uint32_t bound)
{
    return count < bound ? count : bound;
}

static void order_gpipe(struct action_order *order)
{
    for (uint32_t i = 0; i < order->micros; i++)
        put(order, PIPELINE_F, 0, i);
    for (uint32_t i = 0; i < order->micros; i++)
        put(order, PIPELINE_B, 0, i);
}

/* Forwards of a stage before its first backward. With as many as there are stages behind it, each
 * value is computed just as the next stage is through with the one before, if all take alike: it
 * waits for each that takes a little longer. With twice as many it is computed by then, though it
 * moves only when a stash is free for it. Where sends are met that would make a replica group.
 * Source: Zhuang et al., "On optimizing the communication of model parallelism", MLSys 2023 (eager
 * 1F1B).
 */
static uint32_t count_ahead(const struct action_order *order)
{
    const uint32_t behind = order->stages - 1 - order->stage;
    const bool eager = order->sends == PIPELINE_SENDS_ARE_STARTED;
    return at_most(eager ? 2 * behind : behind, order->micros);
}

/* Source: Narayanan et al., "Efficient large-scale language model training on GPU clusters using
 * Megatron-LM", SC'21, section 2.2. The first backward of the last stage comes at once. */
static void order_1f1b(struct action_order *order)
{
    const uint32_t ahead = count_ahead(order);
    for (uint32_t i = 0; i < ahead; i++)
        put(order, PIPELINE_F, 0, i);
    for (uint32_t i = 0; i < order->micros; i++) {
        if (i + ahead < order->micros)
            put(order, PIPELINE_F, 0, i + ahead);
        put(order, PIPELINE_B, 0, i);
    }
}

/* A range of micro-batches, which go round in groups of as many as there are stages: all of a group
 * through one chunk, then through the next. The last group may have fewer. */
struct rounds {
    uint32_t first, micros;
};

static void put_round(struct action_order *order, const struct rounds *rounds,
                      enum pipeline_kind kind, uint32_t n)
{
    const uint32_t round = order->stages * order->chunks;
    const uint32_t before = n / round * order->stages;
    const uint32_t group = at_most(rounds->micros - before, order->stages);
    const uint32_t turn = n % round / group;
    const uint32_t chunk = kind == PIPELINE_F ? turn : order->chunks - 1 - turn;
    put(order, kind, chunk, rounds->first + before + n % round % group);
}

/* Later stages are less far ahead. With a short group that could make a replica group: the first
 * stage waits for the last one's forward, which comes after a backward that the first would come to
 * later. All are as far ahead as the first then. Source: as above, for whole groups. */
static void interleave(struct action_order *order, const struct rounds *rounds)
{
    const uint32_t all = order->chunks * rounds->micros;
    const uint32_t stage = rounds->micros % order->stages == 0 ? order->stage : 0;
    const uint32_t behind = order->stages - 1 - stage;
    const uint32_t ahead = at_most(2 * behind + (order->chunks - 1) * order->stages, all);
    for (uint32_t n = 0; n < ahead; n++)
        put_round(order, rounds, PIPELINE_F, n);
    for (uint32_t n = 0; n < all; n++) {
        if (n + ahead < all)
            put_round(order, rounds, PIPELINE_F, n + ahead);
        put_round(order, rounds, PIPELINE_B, n);
    }
}

/* Orders interleaved chunks. Where sends are met, one group must end before the next begins. */
static void order_interleaved(struct action_order *order)
{
    const bool all = order->sends == PIPELINE_SENDS_ARE_STARTED;
    struct rounds rounds = { .first = 0 };
    for (; rounds.first < order->micros; rounds.first += rounds.micros) {
        const uint32_t left = order->micros - rounds.first;
        rounds.micros = all ? left : at_most(left, order->stages);
        interleave(order, &rounds);
    }
}

/* Orders as 1f1b does, but stage s delays its weight gradients by s micro-batches. It computes them
 * where it would otherwise wait for the first backward of the next step. The first stage delays
 * none, and nobody waits for its inputs' gradients: it has whole backwards. Source: Qi et al.,
 * "Zero bubble pipeline parallelism", arXiv 2401.10241, section 3.1, schedule ZB-H1. */
static void order_zb_h1(struct action_order *order)
{
    const uint32_t ahead = count_ahead(order);
    uint32_t weights = 0;
    for (uint32_t i = 0; i < ahead; i++)
        put(order, PIPELINE_F, 0, i);
    for (uint32_t i = 0; i < order->micros; i++) {
        if (i + ahead < order->micros)
            put(order, PIPELINE_F, 0, i + ahead);
        put(order, order->stage == 0 ? PIPELINE_B : PIPELINE_I, 0, i);
        if (order->stage > 0 && i >= order->stage)
            put(order, PIPELINE_W, 0, weights++);
    }
    while (order->stage > 0 && weights < order->micros)
        put(order, PIPELINE_W, 0, weights++);
}

static void order_make(struct action_order *order, enum pipeline_schedule schedule)
{
    order->count = 0;
    switch (schedule) {
    case PIPELINE_GPIPE:
        order_gpipe(order);
        break;
    case PIPELINE_1F1B:
        order_1f1b(order);
        break;
    case PIPELINE_INTERLEAVED:
        order_interleaved(order);
        break;
    case PIPELINE_ZB_H1:
        order_zb_h1(order);
        break;
    }
}

/* ---- who runs what of it ---- */

struct maker {
    const struct pipeline_options *options;
    struct pipeline_table *table;
    uint32_t *root;  /* [lanes] a lane before it of the same pipeline, or itself: the first */
    uint32_t *micro; /* [micros] those of one pipeline */
    uint32_t *stash; /* [chunks * micros] which one a micro-batch is in */
    uint32_t *given; /* [chunks * micros] back, the last one last */
    struct action_order order;
};

/* Returns the most actions of a micro-batch in a stage. */
static uint32_t actions_of_micro(const struct pipeline_options *options)
{
    return options->chunks * (options->schedule == PIPELINE_ZB_H1 ? 3 : 2);
}

static enum status check_options(const struct pipeline_options *options, struct reason *reason)
{
    const char *word = pipeline_schedule_word(options->schedule);
    const bool interleaved = options->schedule == PIPELINE_INTERLEAVED;
    CHECK(options->accumulate >= 1);
    CHECK(options->layout->stage_count >= 1);
    CHECK(options->layout->lanes >= 1);
    if (interleaved && (options->chunks < 2 || options->chunks > PIPELINE_CHUNKS_MAX)) {
        reason_set(reason, "%s: %u chunks a stage: 2 to %u are possible", word, options->chunks,
                   (unsigned)PIPELINE_CHUNKS_MAX);
        return ST_INVALID;
    }
    if (!interleaved && options->chunks != 1) {
        reason_set(reason, "%s: %u chunks a stage: it has one; interleaved has several", word,
                   options->chunks);
        return ST_INVALID;
    }
    const uint64_t micros = (uint64_t)options->layout->lanes * options->accumulate;
    const uint64_t each = (uint64_t)options->layout->stage_count * actions_of_micro(options);
    if (micros > PIPELINE_ACTIONS_MAX || micros * each > PIPELINE_ACTIONS_MAX) {
        reason_set(reason, "%s: %llu micro-batches in %u stages: a table has %u entries at most",
                   word, (unsigned long long)micros, options->layout->stage_count,
                   (unsigned)PIPELINE_ACTIONS_MAX);
        return ST_FULL;
    }
    return ST_OK;
}

static uint32_t root_of(uint32_t *root, uint32_t lane)
{
    while (root[lane] != lane) {
        root[lane] = root[root[lane]];
        lane = root[lane];
    }
    return lane;
}

/* Lanes that one worker has are of one pipeline. */
static void join_lanes(struct maker *m, uint32_t stage, const uint32_t *order)
{
    const struct layout_stage *s = &m->options->layout->stages[stage];
    for (uint32_t data = 0, at = 0; data < s->data_width; at += s->shares[data++]) {
        for (uint32_t i = 1; i < s->shares[data]; i++) {
            const uint32_t a = root_of(m->root, order[at]), b = root_of(m->root, order[at + i]);
            m->root[a < b ? b : a] = a < b ? a : b;
        }
    }
}

/* The rows of a stage, and where each of them begins in the actions of all. */
static void make_rows(struct maker *m, uint32_t stage, uint32_t *action)
{
    struct pipeline_table *table = m->table;
    const struct pipeline_options *options = m->options;
    const struct layout_stage *s = &options->layout->stages[stage];
    const uint32_t first = table->row_count;
    uint32_t *owner = table->owner + (size_t)stage * table->micros;
    for (uint32_t data = 0; data < s->data_width; data++) {
        table->rows[table->row_count++] = (struct pipeline_row){
            .stage = stage, .data = data, .actions = table->actions + *action
        };
        *action += s->shares[data] * options->accumulate * actions_of_micro(options);
    }
    layout_owners(options->layout, stage, options->orders[stage], owner);
    for (uint32_t micro = table->micros; micro-- > 0;) /* lanes first, in place */
        owner[micro] = first + owner[micro / table->accumulate];
}

static void make_pipeline(struct maker *m, uint32_t root)
{
    const struct pipeline_options *options = m->options;
    struct pipeline_table *table = m->table;
    m->order.micros = 0;
    for (uint32_t lane = root; lane < options->layout->lanes; lane++) {
        if (root_of(m->root, lane) != root)
            continue;
        for (uint32_t i = 0; i < table->accumulate; i++)
            m->micro[m->order.micros++] = lane * table->accumulate + i;
    }
    for (m->order.stage = 0; m->order.stage < table->stages; m->order.stage++) {
        order_make(&m->order, options->schedule);
        for (uint32_t i = 0; i < m->order.count; i++) {
            struct pipeline_action action = m->order.actions[i];
            action.micro = m->micro[action.micro];
            struct pipeline_row *row =
                &table->rows[pipeline_owner(table, m->order.stage, action.micro)];
            row->actions[row->count++] = action;
        }
    }
}

/* The stash that was given back last is taken first: what lies in it may still be in a cache. */
static void give_stashes(struct maker *m, struct pipeline_row *row)
{
    uint32_t given = 0;
    for (uint32_t i = 0; i < row->count; i++) {
        struct pipeline_action *action = &row->actions[i];
        uint32_t *stash = &m->stash[(size_t)action->chunk * m->table->micros + action->micro];
        if (action->kind == PIPELINE_F)
            *stash = given > 0 ? m->given[--given] : row->stashes++;
        action->stash = *stash;
        if (action->kind == PIPELINE_B || action->kind == PIPELINE_W)
            m->given[given++] = *stash;
    }
}

static void make(struct maker *m)
{
    const struct layout *layout = m->options->layout;
    struct pipeline_table *table = m->table;
    uint32_t action = 0;
    for (uint32_t lane = 0; lane < layout->lanes; lane++)
        m->root[lane] = lane;
    for (uint32_t s = 0; s < table->stages; s++) {
        make_rows(m, s, &action);
        join_lanes(m, s, m->options->orders[s]);
    }
    CHECK(action == table->stages * table->micros * actions_of_micro(m->options));
    for (uint32_t lane = 0; lane < layout->lanes; lane++) {
        if (root_of(m->root, lane) == lane)
            make_pipeline(m, lane);
    }
    for (uint32_t r = 0; r < table->row_count; r++)
        give_stashes(m, &table->rows[r]);
}

static uint32_t count_rows(const struct layout *layout)
{
    uint32_t rows = 0;
    for (uint32_t s = 0; s < layout->stage_count; s++)
        rows += layout->stages[s].data_width;
    return rows;
}

enum status pipeline_table_init(struct pipeline_table *table,
                                const struct pipeline_options *options, struct reason *reason)
{
    enum status st = check_options(options, reason);
    if (st != ST_OK)
        return st;
    struct pipeline_table made = { .stages = options->layout->stage_count,
                                   .chunks = options->chunks,
                                   .accumulate = options->accumulate,
                                   .micros = options->layout->lanes * options->accumulate };
    const size_t micros = made.micros, each = actions_of_micro(options);
    made.rows = calloc(count_rows(options->layout), sizeof(*made.rows));
    made.owner = calloc(micros * made.stages, sizeof(*made.owner));
    made.actions = calloc(micros * each * made.stages, sizeof(*made.actions));
    auto_free uint32_t *root = calloc(options->layout->lanes, sizeof(*root));
    auto_free uint32_t *micro = calloc(micros, sizeof(*micro));
    auto_free uint32_t *stash = calloc(micros * made.chunks, sizeof(*stash));
    auto_free uint32_t *given = calloc(micros * made.chunks, sizeof(*given));
    auto_free struct pipeline_action *order = calloc(micros * each, sizeof(*order));
    struct maker maker = { .options = options, .table = &made, .root = root, .micro = micro };
    maker.stash = stash;
    maker.given = given;
    maker.order = (struct action_order){
        .sends = options->sends, .stages = made.stages, .chunks = made.chunks, .actions = order
    };
    if (made.rows == NULL || made.owner == NULL || made.actions == NULL || root == NULL ||
        micro == NULL || stash == NULL || given == NULL || order == NULL) {
        pipeline_table_release(&made);
        return ST_NO_MEMORY;
    }
    make(&maker);
    *table = made;
    return ST_OK;
}

void pipeline_table_release(struct pipeline_table *table)
{
    free(table->rows);
    free(table->owner);
    free(table->actions);
    memset(table, 0, sizeof(*table));
}
