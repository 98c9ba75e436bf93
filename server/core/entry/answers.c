/* Answers: of the checkpoint store, about tasks that are done; of agents, about paths between
 * nodes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "server/core/internal.h"

static bool take_metrics(void *arg, uint64_t step, const void *data, size_t size)
{
    struct machine_ckpt *ckpt = arg;
    Cairn__V1__MetricRow *row = cairn__v1__metric_row__unpack(NULL, size, data);
    if (!row)
        return false;
    if (step == ckpt->step)
        ckpt->loss = (double)row->loss;
    if (row->eval__case == CAIRN__V1__METRIC_ROW__EVAL__EVAL) {
        ckpt->eval_loss = row->eval->loss;
        ckpt->eval_accuracy = row->eval->accuracy;
    }
    cairn__v1__metric_row__free_unpacked(row, NULL);
    return false;
}

/* Adds the metrics of the checkpoint's step: rank 0 sent its row before it began to save. */
static void note_metrics(struct core *core, struct core_job *job, struct machine_ckpt *ckpt)
{
    struct journal *journal = core->options.journal;
    ckpt->loss = ckpt->eval_loss = ckpt->eval_accuracy = __builtin_nan("");
    core_flush_rows(core, job);
    enum status st = journal_each_metric(journal, job->id, ckpt->step, 1, take_metrics, ckpt);
    if (st == ST_OK)
        st = journal_last_eval(journal, job->id, ckpt->step, take_metrics, ckpt);
    if (st != ST_OK)
        core_fail(core, st, "reading the metrics of a checkpoint");
    for (size_t i = 0; i < job->rows.count; i++) { /* rows that can't be journalled now */
        const struct core_row *row = &job->rows.list[i];
        if (row->step == ckpt->step || (row->eval && row->step < ckpt->step))
            (void)take_metrics(ckpt, row->step, row->data, row->size);
    }
}

void core_store_done(struct core *core, struct store_task *task)
{
    struct core_job *job = core_job_at(core, task->job);
    if (job && job->tasks > 0)
        job->tasks--;
    core->retire_needed = true;
    if (job && core->failed == ST_OK) {
        struct machine_event event = core_event(core, MACHINE_EV_STORE);
        event.answer = (struct machine_answer){ .task = task->kind,
                                                .step = task->step,
                                                .shard = task->shard,
                                                .generation = task->generation,
                                                .retry = task->retry,
                                                .status = task->status,
                                                .message = task->message,
                                                .away = task->away,
                                                .mark = task->mark,
                                                .record = task,
                                                .swept = task->swept };
        struct machine_ckpt ckpt = { .step = task->step,
                                     .generation = task->generation,
                                     .retry = task->retry,
                                     .shards = task->shards,
                                     .state = MACHINE_CKPT_GOOD,
                                     .bytes = task->bytes,
                                     .raw_bytes = task->raw_bytes,
                                     .wall_ms = task->wall_ms,
                                     .parent_step = task->parent.step,
                                     .parent_generation = (uint32_t)task->parent.generation };
        (void)snprintf(ckpt.digest, sizeof ckpt.digest, "%s", task->digest);
        if (task->kind == MACHINE_TASK_PUBLISH)
            note_metrics(core, job, &ckpt);
        event.answer.ckpt = task->kind == MACHINE_TASK_PUBLISH ? &ckpt : NULL;
        (void)core_apply(core, job, &event);
    }
    store_task_free(task);
    core_settle(core);
}

/*
 * ---- paths between nodes ----
 *
 * A path is suspected if a generation of two or more nodes got stuck or failed without another
 * cause (MACHINE_ACT_SUSPECT). Until that is decided its job gets no slots. Then either the path is
 * known to be cut, and no job gets both nodes, or the failure is judged as ever.
 */

const char *core_pairs_hinder(const struct core *core, const struct core_node *node)
{
    if (!node->known)
        return "no agent of that name is here";
    if (!node->conn || node->silent || core_node_held(core, node))
        return "its agent isn't heard now";
    return node->probe_port == 0 ? "its agent found no port to listen at" : NULL;
}

static bool can_probe(const struct core *core, const struct core_node *node)
{
    return node && !core_pairs_hinder(core, node);
}

/* Tells jobs what became of a path: those that run across it, or failed across it; jobs that wait
 * are looked at again. */
static void take_news(struct core *core, enum paths_news news, const struct path *path)
{
    struct reason text;
    if (news == PATHS_NOTHING)
        return;
    core->schedule_needed = true;
    if (news == PATHS_HEALED) {
        LOG_INFO(core->options.log, "%s and %s reach each other again", path->node[0],
                 path->node[1]);
    }
    if (news != PATHS_CUT)
        return;
    paths_describe(path, &text);
    LOG_WARN(core->options.log, "%s", text.text);
    for (size_t j = core->live.count; j > 0; j--) { /* whoever is over by this leaves the list */
        struct core_job *job = core->live.list[j - 1].value;
        if (job->m.state == MACHINE_PLACING && core_part_spares(core, job))
            continue; /* it is placed again */
        if (!core_has_node(job, path->node[0]) || !core_has_node(job, path->node[1]))
            continue;
        struct machine_event event = core_event(core, MACHINE_EV_PATH);
        event.path.message = text.text;
        (void)core_apply(core, job, &event);
    }
}

