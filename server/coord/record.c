/* The records of a job for the journal: the rows of a turn's actions, its state, its ranks. */
#include "server/coord/record.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "server/jobfsm/persist.h"

static enum status record_generation(struct coord *coord, struct coord_job *job, int64_t wall)
{
    struct fsm *m = &job->m;
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
    buf_init(&recovery, COORD_RECOVERY_BYTES);
    if (m->recovery.generation == m->generation) {
        enum status st = fsm_encode_recovery(&m->recovery, &recovery);
        if (st != ST_OK)
            return st;
    }
    job->began = (struct coord_began){ m->generation, wall, coord_now(coord) };
    struct journal_generation row = { .generation = m->generation,
                                      .begin_ms = wall,
                                      .restore_step = m->restore.step,
                                      .nodes = nodes.data != NULL ? nodes.data : "",
                                      .numbers = own || numbers.data == NULL ? "" : numbers.data,
                                      .recovery = recovery.data != NULL ? recovery.data : "" };
    return journal_put_generation(coord->options.journal, job->id, &row);
}

/* Returns the end of a generation on the clock by which it began, which may have been set since
 * then. If it began before this coordinator did, the clock is that of now. */
static int64_t end_of(const struct coord *coord, const struct coord_job *job, int64_t wall)
{
    const struct coord_began *began = &job->began;
    if (began->generation != job->m.generation)
        return wall;
    return began->wall + (coord_now(coord) - began->at);
}

static enum status record_end(struct coord *coord, struct coord_job *job, int64_t wall)
{
    struct fsm *m = &job->m;
    struct journal_generation row = { .generation = m->generation,
                                      .end_ms = end_of(coord, job, wall),
                                      .end_step = m->step_max,
                                      .cause = fsm_fault_name(m->cause.kind),
                                      .message = m->cause.message };
    return journal_end_generation(coord->options.journal, job->id, &row);
}

static enum status record_recovery(struct coord *coord, struct coord_job *job)
{
    const struct recovery *r = &job->m.recovered;
    auto_buf struct buf text;
    buf_init(&text, COORD_RECOVERY_BYTES);
    enum status st = fsm_encode_recovery(r, &text);
    if (st != ST_OK)
        return st;
    return journal_put_recovery(coord->options.journal, job->id, r->generation, r->step, text.data);
}

