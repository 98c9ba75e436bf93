/*
 * An event, from the state machine over the journal to the actions; and the group, in which events
 * that came together are journalled together. The one place where state is written, and the one
 * place where actions leave: in this order.
 */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/fault.h"
#include "server/core/internal.h"
#include "server/machine/codec.h"

#define RECOVERY_BYTES_MAX ((size_t)8 * 1024) /* texts of LIMIT_REASON, escaped */

struct machine_event core_event(const struct core *core, enum machine_event_kind kind)
{
    return (struct machine_event){ .kind = kind,
                                   .now = core_now(core),
                                   .wall = clock_wall_ms(core->options.clock),
                                   .rank = MACHINE_ALL_RANKS };
}

struct machine_event core_event_of(const struct core *core, enum machine_event_kind kind,
                                   uint32_t generation, uint32_t rank)
{
    struct machine_event event = core_event(core, kind);
    event.generation = generation;
    event.rank = rank;
    return event;
}

/* ---- journal ---- */

static enum status record_generation(struct core *core, struct core_job *job, int64_t wall)
{
    struct machine *m = &job->m;
    auto_buf struct buf nodes;
    buf_init(&nodes, (size_t)LIMIT_RANKS * LIMIT_NAME);
    for (uint32_t i = 0; i < m->config.ranks; i++) {
        enum status st = buf_printf(&nodes, "%s%s", i ? "," : "", m->ranks[i].node);
        if (st != ST_OK)
            return st;
    }
    auto_buf struct buf recovery;
    buf_init(&recovery, RECOVERY_BYTES_MAX);
    if (m->recovery.generation == m->generation) {
        enum status st = machine_encode_recovery(&m->recovery, &recovery);
        if (st != ST_OK)
            return st;
    }
    struct journal_generation row = { .generation = m->generation,
                                      .begin_ms = wall,
                                      .restore_step = m->restore.step,
                                      .nodes = nodes.data ? nodes.data : "",
                                      .recovery = recovery.data ? recovery.data : "" };
    return journal_put_generation(core->options.journal, job->id, &row);
}

static enum status record_end(struct core *core, struct core_job *job, int64_t wall)
{
    struct machine *m = &job->m;
    struct journal_generation row = { .generation = m->generation,
                                      .end_ms = wall,
                                      .end_step = m->step_max,
                                      .cause = machine_fault_name(m->cause.kind),
                                      .message = m->cause.message };
    return journal_end_generation(core->options.journal, job->id, &row);
}

