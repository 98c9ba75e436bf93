/*
 * An event, from the state machine over the journal to the actions; and the group, in which events
 * that came together are journalled together. The one place where state is written, and the one
 * place where actions leave: in this order.
 */
#include "server/coord/apply.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/fault.h"
#include "server/coord/base.h"
#include "server/coord/fleet_tables.h"
#include "server/coord/index.h"
#include "server/coord/metrics.h"
#include "server/coord/node_health.h"
#include "server/coord/orders.h"
#include "server/coord/outbox.h"
#include "server/coord/record.h"
#include "server/coord/tasks.h"

struct fsm_event coord_event(const struct coord *coord, enum fsm_event_kind kind)
{
    return (struct fsm_event){ .kind = kind,
                               .now = coord_now(coord),
                               .wall = clock_wall_ms(coord->options.clock),
                               .rank = FSM_ALL_RANKS };
}

struct fsm_event coord_event_of(const struct coord *coord, enum fsm_event_kind kind,
                                uint32_t generation, uint32_t rank)
{
    struct fsm_event event = coord_event(coord, kind);
    event.generation = generation;
    event.rank = rank;
    return event;
}

/* ---- groups ---- */

static void note_begun(struct coord *coord)
{
    if (coord->begun_at == 0)
        coord->begun_at = coord_now(coord);
}

enum status coord_begin(struct coord *coord)
{
    if (coord->begun)
        return ST_OK;
    enum status st = journal_begin(coord->options.journal);
    coord->begun = st == ST_OK;
    note_begun(coord);
    return st;
}

void coord_mark_dirty(struct coord *coord, struct coord_job *job)
{
    job->m.dirty = false;
    if (job->dirty)
        return;
    job->dirty = true;
    job->dirty_next = coord->dirty;
    coord->dirty = job;
    note_begun(coord);
}

void coord_forget_dirty(struct coord *coord, struct coord_job *job)
{
    for (struct coord_job **at = &coord->dirty; *at != NULL; at = &(*at)->dirty_next) {
        if (*at != job)
            continue;
        *at = job->dirty_next;
        job->dirty = false;
        return;
    }
}

static enum status record_dirty(struct coord *coord)
{
    enum status st = coord->dirty != NULL ? coord_begin(coord) : ST_OK;
    for (struct coord_job *job = coord->dirty; job != NULL && st == ST_OK; job = job->dirty_next) {
        st = coord_record_state(coord, job);
        if (st == ST_OK) /* with a save the rows of its step, too: they decide which one is best */
            st = coord_record_rows(coord, job);
    }
    return st;
}

static void fault_points(struct coord *coord, const char *any, const char *deciding)
{
    for (const struct coord_job *job = coord->dirty; job != NULL; job = job->dirty_next) {
        fault_context(-1, job->m.generation, (int64_t)fsm_step_now(&job->m));
        if (any != NULL)
            fault_point(any);
        if (job->deciding)
            fault_point(deciding);
    }
}

enum status coord_write(struct coord *coord)
{
    CHECK(!coord->applying);
    if (coord->failed != ST_OK)
        return coord->failed;
    enum status st = record_dirty(coord);
    if (coord->begun && st == ST_OK) {
        fault_points(coord, "coordinator.journal", "commit.record");
        if (coord->dirty == NULL && coord->outbox.count > 0) /* somebody waits for it */
            fault_point("coordinator.journal");
        st = journal_commit(coord->options.journal);
    }
    if (st != ST_OK) {
        coord_fail(coord, st, "journalling");
        return st;
    }
    coord->begun = false;
    coord->begun_at = 0;
    coord->turns = 0;
    fault_points(coord, NULL, "commit.recorded");
    while (coord->dirty != NULL) {
        struct coord_job *job = coord->dirty;
        coord->dirty = job->dirty_next;
        job->dirty = job->deciding = false;
    }
    if (coord->failed == ST_OK) /* there was memory for all that is to leave */
        coord_outbox_empty(coord);
    coord_excuse(coord); /* a disk that was slow is no silence of others */
    return coord->failed;
}

void coord_bound_group(struct coord *coord)
{
    if (coord_outbox_full(coord))
        (void)coord_write(coord); /* coord_failed says whether it failed */
}

