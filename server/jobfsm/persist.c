#include "server/jobfsm/persist.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "server/containers/fields.h"
#include "server/jobfsm/moves.h"

#define MEMBER(member, name, kind) FIELD_NAMED(fsm, member, name, kind)

static const struct json_field fsm_fields[] = {
    FIELD(fsm, state, ENUM),
    MEMBER(ending.to, "end_to", ENUM),
    MEMBER(ending.parks, "parks", BOOLEAN),
    FIELD(fsm, intent, ENUM),
    FIELD(fsm, generation, U32),
    FIELD(fsm, restarts, U32),
    FIELD(fsm, step_max, U64),
    FIELD(fsm, total_steps, U64),
    FIELD(fsm, steps_per_epoch, U64),
    MEMBER(last.step, "last_step", U64),
    MEMBER(last.generation, "last_generation", U32),
    MEMBER(restore.step, "restore_step", U64),
    MEMBER(restore.generation, "restore_generation", U32),
    MEMBER(restore.memory_generation, "memory_generation", U32),
    MEMBER(restore.memory_from, "memory_from", U32),
    MEMBER(restore.decided, "memory_decided", BOOLEAN),
    MEMBER(restore.memory_step, "memory_step", U64),
    MEMBER(restore.memory_size, "memory_size", U32),
    MEMBER(restore.live, "live", BOOLEAN),
    FIELD(fsm, ran, U64),
    FIELD(fsm, progressed, BOOLEAN),
    FIELD(fsm, committed, BOOLEAN),
    MEMBER(budget.failures, "streak", U32),
    MEMBER(budget.no_progress, "barren", U32),
    MEMBER(budget.own, "own", U32),
    MEMBER(budget.no_commit, "commitless", U32),
    MEMBER(budget.kind, "budget_kind", ENUM),
    MEMBER(budget.step, "budget_step", U64),
    MEMBER(budget.phase, "budget_phase", TEXT),
    MEMBER(budget.used, "budget_used", U32),
    FIELD(fsm, damage_suspected, BOOLEAN),
    MEMBER(uncounted, "spared", BOOLEAN),
    MEMBER(numeric.seen, "numeric_seen", BOOLEAN),
    MEMBER(numeric.step, "numeric_step", U64),
    MEMBER(numeric.node, "numeric_node", TEXT),
    FIELD(fsm, tried_step, U64),
    FIELD(fsm, tried_again, U32),
    MEMBER(due.stay_step, "stay_step", U64),
    MEMBER(due.saved_wall, "saved_wall", I64),
    MEMBER(due.cost_us, "cost_us", I64),
    MEMBER(due.write_ms, "write_ms", I64),
    MEMBER(due.interval_ms, "interval_ms", I64),
    FIELD(fsm, failures, U32),
    FIELD(fsm, state_bytes, U64),
    MEMBER(store_full.refused, "refused", U64),
    MEMBER(store_full.consecutive, "refused_row", U32),
    MEMBER(store_full.reason, "refused_reason", TEXT),
    FIELD(fsm, swept, U32),
    MEMBER(accounts.train_ms, "train_ms", I64),
    FIELD(fsm, unstarted_ms, I64),
    FIELD(fsm, recoveries, U32),
    FIELD(fsm, since_state, ENUM),
    FIELD(fsm, since_wall, I64),
    FIELD(fsm, submitted_wall, I64),
    FIELD(fsm, started_wall, I64),
    FIELD(fsm, ended_wall, I64),
    FIELD(fsm, token, TEXT),
    FIELD(fsm, token_before, TEXT),
    FIELD(fsm, reason, TEXT),
    FIELD(fsm, final_digest, TEXT),
    MEMBER(store_id, "store_mark", TEXT),
    MEMBER(config.ranks, "workers", U32),
    FIELD(fsm, resizes, BOOLEAN),
    FIELD(fsm, size, U32),
    FIELD(fsm, count, U32),
    MEMBER(spares.token, "token_spare", TEXT),
    MEMBER(spares.number, "number_next", U32),
    MEMBER(balance.by_speed, "by_speed", BOOLEAN),
    MEMBER(audit.good_step, "good_step", U64),
    MEMBER(audit.generation, "audit_generation", U32),
    MEMBER(audit.weight, "audit_row", U32),
    MEMBER(audit.found, "audit_found", U64),
    MEMBER(audit.sure, "audit_sure", U64),
};

static const struct json_field fault_fields[] = {
    FIELD(fsm_fault, kind, ENUM),       FIELD(fsm_fault, rank, U32),
    FIELD(fsm_fault, step, U64),        FIELD(fsm_fault, outside, BOOLEAN),
    FIELD(fsm_fault, phase, TEXT),      FIELD(fsm_fault, message, TEXT),
    FIELD(fsm_fault, of_node, BOOLEAN), FIELD(fsm_fault, shard, U32),
    FIELD(fsm_fault, waits, BOOLEAN),   FIELD(fsm_fault, good_step, U64),
};

