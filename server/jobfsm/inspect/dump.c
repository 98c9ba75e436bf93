#include "server/jobfsm/inspect/dump.h"

#include <string.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "server/containers/fields.h"
#include "server/jobfsm/inspect/blocked.h"
#include "server/jobfsm/moves.h"
#include "server/jobfsm/persist.h"

#define MEMBER(member, kind) FIELD_NAMED(fsm, member, #member, kind)
#define COUNT(table)         (sizeof(table) / sizeof((table)[0]))

/* Times of the coordinator's clock; 0: none. */
#define TIME(member)                                                                               \
    {                                                                                              \
#member, offsetof(struct fsm, member)                                                      \
    }

struct moment {
    const char *name;
    size_t offset;
};

static const struct moment moments[] = {
    TIME(ending.hard_at),
    TIME(ending.ended_at),
    TIME(ending.again_at),
    TIME(ending.survivors_until),
    TIME(due.from),
    TIME(due.exit_at),
    TIME(spares.retry_at),
    TIME(spares.again_at),
    TIME(spares.ready_at),
    TIME(audit.told_at),
    TIME(balance.window_at),
    TIME(balance.moved_at),
    TIME(balance.slow_at),
    TIME(accounts.at),
    TIME(read_back.since),
    TIME(read_back.moved_at),
    TIME(started_at),
    TIME(ran_from),
    TIME(awaits_saves_at),
    TIME(awaits_asked_at),
    TIME(progress_at),
    TIME(stepped_at),
    TIME(suspected_at),
    TIME(probe_at),
    TIME(watched_at),
    TIME(grace_until),
    TIME(retry_at),
    TIME(window_until),
    TIME(step_at),
    TIME(step_noted_at),
    TIME(balance.replaced_at),
};

static const struct json_field fields[] = {
    MEMBER(dirty, BOOLEAN),
    MEMBER(due.moves, BOOLEAN),
    MEMBER(due.passes, U32),
    MEMBER(store_full.unsaved, BOOLEAN),
    MEMBER(store_full.late_reported, BOOLEAN),
    MEMBER(spares.failures, U32),
    MEMBER(spares.moves, U32),
    MEMBER(audit.passed, U64),
    MEMBER(balance.due, BOOLEAN),
    MEMBER(balance.worse, U32),
    MEMBER(balance.worse_from, U64),
    MEMBER(balance.slow, U32),
    MEMBER(balance.slow_number, U32),
    MEMBER(balance.held_up, BOOLEAN),
    MEMBER(balance.slow_from, U64),
    MEMBER(balance.saved_from, U64),
    MEMBER(accounts.stall_us, I64),
    MEMBER(unbooked_ms, I64),
    MEMBER(read_back.step, U64),
    MEMBER(read_back.generation, U32),
    MEMBER(read_back.disputed, U32),
    MEMBER(read_back.in_vain, U32),
    MEMBER(read_back.due, BOOLEAN),
    MEMBER(copy_count, U64),
    MEMBER(copy_capacity, U64),
    MEMBER(catalog_count, U64),
    MEMBER(catalog_capacity, U64),
    MEMBER(sweep_asked, U32),
    MEMBER(sweep_failed, BOOLEAN),
    MEMBER(probed, BOOLEAN),
    MEMBER(probing, BOOLEAN),
    MEMBER(probe_failed, BOOLEAN),
    MEMBER(damage_shard, U32),
    MEMBER(gone_count, U32),
    MEMBER(damage_waited, BOOLEAN),
    MEMBER(base_refused, BOOLEAN),
    MEMBER(mark_mismatch, BOOLEAN),
    MEMBER(replay_until, U64),
    MEMBER(step_noted, U64),
    MEMBER(step_ms, DOUBLE),
    MEMBER(usual_step_ms, DOUBLE),
    MEMBER(config.ranks, U32),
    MEMBER(config.most, U32),
    MEMBER(config.min, U32),
    MEMBER(config.spares, U32),
    MEMBER(config.lanes, U32),
    MEMBER(config.stages, U32),
    MEMBER(config.silent_ms, I64),
    MEMBER(config.hang_ms, I64),
    MEMBER(config.program, BOOLEAN),
    MEMBER(config.saves_nothing, BOOLEAN),
    MEMBER(config.budget, U32),
    MEMBER(config.grace_ms, I64),
    MEMBER(config.come_ms, I64),
};