int64_t coord_commit_by(const struct coord *coord)
{
    const bool may_wait = coord->begun_at != 0 && !coord->schedule_needed &&
                          coord->outbox.urgent == 0 && coord->turns < COORD_LINGER_TURNS;
    return may_wait ? coord->begun_at + COORD_COMMIT_DELAY_MS : 0;
}

void coord_flush_rows(struct coord *coord, struct coord_job *job)
{
    if (coord->failed != ST_OK || job->rows.count == 0)
        return;
    if (coord->full) {
        coord_keep_rows(coord, job);
        return;
    }
    enum status st = coord_begin(coord);
    if (st == ST_OK)
        st = coord_record_rows(coord, job);
    if (st != ST_OK) {
        coord_fail(coord, st, "journalling metrics");
        return;
    }
    coord_mark_dirty(coord, job);
    job->version++;
}

/* ---- actions ---- */

/* Calls fn for one rank, or all. */
static void for_ranks(struct coord *coord, struct coord_job *job, uint32_t rank,
                      void (*fn)(struct coord *coord, struct coord_job *job, uint32_t rank))
{
    if (rank != FSM_ALL_RANKS) {
        CHECK(rank < fsm_capacity(&job->m)); /* its place may have gone in the same turn */
        fn(coord, job, rank);
        return;
    }
    for (uint32_t i = 0; i < job->m.size; i++)
        fn(coord, job, i);
}

/* Sends a rank what the action says about a save, or a checkpoint. */
static void send_about_save_to(struct coord *coord, struct coord_job *job, uint32_t rank,
                               const struct fsm_action *act)
{
    if (act->kind == FSM_ACT_SAVE_AT) {
        coord_send_save_at(coord, job, rank, act->step, act->exit);
    } else if (act->kind == FSM_ACT_STAY) {
        coord_send_stay(coord, job, rank, act->step);
    } else if (act->kind == FSM_ACT_SEND_DONE) {
        coord_send_done(coord, job, rank, act->step, act->committed);
    } else if (act->kind == FSM_ACT_READ_BACK) {
        coord_send_read_back(coord, job, rank, act);
    } else {
        coord_send_folder(coord, job, rank, act);
    }
}

static void send_about_save(struct coord *coord, struct coord_job *job,
                            const struct fsm_action *act)
{
    if (act->rank != FSM_ALL_RANKS) {
        send_about_save_to(coord, job, act->rank, act);
        return;
    }
    const struct fsm_save *save = fsm_find_save(&job->m, act->step, act->generation);
    for (uint32_t i = 0; i < job->m.size; i++) {
        bool begun =
            save != NULL && (job->m.ranks[i].save_flags[save - job->m.saves] & FSM_RANK_BEGUN);
        if (act->kind != FSM_ACT_SEND_FOLDER || begun) /* the folder is for who began it */
            send_about_save_to(coord, job, i, act);
    }
}

/* Ends a rank, unless it has parked: that one stays. */
static void end_rank(struct coord *coord, struct coord_job *job, uint32_t rank)
{
    if (!job->m.ranks[rank].parked)
        coord_send_end(coord, job, rank);
}

/* Puts what the action sends into the outbox; it leaves after the commit (outbox.h). Changes of the
 * coordinator's own memory happen at once. */
static void queue_action(struct coord *coord, struct coord_job *job, const struct fsm_action *act)
{
    switch (act->kind) {
    case FSM_ACT_EVENT:
    case FSM_ACT_RECOVERY:
    case FSM_ACT_SAVE_ROW:
    case FSM_ACT_CKPT_ROW:
        break; /* journalled */
    case FSM_ACT_REPORT_ROW:
        coord_post_point(coord, "coordinator.report", act->rank, act->generation,
                         (int64_t)act->step);
        break;
    case FSM_ACT_GEN_BEGIN:
        coord_reattach_connections(coord, job);
        coord_forget_rendezvous(job);
        break;
    case FSM_ACT_GEN_END:
        coord_forget_rendezvous(job);
        break;
    case FSM_ACT_SCHEDULE:
        coord->schedule_needed = true;
        break;
    case FSM_ACT_START:
        for_ranks(coord, job, act->rank, coord_send_start);
        break;
    case FSM_ACT_PARK:
        for_ranks(coord, job, act->rank, coord_send_park);
        break;
    case FSM_ACT_END:
        for_ranks(coord, job, act->rank, end_rank);
        break;
    case FSM_ACT_UNSEEN:
        coord_hold_slot(coord, job, act->rank);
        break;
    case FSM_ACT_CLOSE:
        coord_send_over(coord, job, act->rank, act->message);
        break;
    case FSM_ACT_ASSIGN:
        for_ranks(coord, job, act->rank, coord_send_assignment);
        break;
    case FSM_ACT_BLAME:
        coord_blame_node(coord, job, act->rank);
        break;
    case FSM_ACT_ACCUSE:
        coord_accuse_node(coord, job, act);
        break;
    case FSM_ACT_CLEAR:
        coord_clear_nodes(coord, job);
        break;
    case FSM_ACT_SUSPECT:
        coord_netpaths_suspect(coord, job);
        break;
    case FSM_ACT_FORGET:
        coord_send_forget(coord, job);
        break;
    case FSM_ACT_STORE:
        coord_submit_store(coord, job, act);
        break;
    case FSM_ACT_SAVE_AT:
    case FSM_ACT_STAY:
    case FSM_ACT_SEND_FOLDER:
    case FSM_ACT_SEND_DONE:
    case FSM_ACT_READ_BACK:
        send_about_save(coord, job, act);
        break;
    }
}

