/*
 * An event, from the state machine over the journal to the actions. The one place where state is
 * written, and the one place where actions leave: in this order.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/fault.h"
#include "server/core/internal.h"
#include "server/machine/codec.h"

#define STATE_BYTES_MAX ((size_t)4 * 1024 * 1024)

struct job_event core_event(const struct core *core, enum job_event_kind kind)
{
    return (struct job_event){ .kind = kind,
                               .now = core_now(core),
                               .wall = clock_wall_ms(core->options.clock),
                               .rank = JM_ALL };
}

/* ---- journal ---- */

static enum status record_generation(struct core *core, struct core_job *job, int64_t wall)
{
    struct job_machine *m = &job->m;
    auto_buf struct buf nodes;
    buf_init(&nodes, (size_t)LIMIT_RANKS * LIMIT_NAME);
    for (uint32_t i = 0; i < m->config.ranks; i++) {
        enum status st = buf_printf(&nodes, "%s%s", i ? "," : "", m->ranks[i].node);
        if (st != ST_OK)
            return st;
    }
    struct journal_generation row = { .generation = m->generation,
                                      .begin_ms = wall,
                                      .restore_step = m->restore_step,
                                      .nodes = nodes.data ? nodes.data : "" };
    enum status st = journal_forget_kv(core->options.journal, job->id, m->generation);
    return st == ST_OK ? journal_put_generation(core->options.journal, job->id, &row) : st;
}

static enum status record_end(struct core *core, struct core_job *job, int64_t wall)
{
    struct job_machine *m = &job->m;
    struct journal_generation row = { .generation = m->generation,
                                      .end_ms = wall,
                                      .end_step = m->step_max,
                                      .cause = jm_fault_name(m->cause.kind),
                                      .message = m->cause.message };
    return journal_end_generation(core->options.journal, job->id, &row);
}

static enum status record_save(struct core *core, struct core_job *job, const struct jm_action *act,
                               int64_t wall)
{
    struct journal *journal = core->options.journal;
    struct journal_save row = { .step = act->step,
                                .generation = act->generation,
                                .state = act->value,
                                .wall_ms = wall,
                                .digest = "" };
    const struct jm_save *save = jm_find_open(&job->m, act->step, act->generation);
    if (save) {
        row.base_step = save->base_step;
        row.base_generation = save->base_generation;
    }
    if (act->value == SAVE_FREE)
        return journal_drop_save(journal, job->id, act->step, act->generation);
    if (act->value == SAVE_COMMITTING) {
        const struct store_task *task = core->checked;
        CHECK(task && task->step == act->step && task->generation == act->generation);
        row.wall_ms = task->wall_ms;
        row.manifest = task->manifest.data;
        row.manifest_size = task->manifest.size;
        row.digest = task->digest;
        row.bytes = task->bytes;
        row.raw_bytes = task->raw_bytes;
        row.shards = task->shards;
        row.parent_step = task->parent.step;
        row.parent_generation = (uint32_t)task->parent.generation;
    }
    enum status st = journal_put_save(journal, job->id, &row);
    if (st == ST_OK && act->value == SAVE_DROPPING)
        st = journal_drop_reports(journal, job->id, act->step, act->generation);
    return st;
}

static enum status record_report(struct core *core, struct core_job *job,
                                 const struct jm_action *act)
{
    CHECK(core->report);
    size_t size = cairn__v1__save_report__get_packed_size(core->report);
    uint8_t *data = malloc(size ? size : 1);
    if (!data)
        return ST_NO_MEMORY;
    (void)cairn__v1__save_report__pack(core->report, data);
    enum status st = journal_put_report(core->options.journal, job->id, act->step, act->generation,
                                        act->rank, data, size);
    free(data);
    return st;
}

static enum status record_event(struct core *core, struct core_job *job,
                                const struct jm_action *act, int64_t wall)
{
    struct log log = *core->options.log;
    log.job = job->id;
    log.generation = act->generation;
    LOG_INFO(&log, "%s: %s", act->text, act->message);
    struct journal_event row = { .wall_ms = wall,
                                 .generation = act->generation,
                                 .step = act->step,
                                 .kind = act->text,
                                 .message = act->message };
    return journal_put_event(core->options.journal, job->id, &row);
}

static enum status record_action(struct core *core, struct core_job *job,
                                 const struct jm_action *act, int64_t wall)
{
    if (act->kind == ACT_EVENT)
        return record_event(core, job, act, wall);
    if (act->kind == ACT_GEN_BEGIN)
        return record_generation(core, job, wall);
    if (act->kind == ACT_GEN_END)
        return record_end(core, job, wall);
    if (act->kind == ACT_SAVE_ROW)
        return record_save(core, job, act, wall);
    if (act->kind == ACT_REPORT_ROW)
        return record_report(core, job, act);
    if (act->kind != ACT_CKPT_ROW)
        return ST_OK;
    const struct jm_ckpt *ckpt = jm_find_ckpt(&job->m, act->step, act->generation);
    if (ckpt)
        return journal_put_ckpt(core->options.journal, job->id, ckpt);
    return journal_drop_ckpt(core->options.journal, job->id, act->step, act->generation);
}

