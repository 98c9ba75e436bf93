/* The records of a job for the journal: the rows of a turn's actions, its state, its ranks. */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "server/core/internal.h"
#include "server/machine/codec.h"

static enum status record_generation(struct core *core, struct core_job *job, int64_t wall)
{
    struct machine *m = &job->m;
    auto_buf struct buf nodes;
    auto_buf struct buf numbers;
    buf_init(&nodes, (size_t)LIMIT_RANKS * LIMIT_NAME);
    buf_init(&numbers, (size_t)LIMIT_RANKS * 8);
    bool own = true; /* each is known by its rank */
    for (uint32_t i = 0; i < m->size; i++) {
        enum status st = buf_printf(&nodes, "%s%s", i ? "," : "", m->ranks[i].node);
        if (st == ST_OK)
            st = buf_printf(&numbers, "%s%u", i ? "," : "", m->ranks[i].number);
        if (st != ST_OK)
            return st;
        own = own && m->ranks[i].number == i;
    }
    auto_buf struct buf recovery;
    buf_init(&recovery, CORE_RECOVERY_BYTES);
    if (m->recovery.generation == m->generation) {
        enum status st = machine_encode_recovery(&m->recovery, &recovery);
        if (st != ST_OK)
            return st;
    }
    job->began = (struct core_began){ m->generation, wall, core_now(core) };
    struct journal_generation row = { .generation = m->generation,
                                      .begin_ms = wall,
                                      .restore_step = m->restore.step,
                                      .nodes = nodes.data ? nodes.data : "",
                                      .numbers = own || !numbers.data ? "" : numbers.data,
                                      .recovery = recovery.data ? recovery.data : "" };
    return journal_put_generation(core->options.journal, job->id, &row);
}

/* Returns the end of a generation on the clock by which it began, which may have been set since
 * then. If it began before this coordinator did, the clock is that of now. */
static int64_t end_of(const struct core *core, const struct core_job *job, int64_t wall)
{
    const struct core_began *began = &job->began;
    if (began->generation != job->m.generation)
        return wall;
    return began->wall + (core_now(core) - began->at);
}

static enum status record_end(struct core *core, struct core_job *job, int64_t wall)
{
    struct machine *m = &job->m;
    struct journal_generation row = { .generation = m->generation,
                                      .end_ms = end_of(core, job, wall),
                                      .end_step = m->step_max,
                                      .cause = machine_fault_name(m->cause.kind),
                                      .message = m->cause.message };
    return journal_end_generation(core->options.journal, job->id, &row);
}

static enum status record_recovery(struct core *core, struct core_job *job)
{
    const struct recovery *r = &job->m.recovered;
    auto_buf struct buf text;
    buf_init(&text, CORE_RECOVERY_BYTES);
    enum status st = machine_encode_recovery(r, &text);
    if (st != ST_OK)
        return st;
    return journal_put_recovery(core->options.journal, job->id, r->generation, r->step, text.data);
}