static uint64_t agent_of(void *arg, const char *name)
{
    const struct coord_node *node = coord_node_at(arg, name);
    return node != NULL ? node->agent : 0;
}

static void journal_and_queue(struct coord *coord, struct coord_job *job,
                              const struct fsm_event *event)
{
    CHECK(coord->applying);
    if (job->m.dirty) {
        enum status st = coord_begin(coord);
        coord->turns++;
        if (st == ST_OK)
            st = coord_record_turn(coord, job, event);
        if (st != ST_OK) {
            coord_fail(coord, st, "journalling");
            return;
        }
        coord_mark_dirty(coord, job);
    }
    for (size_t i = 0; i < coord->actions.count; i++)
        queue_action(coord, job, &coord->actions.list[i]);
    job->version++;
}

/* Kills a job that can't be read. Agents are told to say hello again, and then to end what they
 * have of it. */
static enum status kill_unreadable(struct coord *coord, struct coord_job *job,
                                   const struct fsm_event *event)
{
    if (event->kind != FSM_EV_KILL || fsm_state_final(job->m.state))
        return ST_REFUSED;
    coord->applying = true;
    fsm_abandon(&job->m, event->wall, event->by, &coord->actions);
    journal_and_queue(coord, job, event);
    coord->applying = false;
    coord_job_moved(coord, job);
    for (size_t i = 0; i < coord->node_count && coord->failed == ST_OK; i++) {
        struct coord_conn *conn = coord->nodes[i]->conn;
        if (conn == NULL)
            continue;
        coord->nodes[i]->conn = NULL;
        coord_node_moved(coord, coord->nodes[i]);
        conn->node = NULL;
        coord_hang_up(coord, conn, RPC_ABORTED, "say hello again: a job was killed");
    }
    return coord->failed;
}

enum status coord_apply(struct coord *coord, struct coord_job *job, struct fsm_event *event)
{
    if (coord->failed != ST_OK)
        return coord->failed;
    CHECK(!coord->applying);
    if (job->unreadable[0])
        return kill_unreadable(coord, job, event);
    coord->applying = true;
    enum status st = fsm_apply(&job->m, event, &coord->actions);
    exclusion_identify(&job->m.exclusions, agent_of, coord);
    coord_note_ended(job);
    bool changed = coord->actions.count > 0 || job->m.dirty || event->kind != FSM_EV_TICK;
    if (st == ST_OK && changed)
        journal_and_queue(coord, job, event);
    coord->applying = false;
    coord_job_moved(coord, job);
    return st;
}

void coord_note(struct coord *coord, struct coord_job *job, const char *what, const char *message)
{
    struct fsm_event event = coord_event(coord, FSM_EV_NOTE);
    event.note.what = what;
    event.note.message = message;
    (void)coord_apply(coord, job, &event);
}

void coord_resume(struct coord *coord, struct coord_job *job)
{
    struct fsm_event at = coord_event(coord, FSM_EV_TICK);
    CHECK(!coord->applying);
    CHECK(!job->unreadable[0]);
    coord->applying = true;
    fsm_resume(&job->m, at.now, at.wall, &coord->actions);
    coord_note_ended(job);
    journal_and_queue(coord, job, &at);
    coord->applying = false;
    coord_job_moved(coord, job);
}