static enum status record_rows(struct core *core, struct core_job *job)
{
    struct journal *journal = core->options.journal;
    for (size_t i = 0; i < job->rows.count; i++) {
        const struct core_row *row = &job->rows.list[i];
        enum status st =
            journal_put_metric(journal, job->id, row->step, row->eval, row->data, row->size);
        if (st != ST_OK)
            return st;
    }
    return job->rows.count > 0 ? journal_bound_metrics(journal, job->id) : ST_OK;
}

static enum status record_state(struct core *core, struct core_job *job)
{
    auto_buf struct buf state;
    buf_init(&state, STATE_BYTES_MAX);
    enum status st = job_encode(&job->m, &state);
    if (st != ST_OK)
        return st;
    return journal_put_state(core->options.journal, job->id, state.data);
}

static enum status record(struct core *core, struct core_job *job, int64_t wall)
{
    const struct jm_actions *actions = &core->actions;
    bool deciding = false;
    enum status st = journal_begin(core->options.journal);
    if (st == ST_OK)
        st = record_state(core, job);
    if (st == ST_OK)
        st = record_rows(core, job);
    for (size_t i = 0; st == ST_OK && i < actions->count; i++) {
        st = record_action(core, job, &actions->list[i], wall);
        if (actions->list[i].kind == ACT_SAVE_ROW && actions->list[i].value == SAVE_COMMITTING)
            deciding = true;
    }
    if (st != ST_OK)
        return st;
    fault_context(-1, job->m.generation, (int64_t)jm_step_now(&job->m));
    fault_point("coordinator.journal");
    if (deciding)
        fault_point("commit.record");
    st = journal_commit(core->options.journal);
    if (deciding)
        fault_point("commit.recorded");
    return st;
}

/* ---- metric rows ---- */

/* They are durable now: rank 0 may forget them. */
static void rows_done(struct core_job *job)
{
    uint64_t through = 0;
    if (job->rows.count == 0)
        return;
    for (size_t i = 0; i < job->rows.count; i++) {
        if (job->rows.list[i].step > through)
            through = job->rows.list[i].step;
        free(job->rows.list[i].data);
    }
    job->rows.count = 0;
    job->rows_version++;
    if (!job->metrics_from || job->ranks[0].conn != job->metrics_from)
        return;
    Cairn__V1__MetricAck ack = CAIRN__V1__METRIC_ACK__INIT;
    ack.through_step = through;
    Cairn__V1__TrainerOrder order = CAIRN__V1__TRAINER_ORDER__INIT;
    order.body_case = CAIRN__V1__TRAINER_ORDER__BODY_METRIC_ACK;
    order.metric_ack = &ack;
    core_send_order(job, 0, &order);
}

void core_flush_rows(struct core *core, struct core_job *job)
{
    if (core->failed != ST_OK || job->rows.count == 0)
        return;
    enum status st = journal_begin(core->options.journal);
    if (st == ST_OK)
        st = record_state(core, job);
    if (st == ST_OK)
        st = record_rows(core, job);
    if (st == ST_OK)
        st = journal_commit(core->options.journal);
    if (st != ST_OK) {
        core_fail(core, st, "journalling metrics");
        return;
    }
    rows_done(job);
    job->version++;
    if (core->options.hooks.changed)
        core->options.hooks.changed(core->options.hooks.arg, job);
}

/* ---- actions ---- */

static void for_ranks(struct core *core, struct core_job *job, uint32_t rank,
                      void (*fn)(struct core *core, struct core_job *job, uint32_t rank))
{
    if (rank != JM_ALL) {
        fn(core, job, rank);
        return;
    }
    for (uint32_t i = 0; i < job->m.config.ranks; i++)
        fn(core, job, i);
}

static void end_trainer(struct core *core, struct core_job *job, uint32_t rank)
{
    if (!job->m.ranks[rank].gone)
        core_send_end(core, job, rank);
}