void core_paths_tick(struct core *core)
{
    const int64_t now = core_now(core);
    enum paths_news news = PATHS_NOTHING;
    struct path was;
    do {
        news = paths_tick(&core->paths, now, &was);
        take_news(core, news, &was);
    } while (news != PATHS_NOTHING);
    for (struct path *path = paths_due(&core->paths, now); path;
         path = paths_due(&core->paths, now)) {
        const struct core_node *one = core_node_at(core, path->node[0]);
        const struct core_node *other = core_node_at(core, path->node[1]);
        if (!can_probe(core, one) || !can_probe(core, other)) {
            was = *path;
            take_news(core, paths_give_up(&core->paths, path, now), &was);
            continue;
        }
        const uint64_t round = paths_begin(&core->paths, path, now);
        core_ask_probe(core, one, other, round);
        core_ask_probe(core, other, one, round);
    }
}

static void take_answer(struct core *core, const struct core_node *node,
                        const Cairn__V1__ProbeResult *result)
{
    const struct pairs_answer answer = { .id = result->id,
                                         .reached = result->reached,
                                         .reach_us = result->reach_us,
                                         .bytes = result->bytes,
                                         .took_us = result->took_us,
                                         .saw = result->saw };
    pairs_answered(&core->pairs, node->name, &answer);
    core_pairs_tick(core);
}

void core_paths_answer(struct core *core, const struct core_node *node,
                       const Cairn__V1__ProbeResult *result)
{
    struct path was;
    if (result->id > PAIRS_IDS) {
        take_answer(core, node, result);
        return;
    }
    const enum paths_news news = paths_answer(&core->paths, node->name, result->id, result->reached,
                                              result->saw, core_now(core), &was);
    take_news(core, news, &was);
}

void core_paths_hello(struct core *core, struct core_node *node, const Cairn__V1__AgentHello *hello)
{
    node->probe_port = hello->probe_port <= UINT16_MAX ? hello->probe_port : 0;
    paths_forget_rounds(&core->paths, node->name);
}

/* ---- a check of pairs that a person asked for ---- */

/* Picks the nodes, in the order of the list. Errors: reason says what is wrong with them. */
static enum status pick_nodes(struct core *core, const char *const *names, size_t count,
                              const char **out, uint32_t *out_count, struct reason *reason)
{
    *out_count = 0;
    for (size_t i = 0; i < (count ? count : core->node_count); i++) {
        const struct core_node *node = count ? core_node_at(core, names[i]) : core->nodes[i];
        if (!node) {
            reason_set(reason, "there is no node '%.100s'", names[i]);
            return ST_NOT_FOUND;
        }
        bool twice = false;
        for (uint32_t j = 0; j < *out_count && !twice; j++)
            twice = strcmp(out[j], node->name) == 0;
        const char *hinder = core_pairs_hinder(core, node);
        if (hinder && count) {
            reason_set(reason, "%.100s can't be tried: %s", node->name, hinder);
            return ST_REFUSED;
        }
        if (!hinder && !twice)
            out[(*out_count)++] = node->name;
    }
    if (*out_count >= 2)
        return ST_OK;
    reason_set(reason, "a path has two ends, and %u node%s can be asked now", *out_count,
               *out_count == 1 ? "" : "s");
    return ST_REFUSED;
}

enum status core_pairs_begin(struct core *core, const char *const *names, size_t count, bool all,
                             struct reason *reason)
{
    auto_free const char **picked = calloc(LIMIT_NODES, sizeof *picked);
    uint32_t picked_count;
    if (!picked)
        return ST_NO_MEMORY;
    enum status st = pick_nodes(core, names, count, picked, &picked_count, reason);
    if (st == ST_OK)
        st = pairs_open(&core->pairs, picked, picked_count, all);
    if (st == ST_FULL) {
        reason_set(reason, "all pairs of %u nodes take too long: name %u nodes or fewer",
                   picked_count, PAIRS_NODES_MAX);
        return ST_REFUSED;
    }
    if (st == ST_OK) {
        core->options.random(core->options.random_arg, core->pairs.token, sizeof core->pairs.token);
        core_pairs_tick(core);
    }
    return st;
}

/* Orders the pair's agents to probe. An agent that is gone meanwhile gives no answer. */
static void order_pair(struct core *core, const struct pairs_try *due)
{
    const struct core_node *node[2] = { core_node_at(core, core->pairs.names[due->node[0]]),
                                        core_node_at(core, core->pairs.names[due->node[1]]) };
    for (int i = 0; i < 2; i++) {
        Cairn__V1__Probe probe = CAIRN__V1__PROBE__INIT;
        if (due->answered[i] || !can_probe(core, node[i]) || !can_probe(core, node[!i]))
            continue;
        probe.id = due->id;
        probe.token =
            (ProtobufCBinaryData){ .len = PAIRS_TOKEN, .data = (uint8_t *)core->pairs.token };
        if (due->phase != PAIRS_REACH) {
            probe.measure_ms = PAIRS_MEASURE_MS;
            probe.measure_bytes = PAIRS_MEASURE_BYTES;
        }
        core_send_probe(core, node[i], node[!i], &probe);
    }
}

void core_pairs_tick(struct core *core)
{
    const int64_t now = core_now(core);
    pairs_tick(&core->pairs, now);
    for (const struct pairs_try *due = pairs_due(&core->pairs, now); due;
         due = pairs_due(&core->pairs, now))
        order_pair(core, due);
}

const struct pairs *core_pairs(const struct core *core)
{
    return &core->pairs;
}

bool core_pairs_fetch(struct core *core, struct pairs_try *out)
{
    return pairs_fetch(&core->pairs, out);
}

void core_pairs_end(struct core *core)
{
    pairs_close(&core->pairs);
}