static enum status record_save(struct core *core, struct core_job *job,
                               const struct machine_action *act, const struct machine_event *event)
{
    struct journal *journal = core->options.journal;
    struct journal_save row = { .step = act->step,
                                .generation = act->generation,
                                .state = (int)act->save_state,
                                .wall_ms = event->wall,
                                .digest = "" };
    const struct machine_save *save = machine_find_save(&job->m, act->step, act->generation);
    if (save) {
        row.retry = save->retry;
        row.base_step = save->base_step;
        row.base_generation = save->base_generation;
    }
    if (act->save_state == MACHINE_SAVE_FREE)
        return journal_drop_save(journal, job->id, act->step, act->generation);
    if (act->save_state == MACHINE_SAVE_COMMITTING) {
        CHECK(event->kind == MACHINE_EV_STORE && event->answer.task == MACHINE_TASK_CHECK);
        const struct store_task *task = event->answer.record;
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
    if (st == ST_OK && act->save_state == MACHINE_SAVE_DROPPING)
        st = journal_drop_reports(journal, job->id, act->step, act->generation);
    return st;
}

static enum status record_report(struct core *core, struct core_job *job,
                                 const struct machine_action *act,
                                 const struct machine_event *event)
{
    CHECK(event->kind == MACHINE_EV_SAVE_REPORT);
    const Cairn__V1__SaveReport *report = event->save_report.record;
    size_t size = cairn__v1__save_report__get_packed_size(report);
    uint8_t *data = malloc(size ? size : 1);
    if (!data)
        return ST_NO_MEMORY;
    (void)cairn__v1__save_report__pack(report, data);
    enum status st = journal_put_report(core->options.journal, job->id, act->step, act->generation,
                                        act->rank, data, size);
    free(data);
    return st;
}

static enum status record_tell(struct core *core, struct core_job *job,
                               const struct machine_action *act, int64_t wall)
{
    struct log log = *core->options.log;
    log.job = job->id;
    log.generation = act->generation;
    LOG_INFO(&log, "%s: %s", act->what, act->message);
    struct journal_event row = { .wall_ms = wall,
                                 .generation = act->generation,
                                 .step = act->step,
                                 .kind = act->what,
                                 .message = act->message };
    return journal_put_event(core->options.journal, job->id, &row);
}

/* Journals a checkpoint as the catalog has it; one that isn't there any more is deleted. */
static enum status record_ckpt(struct core *core, struct core_job *job,
                               const struct machine_action *act)
{
    const struct machine_ckpt *ckpt = machine_find_ckpt(&job->m, act->step, act->generation);
    if (ckpt)
        return journal_put_ckpt(core->options.journal, job->id, ckpt);
    return journal_drop_ckpt(core->options.journal, job->id, act->step, act->generation);
}

static enum status record_action(struct core *core, struct core_job *job,
                                 const struct machine_action *act,
                                 const struct machine_event *event)
{
    switch (act->kind) {
    case MACHINE_ACT_TELL:
        return record_tell(core, job, act, event->wall);
    case MACHINE_ACT_GEN_BEGIN:
        return record_generation(core, job, event->wall);
    case MACHINE_ACT_GEN_END:
        return record_end(core, job, event->wall);
    case MACHINE_ACT_RECOVERY:
        return record_recovery(core, job);
    case MACHINE_ACT_SAVE_ROW:
        return record_save(core, job, act, event);
    case MACHINE_ACT_CKPT_ROW:
        return record_ckpt(core, job, act);
    case MACHINE_ACT_REPORT_ROW:
        return record_report(core, job, act, event);
    case MACHINE_ACT_SCHEDULE:
    case MACHINE_ACT_START:
    case MACHINE_ACT_PARK:
    case MACHINE_ACT_END:
    case MACHINE_ACT_UNSEEN:
    case MACHINE_ACT_OVER:
    case MACHINE_ACT_ASSIGN:
    case MACHINE_ACT_BLAME:
    case MACHINE_ACT_ACCUSE:
    case MACHINE_ACT_CLEAR:
    case MACHINE_ACT_SUSPECT:
    case MACHINE_ACT_FORGET:
    case MACHINE_ACT_SAVE_AT:
    case MACHINE_ACT_STAY:
    case MACHINE_ACT_STORE:
    case MACHINE_ACT_SEND_FOLDER:
    case MACHINE_ACT_SEND_DONE:
    case MACHINE_ACT_READ_BACK:
        break;
    }
    return ST_OK;
}

static enum journal_ended ended_of(const struct machine *m)
{
    switch (machine_rested(m)) {
    case MACHINE_BUSY:
        break;
    case MACHINE_LEFT:
        return JOURNAL_LEFT;
    case MACHINE_OVER:
        return JOURNAL_OVER;
    }
    return JOURNAL_LIVE;
}

/* Called when what is left to do for a job may not be what the journal has: that may change without
 * any of the machine's journalled fields. */
void core_note_ended(struct core_job *job)
{
    const enum journal_ended ended = ended_of(&job->m);
    if (ended != job->ended && !(ended == JOURNAL_OVER && job->ended == JOURNAL_THIN))
        job->m.dirty = true;
}

/* Journals how far the job has ended. What lists show of it is written anew with every change of a
 * job that ended. */
static enum status record_ended(struct core *core, struct core_job *job)
{
    const struct core_options *options = &core->options;
    const enum journal_ended ended = ended_of(&job->m);
    if (ended == JOURNAL_LIVE && job->ended == JOURNAL_LIVE)
        return ST_OK;
    auto_buf struct buf row;
    buf_init(&row, (size_t)LIMIT_MESSAGE_BYTES);
    enum status st = ST_OK;
    if (ended != JOURNAL_LIVE && options->summary)
        st = options->summary(options->summary_arg, job, &row);
    if (st == ST_OK)
        st = journal_put_ended(options->journal, job->id, ended, row.data, row.size);
    job->ended = ended;
    job->used = ++core->uses;
    core->retire_needed = true;
    if (ended == JOURNAL_OVER && core->tidy_at == INT64_MAX)
        core->tidy_at = core_now(core) + CORE_TIDY_MS;
    return st;
}

/* Journals the rows of ranks that are not as the journal has them. */
static enum status record_ranks(struct core *core, struct core_job *job)
{
    enum status st = ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < job->m.count; i++) {
        const struct machine_rank_row row = machine_rank_row(&job->m, i);
        if (machine_rank_row_same(&row, &job->recorded_ranks[i]))
            continue;
        st = journal_put_rank(core->options.journal, job->id, i, &row);
        job->recorded_ranks[i] = row;
    }
    return st;
}

enum status core_record_state(struct core *core, struct core_job *job)
{
    auto_buf struct buf state;
    buf_init(&state, CORE_STATE_BYTES_MAX);
    enum status st = machine_encode(&job->m, &state);
    if (st != ST_OK)
        return st;
    if (!job->recorded || strcmp(job->recorded, state.data) != 0) {
        st = journal_put_state(core->options.journal, job->id, state.data);
        free(job->recorded);
        job->recorded = strdup(state.data); /* NULL: it is written again */
    }
    if (st == ST_OK)
        st = record_ranks(core, job);
    return st == ST_OK ? record_ended(core, job) : st;
}

/* Journals the rows of an event's actions; the state follows with the group. */
enum status core_record_turn(struct core *core, struct core_job *job,
                             const struct machine_event *event)
{
    const struct machine_actions *actions = &core->actions;
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < actions->count; i++) {
        const struct machine_action *act = &actions->list[i];
        st = record_action(core, job, act, event);
        if (act->kind == MACHINE_ACT_SAVE_ROW && act->save_state == MACHINE_SAVE_COMMITTING)
            job->deciding = true;
    }
    return st;
}