/* Orders that are about a save. */
static void send_save_order(struct core_job *job, const struct jm_action *act, uint32_t rank,
                            const char *dir, const char *base)
{
    Cairn__V1__TrainerOrder order = CAIRN__V1__TRAINER_ORDER__INIT;
    Cairn__V1__SaveAt at = CAIRN__V1__SAVE_AT__INIT;
    Cairn__V1__SaveFolder folder = CAIRN__V1__SAVE_FOLDER__INIT;
    Cairn__V1__SaveAck ack = CAIRN__V1__SAVE_ACK__INIT;
    Cairn__V1__SaveDone done = CAIRN__V1__SAVE_DONE__INIT;
    if (act->kind == ACT_SAVE_AT) {
        at.step = act->step;
        at.then = act->flag ? CAIRN__V1__SAVE_AT__THEN__EXIT : CAIRN__V1__SAVE_AT__THEN__CONTINUE;
        order.body_case = CAIRN__V1__TRAINER_ORDER__BODY_SAVE_AT;
        order.save_at = &at;
    } else if (act->kind == ACT_SEND_FOLDER) {
        folder.step = act->step;
        if (act->flag) {
            folder.dir = (char *)dir;
            folder.base_dir = (char *)base;
        }
        order.body_case = CAIRN__V1__TRAINER_ORDER__BODY_SAVE_FOLDER;
        order.save_folder = &folder;
    } else if (act->kind == ACT_SEND_ACK) {
        fault_point("coordinator.ack");
        ack.step = act->step;
        order.body_case = CAIRN__V1__TRAINER_ORDER__BODY_SAVE_ACK;
        order.save_ack = &ack;
    } else {
        done.step = act->step;
        done.committed = act->flag;
        order.body_case = CAIRN__V1__TRAINER_ORDER__BODY_SAVE_DONE;
        order.save_done = &done;
    }
    core_send_order(job, rank, &order);
}

static void perform_save_order(struct core_job *job, const struct jm_action *act)
{
    char dir[LIMIT_PATH] = "", base_dir[LIMIT_PATH] = "";
    struct jm_ckpt ckpt = { .step = act->step, .generation = act->generation };
    if (core_ckpt_dir(job, &ckpt, dir, sizeof dir) != ST_OK)
        return;
    const struct jm_save *save = jm_find_open(&job->m, act->step, act->generation);
    if (save && save->base_generation > 0) {
        struct jm_ckpt base = { .step = save->base_step, .generation = save->base_generation };
        if (core_ckpt_dir(job, &base, base_dir, sizeof base_dir) != ST_OK)
            return;
    }
    if (act->rank != JM_ALL) {
        send_save_order(job, act, act->rank, dir, base_dir);
        return;
    }
    for (uint32_t i = 0; i < job->m.config.ranks; i++) {
        bool begun = save && (job->m.ranks[i].save_flags[save - job->m.saves] & RANK_BEGUN);
        if (act->kind != ACT_SEND_FOLDER || begun)
            send_save_order(job, act, i, dir, base_dir);
    }
}

static void perform(struct core *core, struct core_job *job, const struct jm_action *act)
{
    if (act->kind < JM_ACTION_FIRST_OUTSIDE) {
        if (act->kind == ACT_GEN_BEGIN)
            core_forget_kv(job);
        return;
    }
    if (act->kind == ACT_SCHEDULE) {
        core->schedule_needed = true;
    } else if (act->kind == ACT_START) {
        for_ranks(core, job, act->rank, core_send_start);
    } else if (act->kind == ACT_END) {
        for_ranks(core, job, act->rank, end_trainer);
    } else if (act->kind == ACT_PLAN) {
        for_ranks(core, job, act->rank, core_send_plan);
    } else if (act->kind == ACT_FORGET) {
        core_send_forget(core, job);
    } else if (act->kind == ACT_OVER) {
        core_send_over(job, act->message);
    } else if (act->kind == ACT_PROBE || (act->kind >= ACT_FOLDER && act->kind <= ACT_SWEEP)) {
        core_submit_store(core, job, act);
    } else {
        perform_save_order(job, act);
    }
}

static void carry_out(struct core *core, struct core_job *job, int64_t wall)
{
    if (job->m.dirty) {
        enum status st = record(core, job, wall);
        if (st != ST_OK) {
            core_fail(core, st, "journalling");
            return;
        }
        job->m.dirty = false;
        rows_done(job);
    }
    for (size_t i = 0; i < core->actions.count; i++)
        perform(core, job, &core->actions.list[i]);
    job->version++;
    if (core->options.hooks.changed)
        core->options.hooks.changed(core->options.hooks.arg, job);
}

enum status core_apply(struct core *core, struct core_job *job, struct job_event *event)
{
    if (core->failed != ST_OK)
        return core->failed;
    CHECK(!core->applying);
    core->applying = true;
    enum status st = job_step(&job->m, event, &core->actions);
    bool changed = core->actions.count > 0 || job->m.dirty || event->kind != EV_TICK;
    if (st == ST_OK && changed)
        carry_out(core, job, event->wall);
    core->applying = false;
    return st;
}

void core_resume(struct core *core, struct core_job *job)
{
    struct job_event at = core_event(core, EV_TICK);
    CHECK(!core->applying);
    core->applying = true;
    jm_resume(&job->m, &at, &core->actions);
    carry_out(core, job, at.wall);
    core->applying = false;
}