static const struct json_field rank_fields[] = {
    FIELD(fsm_rank, node, TEXT),
    FIELD(fsm_rank, slot, U32),
    FIELD(fsm_rank, birth, U32),
    FIELD(fsm_rank, number, U32),
    FIELD(fsm_rank, gone, BOOLEAN),
    FIELD(fsm_rank, parked, BOOLEAN),
    FIELD(fsm_rank, source, BOOLEAN),
    FIELD(fsm_rank, holder, U32),
    FIELD(fsm_rank, lanes, U32),
    FIELD(fsm_rank, lane_us, U32),
    FIELD(fsm_rank, stage, U32),
    FIELD(fsm_rank, pid, U32),
    FIELD(fsm_rank, started, BOOLEAN),
    FIELD(fsm_rank, session, BOOLEAN),
    FIELD(fsm_rank, joined, BOOLEAN),
    FIELD(fsm_rank, assigned, BOOLEAN),
    FIELD(fsm_rank, ready, BOOLEAN),
    FIELD(fsm_rank, finished, BOOLEAN),
    FIELD(fsm_rank, ended, BOOLEAN),
    FIELD(fsm_rank, parked_state.complete, BOOLEAN),
    FIELD(fsm_rank, parked_state.step, U64),
    FIELD(fsm_rank, parked_state.computed_by, U32),
    FIELD(fsm_rank, parked_state.part, U32),
    FIELD(fsm_rank, parked_state.parts, U32),
    FIELD(fsm_rank, differs, BOOLEAN),
    FIELD(fsm_rank, at_store, BOOLEAN),
    FIELD(fsm_rank, save_failed, BOOLEAN),
    FIELD(fsm_rank, agent, ENUM),
    FIELD(fsm_rank, step, U64),
    FIELD(fsm_rank, counter, U64),
    FIELD(fsm_rank, saving, U64),
    FIELD(fsm_rank, phase, TEXT),
    FIELD(fsm_rank, carries, U32),
    FIELD(fsm_rank, timed.steps, U64),
    FIELD(fsm_rank, timed.us, U64),
    FIELD(fsm_rank, step_us, U32),
    FIELD(fsm_rank, read_bytes, U64),
    FIELD(fsm_rank, read_done, BOOLEAN),
};

#define RANK_TIME(member)                                                                          \
    {                                                                                              \
#member, offsetof(struct fsm_rank, member)                                                 \
    }

static const struct moment rank_moments[] = {
    RANK_TIME(ended_at),   RANK_TIME(heard_at),   RANK_TIME(lost_at),
    RANK_TIME(missing_at), RANK_TIME(counter_at), RANK_TIME(saving_at),
};

static const struct json_field save_fields[] = {
    FIELD(fsm_save, step, U64),         FIELD(fsm_save, generation, U32),
    FIELD(fsm_save, try_number, U32),   FIELD(fsm_save, failures, U32),
    FIELD(fsm_save, removing, BOOLEAN), FIELD(fsm_save, wanted, BOOLEAN),
    FIELD(fsm_save, base_step, U64),    FIELD(fsm_save, base_generation, U32),
    FIELD(fsm_save, message, TEXT),
};

static const struct json_field ckpt_fields[] = {
    FIELD(fsm_ckpt, step, U64),
    FIELD(fsm_ckpt, generation, U32),
    FIELD(fsm_ckpt, try_number, U32),
    FIELD(fsm_ckpt, shards, U32),
    FIELD(fsm_ckpt, state, ENUM),
    FIELD(fsm_ckpt, verified, BOOLEAN),
    FIELD(fsm_ckpt, verifying, BOOLEAN),
    FIELD(fsm_ckpt, suspected, BOOLEAN),
    FIELD(fsm_ckpt, reading, U32),
    FIELD(fsm_ckpt, reads, U32),
    FIELD(fsm_ckpt, read_status, ENUM),
    FIELD(fsm_ckpt, removing, BOOLEAN),
    FIELD(fsm_ckpt, best, BOOLEAN),
    FIELD(fsm_ckpt, retained, BOOLEAN),
    FIELD(fsm_ckpt, bytes, U64),
    FIELD(fsm_ckpt, parent_step, U64),
    FIELD(fsm_ckpt, parent_generation, U32),
    FIELD(fsm_ckpt, digest, TEXT),
};

static const struct json_field copy_fields[] = {
    FIELD(fsm_copy, step, U64), FIELD(fsm_copy, generation, U32), FIELD(fsm_copy, rank, U32),
    FIELD(fsm_copy, size, U32), FIELD(fsm_copy, holder, U32),
};

/* ---- parts ---- */

static bool add(json_t *to, json_t *value)
{
    return value != NULL && json_array_append_new(to, value) == 0;
}

/* Adds those times that are set, from now on. */
static bool put_moments(json_t *to, const void *object, const struct moment *list, size_t count,
                        int64_t now)
{
    bool ok = true;
    for (size_t i = 0; ok && i < count; i++) {
        int64_t at;
        memcpy(&at, (const char *)object + list[i].offset, sizeof(at));
        ok = at == 0 || fields_put(to, list[i].name, json_integer(at - now));
    }
    return ok;
}