static enum status record_save(struct coord *coord, struct coord_job *job,
                               const struct fsm_action *act, const struct fsm_event *event)
{
    struct journal *journal = coord->options.journal;
    struct journal_save row = { .step = act->step,
                                .generation = act->generation,
                                .state = (int)act->save_state,
                                .wall_ms = event->wall,
                                .digest = "" };
    const struct fsm_save *save = fsm_find_save(&job->m, act->step, act->generation);
    if (save != NULL) {
        row.try_number = save->try_number;
        row.base_step = save->base_step;
        row.base_generation = save->base_generation;
    }
    if (act->save_state == FSM_SAVE_FREE)
        return journal_drop_save(journal, job->id, act->step, act->generation);
    if (act->save_state == FSM_SAVE_COMMITTING) {
        CHECK(event->kind == FSM_EV_STORE && event->answer.task == FSM_TASK_CHECK);
        const struct store_task *task = event->answer.record;
        CHECK(task != NULL && task->step == act->step && task->generation == act->generation);
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
    if (st == ST_OK && act->save_state == FSM_SAVE_DROPPING)
        st = journal_drop_reports(journal, job->id, act->step, act->generation);
    return st;
}

static enum status record_report(struct coord *coord, struct coord_job *job,
                                 const struct fsm_action *act, const struct fsm_event *event)
{
    CHECK(event->kind == FSM_EV_SAVE_REPORT);
    const Cairn__V1__SaveReport *report = event->save_report.record;
    size_t size = cairn__v1__save_report__get_packed_size(report);
    uint8_t *data = malloc(size ? size : 1);
    if (data == NULL)
        return ST_NO_MEMORY;
    (void)cairn__v1__save_report__pack(report, data);
    enum status st = journal_put_report(coord->options.journal, job->id, act->step, act->generation,
                                        act->rank, data, size);
    free(data);
    return st;
}

static enum status record_tell(struct coord *coord, struct coord_job *job,
                               const struct fsm_action *act, int64_t wall)
{
    struct log log = *coord->options.log;
    log.job = job->id;
    log.generation = act->generation;
    LOG_INFO(&log, "%s: %s", act->what, act->message);
    struct journal_event row = { .wall_ms = wall,
                                 .generation = act->generation,
                                 .step = act->step,
                                 .kind = act->what,
                                 .message = act->message };
    return journal_put_event(coord->options.journal, job->id, &row);
}

/* Journals a checkpoint as the catalog has it; one that isn't there any more is deleted. */
static enum status record_ckpt(struct coord *coord, struct coord_job *job,
                               const struct fsm_action *act)
{
    const struct fsm_ckpt *ckpt = fsm_find_ckpt(&job->m, act->step, act->generation);
    if (ckpt != NULL)
        return journal_put_ckpt(coord->options.journal, job->id, ckpt);
    return journal_drop_ckpt(coord->options.journal, job->id, act->step, act->generation);
}

static enum status record_action(struct coord *coord, struct coord_job *job,
                                 const struct fsm_action *act, const struct fsm_event *event)
{
    switch (act->kind) {
    case FSM_ACT_EVENT:
        return record_tell(coord, job, act, event->wall);
    case FSM_ACT_GEN_BEGIN:
        return record_generation(coord, job, event->wall);
    case FSM_ACT_GEN_END:
        return record_end(coord, job, event->wall);
    case FSM_ACT_RECOVERY:
        return record_recovery(coord, job);
    case FSM_ACT_SAVE_ROW:
        return record_save(coord, job, act, event);
    case FSM_ACT_CKPT_ROW:
        return record_ckpt(coord, job, act);
    case FSM_ACT_REPORT_ROW:
        return record_report(coord, job, act, event);
    case FSM_ACT_SCHEDULE:
    case FSM_ACT_START:
    case FSM_ACT_PARK:
    case FSM_ACT_END:
    case FSM_ACT_UNSEEN:
    case FSM_ACT_CLOSE:
    case FSM_ACT_ASSIGN:
    case FSM_ACT_BLAME:
    case FSM_ACT_ACCUSE:
    case FSM_ACT_CLEAR:
    case FSM_ACT_SUSPECT:
    case FSM_ACT_FORGET:
    case FSM_ACT_SAVE_AT:
    case FSM_ACT_STAY:
    case FSM_ACT_STORE:
    case FSM_ACT_SEND_FOLDER:
    case FSM_ACT_SEND_DONE:
    case FSM_ACT_READ_BACK:
        break;
    }
    return ST_OK;
}

static enum journal_ended ended_of(const struct fsm *m)
{
    switch (fsm_work_left_of(m)) {
    case FSM_BUSY:
        break;
    case FSM_LEFT:
        return JOURNAL_LEFT;
    case FSM_OVER:
        return JOURNAL_OVER;
    }
    return JOURNAL_LIVE;
}

/* Called when what is left to do for a job may not be what the journal has: that may change without
 * any of the machine's journalled fields. */
void coord_note_ended(struct coord_job *job)
{
    const enum journal_ended ended = ended_of(&job->m);
    if (ended != job->ended && !(ended == JOURNAL_OVER && job->ended == JOURNAL_THIN))
        job->m.dirty = true;
}

/* Journals how far the job has ended. What lists show of it is written anew with every change of a
 * job that ended. */
static enum status record_ended(struct coord *coord, struct coord_job *job)
{
    const struct coord_options *options = &coord->options;
    const enum journal_ended ended = ended_of(&job->m);
    if (ended == JOURNAL_LIVE && job->ended == JOURNAL_LIVE)
        return ST_OK;
    auto_buf struct buf row;
    buf_init(&row, (size_t)LIMIT_MESSAGE_BYTES);
    enum status st = ST_OK;
    if (ended != JOURNAL_LIVE && options->summary != NULL)
        st = options->summary(options->summary_arg, job, &row);
    if (st == ST_OK)
        st = journal_put_ended(options->journal, job->id, ended, row.data, row.size);
    job->ended = ended;
    job->used = ++coord->uses;
    coord->retire_needed = true;
    if (ended == JOURNAL_OVER && coord->tidy_at == INT64_MAX)
        coord->tidy_at = coord_now(coord) + COORD_TIDY_MS;
    return st;
}

/* Journals the rows of ranks that are not as the journal has them. */
static enum status record_ranks(struct coord *coord, struct coord_job *job)
{
    enum status st = ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < job->m.count; i++) {
        const struct fsm_rank_row row = fsm_rank_row(&job->m, i);
        if (fsm_rank_row_same(&row, &job->recorded_ranks[i]))
            continue;
        st = journal_put_rank(coord->options.journal, job->id, i, &row);
        job->recorded_ranks[i] = row;
    }
    return st;
}

enum status coord_record_state(struct coord *coord, struct coord_job *job)
{
    auto_buf struct buf state;
    buf_init(&state, COORD_STATE_BYTES_MAX);
    enum status st = fsm_encode(&job->m, &state);
    if (st != ST_OK)
        return st;
    if (job->recorded == NULL || strcmp(job->recorded, state.data) != 0) {
        st = journal_put_state(coord->options.journal, job->id, state.data);
        free(job->recorded);
        job->recorded = strdup(state.data); /* NULL: it is written again */
    }
    if (st == ST_OK)
        st = record_ranks(coord, job);
    return st == ST_OK ? record_ended(coord, job) : st;
}

/* Journals the rows of an event's actions; the state follows with the group. */
enum status coord_record_turn(struct coord *coord, struct coord_job *job,
                              const struct fsm_event *event)
{
    const struct fsm_actions *actions = &coord->actions;
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < actions->count; i++) {
        const struct fsm_action *act = &actions->list[i];
        st = record_action(coord, job, act, event);
        if (act->kind == FSM_ACT_SAVE_ROW && act->save_state == FSM_SAVE_COMMITTING)
            job->deciding = true;
    }
    return st;
}