static enum status record_recovery(struct core *core, struct core_job *job)
{
    const struct recovery *r = &job->m.recovered;
    auto_buf struct buf text;
    buf_init(&text, RECOVERY_BYTES_MAX);
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

/* As the catalog has it; what isn't there any more is deleted. */
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

/* What is left to do for it is not what the journal has: that may change by what is none of the
 * machine's journalled fields. */
static void note_ended(struct core_job *job)
{
    const enum journal_ended ended = ended_of(&job->m);
    if (ended != job->ended && !(ended == JOURNAL_OVER && job->ended == JOURNAL_THIN))
        job->m.dirty = true;
}

/* What lists show of it is written anew with every change of a job that ended. */
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

/* The rows of ranks that are not as the journal has them. */
static enum status record_ranks(struct core *core, struct core_job *job)
{
    enum status st = ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < job->m.config.ranks; i++) {
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

/* The rows that the actions of an event are; the state follows with the group. */
static enum status record_turn(struct core *core, struct core_job *job,
                               const struct machine_event *event)
{
    const struct machine_actions *actions = &core->actions;
    enum status st = core_begin(core);
    core->turns++;
    for (size_t i = 0; st == ST_OK && i < actions->count; i++) {
        const struct machine_action *act = &actions->list[i];
        st = record_action(core, job, act, event);
        if (act->kind == MACHINE_ACT_SAVE_ROW && act->save_state == MACHINE_SAVE_COMMITTING)
            job->deciding = true;
    }
    return st;
}

/* ---- groups ---- */

static void note_begun(struct core *core)
{
    if (core->begun_at == 0)
        core->begun_at = core_now(core);
}

enum status core_begin(struct core *core)
{
    if (core->begun)
        return ST_OK;
    enum status st = journal_begin(core->options.journal);
    core->begun = st == ST_OK;
    note_begun(core);
    return st;
}

void core_mark_dirty(struct core *core, struct core_job *job)
{
    job->m.dirty = false;
    if (job->dirty)
        return;
    job->dirty = true;
    job->dirty_next = core->dirty;
    core->dirty = job;
    note_begun(core);
}

void core_forget_dirty(struct core *core, struct core_job *job)
{
    for (struct core_job **at = &core->dirty; *at; at = &(*at)->dirty_next) {
        if (*at != job)
            continue;
        *at = job->dirty_next;
        job->dirty = false;
        return;
    }
}

static enum status record_dirty(struct core *core)
{
    enum status st = core->dirty ? core_begin(core) : ST_OK;
    for (struct core_job *job = core->dirty; job && st == ST_OK; job = job->dirty_next) {
        st = core_record_state(core, job);
        if (st == ST_OK) /* with a save the rows of its step, too: they decide which one is best */
            st = core_record_rows(core, job);
    }
    return st;
}

static void fault_points(struct core *core, const char *any, const char *deciding)
{
    for (const struct core_job *job = core->dirty; job; job = job->dirty_next) {
        fault_context(-1, job->m.generation, (int64_t)machine_step_now(&job->m));
        if (any)
            fault_point(any);
        if (job->deciding)
            fault_point(deciding);
    }
}

enum status core_commit(struct core *core)
{
    CHECK(!core->applying);
    if (core->failed != ST_OK)
        return core->failed;
    enum status st = record_dirty(core);
    if (core->begun && st == ST_OK) {
        fault_points(core, "coordinator.journal", "commit.record");
        if (!core->dirty && core->outbox.count > 0) /* somebody waits for it */
            fault_point("coordinator.journal");
        st = journal_commit(core->options.journal);
    }
    if (st != ST_OK) {
        core_fail(core, st, "journalling");
        return st;
    }
    core->begun = false;
    core->begun_at = 0;
    core->turns = 0;
    fault_points(core, NULL, "commit.recorded");
    while (core->dirty) {
        struct core_job *job = core->dirty;
        core->dirty = job->dirty_next;
        job->dirty = job->deciding = false;
    }
    if (core->failed == ST_OK) /* there was memory for all that is to leave */
        core_outbox_empty(core);
    core_excuse(core); /* a disk that was slow is no silence of others */
    return core->failed;
}

int64_t core_commit_by(const struct core *core)
{
    const bool lingers =
        core->begun_at != 0 && core->outbox.urgent == 0 && core->turns < CORE_LINGER_TURNS;
    return lingers ? core->begun_at + CORE_LINGER_MS : 0;
}

void core_flush_rows(struct core *core, struct core_job *job)
{
    if (core->failed != ST_OK || job->rows.count == 0)
        return;
    enum status st = core_begin(core);
    if (st == ST_OK)
        st = core_record_rows(core, job);
    if (st != ST_OK) {
        core_fail(core, st, "journalling metrics");
        return;
    }
    core_mark_dirty(core, job);
    job->version++;
}

/* ---- actions ---- */

/* One rank, or all. */
static void for_ranks(struct core *core, struct core_job *job, uint32_t rank,
                      void (*fn)(struct core *core, struct core_job *job, uint32_t rank))
{
    if (rank != MACHINE_ALL_RANKS) {
        CHECK(rank < job->m.config.ranks);
        fn(core, job, rank);
        return;
    }
    for (uint32_t i = 0; i < job->m.config.ranks; i++)
        fn(core, job, i);
}

/* What a rank is sent about a save, or a checkpoint. */
static void send_about_save_to(struct core *core, struct core_job *job, uint32_t rank,
                               const struct machine_action *act)
{
    if (act->kind == MACHINE_ACT_SAVE_AT) {
        core_send_save_at(core, job, rank, act->step, act->exit);
    } else if (act->kind == MACHINE_ACT_STAY) {
        core_send_stay(core, job, rank, act->step);
    } else if (act->kind == MACHINE_ACT_SEND_DONE) {
        core_send_done(core, job, rank, act->step, act->committed);
    } else if (act->kind == MACHINE_ACT_READ_BACK) {
        core_send_read_back(core, job, rank, act);
    } else {
        core_send_folder(core, job, rank, act);
    }
}

static void send_about_save(struct core *core, struct core_job *job,
                            const struct machine_action *act)
{
    if (act->rank != MACHINE_ALL_RANKS) {
        send_about_save_to(core, job, act->rank, act);
        return;
    }
    const struct machine_save *save = machine_find_save(&job->m, act->step, act->generation);
    for (uint32_t i = 0; i < job->m.config.ranks; i++) {
        bool begun = save && (job->m.ranks[i].save_flags[save - job->m.saves] & MACHINE_RANK_BEGUN);
        if (act->kind != MACHINE_ACT_SEND_FOLDER || begun) /* the folder is for who began it */
            send_about_save_to(core, job, i, act);
    }
}

/* Whoever has parked stays. */
static void end_rank(struct core *core, struct core_job *job, uint32_t rank)
{
    if (!job->m.ranks[rank].parked)
        core_send_end(core, job, rank);
}

static void perform_action(struct core *core, struct core_job *job,
                           const struct machine_action *act)
{
    switch (act->kind) {
    case MACHINE_ACT_TELL:
    case MACHINE_ACT_RECOVERY:
    case MACHINE_ACT_SAVE_ROW:
    case MACHINE_ACT_CKPT_ROW:
        break; /* journalled */
    case MACHINE_ACT_REPORT_ROW:
        core_post_point(core, "coordinator.report", act->rank, act->generation, (int64_t)act->step);
        break;
    case MACHINE_ACT_GEN_BEGIN:
    case MACHINE_ACT_GEN_END:
        core_forget_meetings(job);
        break;
    case MACHINE_ACT_SCHEDULE:
        core->schedule_needed = true;
        break;
    case MACHINE_ACT_START:
        for_ranks(core, job, act->rank, core_send_start);
        break;
    case MACHINE_ACT_PARK:
        for_ranks(core, job, act->rank, core_send_park);
        break;
    case MACHINE_ACT_END:
        for_ranks(core, job, act->rank, end_rank);
        break;
    case MACHINE_ACT_UNSEEN:
        core_hold_slot(core, job, act->rank);
        break;
    case MACHINE_ACT_OVER:
        core_send_over(core, job, act->rank, act->message);
        break;
    case MACHINE_ACT_ASSIGN:
        for_ranks(core, job, act->rank, core_send_assignment);
        break;
    case MACHINE_ACT_BLAME:
        core_blame_node(core, job, act->rank);
        break;
    case MACHINE_ACT_CLEAR:
        core_clear_nodes(core, job);
        break;
    case MACHINE_ACT_SUSPECT:
        core_paths_suspect(core, job);
        break;
    case MACHINE_ACT_FORGET:
        core_send_forget(core, job);
        break;
    case MACHINE_ACT_STORE:
        core_submit_store(core, job, act);
        break;
    case MACHINE_ACT_SAVE_AT:
    case MACHINE_ACT_STAY:
    case MACHINE_ACT_SEND_FOLDER:
    case MACHINE_ACT_SEND_DONE:
    case MACHINE_ACT_READ_BACK:
        send_about_save(core, job, act);
        break;
    }
}

static void carry_out(struct core *core, struct core_job *job, const struct machine_event *event)
{
    CHECK(core->applying);
    if (job->m.dirty) {
        enum status st = record_turn(core, job, event);
        if (st != ST_OK) {
            core_fail(core, st, "journalling");
            return;
        }
        core_mark_dirty(core, job);
    }
    for (size_t i = 0; i < core->actions.count; i++)
        perform_action(core, job, &core->actions.list[i]);
    job->version++;
}

/* Agents say hello again, and are told to end what they have of it. */
static enum status kill_unreadable(struct core *core, struct core_job *job,
                                   const struct machine_event *event)
{
    if (event->kind != MACHINE_EV_KILL || machine_state_final(job->m.state))
        return ST_REFUSED;
    core->applying = true;
    machine_abandon(&job->m, event->wall, event->by, &core->actions);
    carry_out(core, job, event);
    core->applying = false;
    core_job_moved(core, job);
    for (size_t i = 0; i < core->node_count && core->failed == ST_OK; i++) {
        struct core_conn *conn = core->nodes[i]->conn;
        if (!conn)
            continue;
        core->nodes[i]->conn = NULL;
        core_node_moved(core, core->nodes[i]);
        conn->node = NULL;
        core_hang_up(core, conn, RPC_ABORTED, "say hello again: a job was killed");
    }
    return core->failed;
}

enum status core_apply(struct core *core, struct core_job *job, struct machine_event *event)
{
    if (core->failed != ST_OK)
        return core->failed;
    CHECK(!core->applying);
    if (job->unreadable[0])
        return kill_unreadable(core, job, event);
    core->applying = true;
    enum status st = machine_apply(&job->m, event, &core->actions);
    note_ended(job);
    bool changed = core->actions.count > 0 || job->m.dirty || event->kind != MACHINE_EV_TICK;
    if (st == ST_OK && changed)
        carry_out(core, job, event);
    core->applying = false;
    core_job_moved(core, job);
    return st;
}

void core_note(struct core *core, struct core_job *job, const char *what, const char *message)
{
    struct machine_event event = core_event(core, MACHINE_EV_NOTE);
    event.note.what = what;
    event.note.message = message;
    (void)core_apply(core, job, &event);
}

void core_resume(struct core *core, struct core_job *job)
{
    struct machine_event at = core_event(core, MACHINE_EV_TICK);
    CHECK(!core->applying);
    CHECK(!job->unreadable[0]);
    core->applying = true;
    machine_resume(&job->m, at.now, at.wall, &core->actions);
    note_ended(job);
    carry_out(core, job, &at);
    core->applying = false;
    core_job_moved(core, job);
}
