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

enum status core_write(struct core *core)
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

void core_settle(struct core *core)
{
    if (core_outbox_full(core))
        (void)core_write(core); /* core_failed says whether it failed */
}

int64_t core_commit_by(const struct core *core)
{
    const bool lingers = core->begun_at != 0 && !core->schedule_needed &&
                         core->outbox.urgent == 0 && core->turns < CORE_LINGER_TURNS;
    return lingers ? core->begun_at + CORE_LINGER_MS : 0;
}

void core_flush_rows(struct core *core, struct core_job *job)
{
    if (core->failed != ST_OK || job->rows.count == 0)
        return;
    if (core->full) {
        core_keep_rows(core, job);
        return;
    }
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

/* Calls fn for one rank, or all. */
static void for_ranks(struct core *core, struct core_job *job, uint32_t rank,
                      void (*fn)(struct core *core, struct core_job *job, uint32_t rank))
{
    if (rank != MACHINE_ALL_RANKS) {
        CHECK(rank < machine_capacity(&job->m)); /* its place may have gone in the same turn */
        fn(core, job, rank);
        return;
    }
    for (uint32_t i = 0; i < job->m.size; i++)
        fn(core, job, i);
}

/* Sends a rank what the action says about a save, or a checkpoint. */
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
    for (uint32_t i = 0; i < job->m.size; i++) {
        bool begun = save && (job->m.ranks[i].save_flags[save - job->m.saves] & MACHINE_RANK_BEGUN);
        if (act->kind != MACHINE_ACT_SEND_FOLDER || begun) /* the folder is for who began it */
            send_about_save_to(core, job, i, act);
    }
}

/* Ends a rank, unless it has parked: that one stays. */
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
        core_reseat(core, job);
        core_forget_meetings(job);
        break;
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
    case MACHINE_ACT_ACCUSE:
        core_accuse_node(core, job, act);
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

static uint64_t agent_of(void *arg, const char *name)
{
    const struct core_node *node = core_node_at(arg, name);
    return node ? node->agent : 0;
}

static void carry_out(struct core *core, struct core_job *job, const struct machine_event *event)
{
    CHECK(core->applying);
    if (job->m.dirty) {
        enum status st = core_begin(core);
        core->turns++;
        if (st == ST_OK)
            st = core_record_turn(core, job, event);
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

/* Kills a job that can't be read. Agents are told to say hello again, and then to end what they
 * have of it. */
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
    shun_identify(&job->m.shunned, agent_of, core);
    core_note_ended(job);
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
    core_note_ended(job);
    carry_out(core, job, &at);
    core->applying = false;
    core_job_moved(core, job);
}