static json_t *dump_rank(const struct fsm *m, uint32_t index, int64_t now)
{
    const struct fsm_rank *rank = &m->ranks[index];
    json_t *out = fields_encode(rank, rank_fields, COUNT(rank_fields));
    json_t *flags = json_array();
    bool ok = out != NULL && flags != NULL &&
              fields_put(out, "worker", json_string(fsm_worker_name(fsm_worker(rank)))) &&
              put_moments(out, rank, rank_moments, COUNT(rank_moments), now);
    for (int i = 0; ok && i < FSM_SAVES_MAX; i++)
        ok = add(flags, json_integer(rank->save_flags[i]));
    ok = ok && json_object_set(out, "save_flags", flags) == 0;
    json_decref(flags);
    if (!ok)
        json_decref(out);
    return ok ? out : NULL;
}

static json_t *dump_save(const struct fsm_save *save, int64_t now)
{
    json_t *out = fields_encode(save, save_fields, COUNT(save_fields));
    const bool ok =
        out != NULL && fields_put(out, "state", json_string(fsm_save_state_name(save->state))) &&
        fields_put(out, "since", json_integer(save->since - now)) &&
        (save->retry_at == 0 || fields_put(out, "retry_at", json_integer(save->retry_at - now)));
    if (!ok)
        json_decref(out);
    return ok ? out : NULL;
}

/* The newest of a list. */
static json_t *dump_list(const void *list, size_t size, size_t count, const struct json_field *of,
                         size_t fields_of)
{
    json_t *out = json_array();
    bool ok = out != NULL;
    for (size_t i = count > FSM_DUMP_LIST ? count - FSM_DUMP_LIST : 0; ok && i < count; i++)
        ok = add(out, fields_encode((const char *)list + i * size, of, fields_of));
    if (!ok)
        json_decref(out);
    return ok ? out : NULL;
}

static json_t *dump_lost(const struct fsm *m)
{
    json_t *out = json_object();
    bool ok = out != NULL;
    for (int i = 0; ok && i < FSM_LOST_COUNT; i++) {
        ok = fields_put(out, fsm_lost_name((enum fsm_lost)i), json_integer(m->accounts.lost_ms[i]));
    }
    if (!ok)
        json_decref(out);
    return ok ? out : NULL;
}

/* ---- all ---- */

/* What the journal would get, without the tokens. */
static json_t *dump_journalled(const struct fsm *m)
{
    auto_buf struct buf text;
    buf_init(&text, (size_t)4 * 1024 * 1024);
    if (fsm_encode(m, &text) != ST_OK)
        return NULL;
    json_t *out = json_loadb(text.data, text.size, 0, NULL);
    const char *const tokens[] = { "token", "token_before", "token_spare" };
    for (size_t i = 0; out != NULL && i < COUNT(tokens); i++)
        (void)json_object_del(out, tokens[i]);
    return out;
}

static bool put_blocked(json_t *to, const struct fsm *m, int64_t now)
{
    struct fsm_blocked blocked;
    fsm_blocked(m, now, &blocked);
    return fields_put(to, "blocked_by", json_string(fsm_block_name(blocked.by))) &&
           fields_put(to, "blocked", json_string(blocked.text));
}

static json_t *dump_now(const struct fsm *m, int64_t now)
{
    json_t *out = fields_encode(m, fields, COUNT(fields));
    const bool ok =
        out != NULL && put_moments(out, m, moments, COUNT(moments), now) &&
        fields_put(out, "gen", json_string(fsm_gen_name(fsm_gen(m)))) && put_blocked(out, m, now) &&
        fields_put(out, "deadline",
                   fsm_deadline(m) == INT64_MAX ? json_null()
                                                : json_integer(fsm_deadline(m) - now)) &&
        fields_put(out, "candidate", fsm_encode_fault(&m->candidate)) &&
        fields_put(out, "lost_ms", dump_lost(m)) &&
        fields_put(out, "copies",
                   dump_list(m->copies, sizeof(*m->copies), m->copy_count, copy_fields,
                             COUNT(copy_fields)));
    if (!ok)
        json_decref(out);
    return ok ? out : NULL;
}

json_t *fsm_dump(const struct fsm *m, int64_t now)
{
    json_t *out = json_object(), *ranks = json_array(), *saves = json_array();
    bool ok = out != NULL && ranks != NULL && saves != NULL &&
              fields_put(out, "id", json_string(m->id)) &&
              fields_put(out, "state", json_string(fsm_state_name(m->state))) &&
              fields_put(out, "journalled", dump_journalled(m)) &&
              fields_put(out, "now", dump_now(m, now));
    for (uint32_t i = 0; ok && i < m->count; i++)
        ok = add(ranks, dump_rank(m, i, now));
    for (int i = 0; ok && i < FSM_SAVES_MAX; i++)
        ok = add(saves, dump_save(&m->saves[i], now));
    ok = ok && json_object_set(out, "ranks", ranks) == 0 &&
         json_object_set(out, "saves", saves) == 0 &&
         fields_put(out, "checkpoints",
                    dump_list(m->catalog, sizeof(*m->catalog), m->catalog_count, ckpt_fields,
                              COUNT(ckpt_fields)));
    json_decref(ranks);
    json_decref(saves);
    if (!ok)
        json_decref(out);
    return ok ? out : NULL;
}