#define PART(part, name)                                                                           \
    {                                                                                              \
        name, offsetof(struct recovery, ms[RECOVERY_##part]), sizeof(int64_t), FIELD_I64           \
    }

static const struct json_field recovery_fields[] = {
    FIELD(recovery, state, ENUM),
    FIELD(recovery, kind, ENUM),
    FIELD(recovery, ended, U32),
    FIELD(recovery, generation, U32),
    FIELD(recovery, fault, U32),
    FIELD(recovery, rank, U32),
    FIELD(recovery, node, TEXT),
    FIELD(recovery, phase, TEXT),
    FIELD(recovery, message, TEXT),
    FIELD(recovery, mark, U64),
    FIELD(recovery, step, U64),
    FIELD(recovery, wall_ms, I64),
    FIELD(recovery, booked_ms, I64),
    PART(DETECT, "detect_ms"),
    PART(END, "end_ms"),
    PART(WAIT, "wait_ms"),
    PART(FORM, "form_ms"),
    PART(RESTORE, "restore_ms"),
    PART(REPLAY, "replay_ms"),
};

static const struct json_field exclusion_fields[] = {
    FIELD(exclusion, node, TEXT), FIELD(exclusion, why, ENUM),  FIELD(exclusion, kind, U32),
    FIELD(exclusion, since, I64), FIELD(exclusion, agent, U64),
};

static const struct json_field rank_fields[] = {
    FIELD(fsm_rank, node, TEXT),
    FIELD(fsm_rank, slot, U32),
    FIELD(fsm_rank, gone, BOOLEAN),
    FIELD(fsm_rank, holder, U32),
};

static const struct json_field announced_fields[] = {
    FIELD(fsm_announced, step, U64),
    FIELD(fsm_announced, exit, BOOLEAN),
};

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

/* Enums are journalled as numbers. */
_Static_assert(sizeof(enum fsm_state) == sizeof(uint32_t), "an enum is read as 32 bits");

/* ---- lists ---- */

static json_t *encode_all(const void *objects, size_t size, size_t n,
                          const struct json_field *fields, size_t count)
{
    json_t *out = json_array();
    for (size_t i = 0; out != NULL && i < n; i++) {
        json_t *one = fields_encode((const char *)objects + i * size, fields, count);
        if (json_array_append_new(out, one) != 0) {
            json_decref(out);
            out = NULL;
        }
    }
    return out;
}

static bool decode_all(const json_t *in, void *objects, size_t size, size_t n_max,
                       const struct json_field *fields, size_t count)
{
    if (!json_is_array(in) || json_array_size(in) > n_max)
        return false;
    for (size_t i = 0; i < json_array_size(in); i++) {
        if (!fields_decode(json_array_get(in, i), (char *)objects + i * size, fields, count))
            return false;
    }
    return true;
}

static const struct json_field number_fields[] = { { "n", 0, sizeof(int64_t), FIELD_I64 } };
static const struct json_field holder_fields[] = { { "rank", 0, sizeof(uint32_t), FIELD_U32 } };
static const struct json_field name_fields[] = { { "name", 0, LIMIT_NAME, FIELD_TEXT } };

struct list {
    const char *name;
    size_t offset;                    /* in the machine; of ranks: of the pointer */
    size_t size, n_max, count_offset; /* count_offset 0: always n_max */
    const struct json_field *fields;
    size_t count;
};

json_t *fsm_encode_fault(const struct fsm_fault *fault)
{
    return fields_encode(fault, fault_fields, COUNT(fault_fields));
}

static const struct list lists[] = {
    { "cause", offsetof(struct fsm, cause), sizeof(struct fsm_fault), 1, 0, fault_fields,
      COUNT(fault_fields) },
    { "first_cause", offsetof(struct fsm, first_cause), sizeof(struct fsm_fault), 1, 0,
      fault_fields, COUNT(fault_fields) },
    { "recovery", offsetof(struct fsm, recovery), sizeof(struct recovery), 1, 0, recovery_fields,
      COUNT(recovery_fields) },
    { "announced", offsetof(struct fsm, due.announced), sizeof(struct fsm_announced),
      FSM_ANNOUNCED_MAX, 0, announced_fields, COUNT(announced_fields) },
    { "lost_ms", offsetof(struct fsm, accounts.lost_ms), sizeof(int64_t), FSM_LOST_COUNT, 0,
      number_fields, 1 },
    { "skip", offsetof(struct fsm, numeric.skip), sizeof(uint64_t), FSM_SKIPS_MAX,
      offsetof(struct fsm, numeric.skip_count), number_fields, 1 },
    { "suspects", offsetof(struct fsm, suspects), LIMIT_NAME, FSM_SUSPECTS_MAX,
      offsetof(struct fsm, suspect_count), name_fields, 1 },
};

static bool add_key(json_t *root, const char *name, json_t *value)
{
    return json_object_set_new(root, name, value) == 0;
}

/* Adds the ranks whose program has ended, if any has: their processes may be gone, and with them
 * who could say it again. */
static bool add_finished(json_t *root, const struct fsm *m)
{
    if (!fsm_some_finished(m))
        return true;
    json_t *out = json_array();
    bool ok = out != NULL;
    for (uint32_t i = 0; ok && i < m->size; i++)
        ok = !m->ranks[i].finished || json_array_append_new(out, json_integer(i)) == 0;
    if (ok)
        return add_key(root, "finished", out);
    json_decref(out);
    return false;
}

static json_t *encode_machine(const struct fsm *m)
{
    json_t *root = fields_encode(m, fsm_fields, COUNT(fsm_fields));
    bool ok = root != NULL;
    for (size_t i = 0; ok && i < COUNT(lists); i++) {
        const struct list *list = &lists[i];
        uint32_t n = (uint32_t)list->n_max;
        if (list->count_offset)
            memcpy(&n, (const char *)m + list->count_offset, sizeof(n));
        ok = add_key(
            root, list->name,
            encode_all((const char *)m + list->offset, list->size, n, list->fields, list->count));
    }
    ok = ok && add_key(root, "shunned",
                       encode_all(m->exclusions.list, sizeof(m->exclusions.list[0]),
                                  m->exclusions.count, exclusion_fields, COUNT(exclusion_fields)));
    ok = ok && add_finished(root, m);
    const struct fsm_restore *restore = &m->restore;
    ok = ok && (restore->holders == NULL ||
                add_key(root, "holders",
                        encode_all(restore->holders, sizeof(*restore->holders),
                                   restore->memory_size, holder_fields, 1)));
    if (ok)
        return root;
    json_decref(root);
    return NULL;
}

/* root: taken; NULL: no memory. */
static enum status print(json_t *root, struct buf *out)
{
    char *text = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (text == NULL)
        return ST_NO_MEMORY;
    enum status st = buf_append_text(out, text);
    free(text);
    return st;
}

enum status fsm_encode(const struct fsm *m, struct buf *out)
{
    return print(encode_machine(m), out);
}

/* The key is not in a journal of an older version. */
static bool decode_shunned(const json_t *root, struct fsm *m)
{
    const json_t *in = json_object_get(root, "shunned");
    if (in == NULL)
        return true;
    return exclusion_resize(&m->exclusions, (uint32_t)json_array_size(in)) &&
           decode_all(in, m->exclusions.list, sizeof(m->exclusions.list[0]), m->exclusions.count,
                      exclusion_fields, COUNT(exclusion_fields));
}

/* The key is there only if some have finished. */
static bool decode_finished(const json_t *root, struct fsm *m)
{
    const json_t *in = json_object_get(root, "finished");
    bool ok = in == NULL || json_is_array(in);
    for (size_t i = 0; ok && i < json_array_size(in); i++) {
        const json_int_t rank = json_integer_value(json_array_get(in, i));
        ok = rank >= 0 && rank < (json_int_t)m->size;
        if (ok)
            m->ranks[rank].finished = true;
    }
    return ok;
}

/* The ranks that hold copies of another number of ranks than there are. */
static bool decode_holders(const json_t *root, struct fsm *m)
{
    const json_t *in = json_object_get(root, "holders");
    struct fsm_restore *restore = &m->restore;
    if (in == NULL)
        return restore->memory_size <= fsm_capacity(m); /* the holders are with the ranks */
    if (restore->memory_size > LIMIT_RANKS || restore->memory_size == 0 ||
        json_array_size(in) != restore->memory_size)
        return false;
    restore->holders = calloc(restore->memory_size, sizeof(*restore->holders));
    return restore->holders != NULL && decode_all(in, restore->holders, sizeof(*restore->holders),
                                                  restore->memory_size, holder_fields, 1);
}

/* The key is in a journal of an older version. */
static bool decode_ranks(const json_t *root, struct fsm *m)
{
    const json_t *in = json_object_get(root, "ranks");
    return in == NULL ||
           decode_all(in, m->ranks, sizeof(m->ranks[0]), m->size, rank_fields, COUNT(rank_fields));
}

static bool is_recovery(const struct recovery *r)
{
    return r->state <= RECOVERY_CUT && r->kind < RECOVERY_KINDS;
}

static bool decode_machine(const json_t *root, struct fsm *m)
{
    if (!json_object_get(root, "state") || !fields_decode(root, m, fsm_fields, COUNT(fsm_fields)))
        return false;
    for (size_t i = 0; i < COUNT(lists); i++) {
        const struct list *list = &lists[i];
        const json_t *in = json_object_get(root, list->name);
        if (in == NULL)
            continue;
        if (!decode_all(in, (char *)m + list->offset, list->size, list->n_max, list->fields,
                        list->count))
            return false;
        uint32_t n = (uint32_t)json_array_size(in);
        if (list->count_offset)
            memcpy((char *)m + list->count_offset, &n, sizeof(n));
    }
    if (m->config.ranks < 1 || m->config.ranks > m->config.most || m->size < 1 ||
        m->size > m->config.most || m->count < m->size || m->count > fsm_capacity(m))
        return false;
    if (m->config.min_follows)
        m->config.min = m->config.ranks;
    return decode_ranks(root, m) && decode_shunned(root, m) && decode_holders(root, m) &&
           decode_finished(root, m) && m->state > FSM_NONE && m->state <= FSM_KILLED &&
           m->ending.to <= FSM_KILLED && is_recovery(&m->recovery);
}

size_t fsm_encoded_ranks(const char *text)
{
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    size_t count = json_array_size(json_object_get(root, "ranks"));
    const size_t places = (size_t)json_integer_value(json_object_get(root, "count"));
    const size_t asked = (size_t)json_integer_value(json_object_get(root, "workers"));
    count = count > places ? count : places;
    count = count > asked ? count : asked;
    json_decref(root);
    return count;
}

enum status fsm_decode(struct fsm *m, const char *text)
{
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    if (root == NULL)
        return ST_CORRUPT;
    m->swept = UINT32_MAX; /* no key of an older version: leftovers of such a job stay */
    bool ok = decode_machine(root, m);
    json_decref(root);
    m->gone_count = 0;
    for (uint32_t i = 0; ok && i < m->count; i++) {
        m->gone_count += i < m->size && m->ranks[i].gone;
        m->ranks[i].birth = m->generation; /* of an older version's; else the rows say it */
    }
    m->dirty = false;
    return ok ? ST_OK : ST_CORRUPT;
}

/* ---- the record of a recovery ---- */

enum status fsm_encode_recovery(const struct recovery *r, struct buf *out)
{
    return print(fields_encode(r, recovery_fields, COUNT(recovery_fields)), out);
}

enum status fsm_decode_recovery(struct recovery *r, const char *text)
{
    *r = (struct recovery){ .rank = RECOVERY_ALL_RANKS };
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    const bool ok = fields_decode(root, r, recovery_fields, COUNT(recovery_fields));
    json_decref(root);
    return ok && is_recovery(r) ? ST_OK : ST_CORRUPT;
}

/* ---- rows of ranks ---- */

struct fsm_rank_row fsm_rank_row(const struct fsm *m, uint32_t rank)
{
    CHECK(rank < fsm_capacity(m));
    const struct fsm_rank *of = &m->ranks[rank];
    struct fsm_rank_row row = { .slot = of->slot,
                                .holder = of->holder,
                                .birth = of->birth,
                                .number = of->number,
                                .lanes = of->lanes,
                                .lane_us = of->lane_us,
                                .stage = of->stage,
                                .gone = of->gone,
                                .parked = of->parked,
                                .source = of->source };
    memcpy(row.node, of->node, sizeof(row.node));
    return row;
}

bool fsm_rank_row_same(const struct fsm_rank_row *a, const struct fsm_rank_row *b)
{
    return a->slot == b->slot && a->holder == b->holder && a->gone == b->gone &&
           a->birth == b->birth && a->number == b->number && a->parked == b->parked &&
           a->source == b->source && a->lanes == b->lanes && a->lane_us == b->lane_us &&
           a->stage == b->stage && strcmp(a->node, b->node) == 0;
}

void fsm_load_rank(struct fsm *m, uint32_t rank, const struct fsm_rank_row *row)
{
    CHECK(rank < fsm_capacity(m));
    if (rank >= m->count)
        return; /* a place that isn't used any more */
    struct fsm_rank *of = &m->ranks[rank];
    m->gone_count -= rank < m->size && of->gone;
    m->gone_count += rank < m->size && row->gone;
    memcpy(of->node, row->node, sizeof(of->node));
    of->slot = row->slot;
    of->holder = row->holder;
    of->birth = row->birth > 0 ? row->birth : m->generation; /* 0: of an older version */
    of->number = row->number;
    of->lanes = row->lanes;
    of->lane_us = row->lane_us;
    of->stage = row->stage < LIMIT_STAGES ? row->stage : 0;
    of->parked = row->parked;
    of->source = row->source;
    of->gone = row->gone;
}
