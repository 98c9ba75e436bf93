/* The core as a whole: opened, closed, and what the loop of a process asks of it as time passes. */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "server/coord/apply.h"
#include "server/coord/fleet_tables.h"
#include "server/coord/index.h"
#include "server/coord/inputs/liveness.h"
#include "server/coord/inputs/probe_results.h"
#include "server/coord/leaving.h"
#include "server/coord/load.h"
#include "server/coord/node_health.h"
#include "server/coord/outbox.h"
#include "server/coord/queue/queue.h"
#include "server/coord/state.h"

enum status coord_reader_new(const struct coord_options *options, struct coord **out)
{
    struct coord *coord = calloc(1, sizeof(*coord));
    if (coord == NULL)
        return ST_NO_MEMORY;
    coord->options = *options;
    if (coord->options.hang_ms == 0)
        coord->options.hang_ms = 30000;
    coord->started_at = coord_now(coord);
    coord_beat_interval_set(coord);
    coord->promised_at = coord->left_at = coord->tidy_at = INT64_MAX;
    *out = coord;
    return ST_OK;
}

enum status coord_new(const struct coord_options *options, struct coord **out)
{
    struct coord *coord;
    enum status st = coord_reader_new(options, &coord);
    if (st != ST_OK)
        return st;
    st = coord_load(coord);
    if (st == ST_OK)
        st = coord_commit(coord);
    if (st != ST_OK) {
        coord_free(coord);
        return st;
    }
    coord_wake(coord); /* nobody is judged by the time that loading took */
    *out = coord;
    return ST_OK;
}

void coord_free(struct coord *coord)
{
    if (coord == NULL)
        return;
    coord_outbox_release(coord);
    for (size_t i = 0; i < coord->job_count; i++)
        coord_job_free(coord->jobs[i]);
    coord_nodes_release(coord);
    coord_release_withdrawn(coord);
    free(coord->jobs);
    table_release(&coord->jobs_by_id);
    table_release(&coord->nodes_by_name);
    ordered_release(&coord->live);
    ordered_release(&coord->queue);
    ordered_release(&coord->lacking);
    timers_release(&coord->job_timers);
    timers_release(&coord->node_timers);
    pairs_close(&coord->pairs);
    free(coord->board);
    free(coord);
}

/* ---- time ---- */

int64_t coord_deadline(struct coord *coord)
{
    int64_t now = coord_now(coord);
    int64_t at = timers_at(&coord->job_timers);
    int64_t look_at = coord->looked_at + COORD_LOOK_MS;
    if (look_at < now)
        look_at = now; /* nothing that was promised before */
    /* A reason that keeps a job from a node passes with time, too. */
    if (coord->queue.count + coord->lacking.count > 0 && look_at < at)
        at = look_at;
    if (timers_at(&coord->node_timers) < at)
        at = timers_at(&coord->node_timers);
    if (coord->isolation.since != 0 && coord->isolation.looked_at + ISOLATION_LOOK_MS < at)
        at = coord->isolation.looked_at + ISOLATION_LOOK_MS;
    if (coord->grace_until != 0 && coord->grace_until < at)
        at = coord->grace_until;
    if (coord->draining_until != 0 && coord->draining_until < at)
        at = coord->draining_until;
    const int64_t paths_at = netpaths_deadline(&coord->netpaths);
    at = paths_at < at ? paths_at : at;
    const int64_t pairs_at = pairs_deadline(&coord->pairs);
    at = pairs_at < at ? pairs_at : at;
    if (coord->left_at < at)
        at = coord->left_at;
    if (coord->tidy_at < at)
        at = coord->tidy_at;
    if (coord->options.space != NULL && coord->space_at < at)
        at = coord->space_at;
    if (coord->schedule_needed || coord->accused)
        at = now;
    coord->promised_at = at > now ? at : now; /* what is overdue already was excused already */
    return at;
}

enum status coord_commit(struct coord *coord)
{
    coord_schedule(coord);
    return coord_write(coord);
}

void coord_wake(struct coord *coord)
{
    if (coord->retire_needed)
        (void)coord_retire(coord, 0);
    coord_excuse(coord);
}

static void tick_job(struct coord *coord, struct coord_job *job, int64_t now)
{
    job->ticked_at = now;
    if (job->rows.count > 0 && now >= job->rows.since + COORD_ROWS_MS) {
        coord_mark_dirty(coord, job); /* they are written with the group */
        job->version++;
    }
    if (fsm_deadline(&job->m) <= now) {
        struct fsm_event event = coord_event(coord, FSM_EV_TICK);
        (void)coord_apply(coord, job, &event);
    }
    coord_job_moved(coord, job); /* its next one is later than now */
}

/*
 * ---- a journal's disk without room ----
 *
 * What decides goes on being journalled, in the room that the journal has kept for itself
 * (server/journal/reserve.c): jobs train on, recover and save. What would fill that room waits:
 * rows of metrics stay in memory, jobs are not taken.
 */

bool coord_journal_full(const struct coord *coord)
{
    return coord->full;
}

static void tell_of_space(struct coord *coord, const char *what, const char *message)
{
    for (size_t i = 0; i < coord->job_count; i++)
        coord->jobs[i]->version++;
    for (size_t i = coord->live.count; i > 0 && coord->failed == ST_OK; i--)
        coord_note(coord, coord->live.list[i - 1].value, what, message);
}

static void look_for_space(struct coord *coord)
{
    const struct coord_options *options = &coord->options;
    if (options->space == NULL || coord_now(coord) < coord->space_at)
        return;
    const bool full = options->space(options->journal) == ST_FULL;
    coord->space_at = coord_now(coord) + COORD_SPACE_MS;
    if (full == coord->full)
        return;
    coord->full = full;
    if (full) {
        LOG_ERROR(options->log, "%s: %s", journal_path(options->journal), COORD_JOURNAL_FULL);
        tell_of_space(coord, "journal-full", COORD_JOURNAL_FULL);
    } else {
        LOG_INFO(options->log, "the journal's disk has room again");
        tell_of_space(coord, "journal-room", "the journal's disk has room again");
    }
}

void coord_tick(struct coord *coord)
{
    int64_t now = coord_now(coord);
    coord_wake(coord);
    if (coord->draining_until != 0 && now >= coord->draining_until)
        coord_drain_end(coord);
    coord_grace_tick(coord);
    coord_nodes_tick(coord);
    coord_netpaths_tick(coord);
    coord_pairs_tick(coord);
    while (timers_at(&coord->job_timers) <= now && coord->failed == ST_OK) {
        struct coord_job *job = coord_job_of(timers_first(&coord->job_timers));
        tick_job(coord, job, now);
    }
    if (coord->queue.count + coord->lacking.count > 0 && now >= coord->looked_at + COORD_LOOK_MS)
        coord->schedule_needed = true;
    look_for_space(coord);
    coord_chores_tick(coord);
    coord_drain_accused(coord);
    coord_bound_group(coord);
}

/* ---- for tests ---- */

static void check_seats(struct coord *coord, struct coord_job *job)
{
    uint32_t gone = 0;
    for (uint32_t i = 0; i < fsm_capacity(&job->m); i++) {
        const struct fsm_rank *of = &job->m.ranks[i];
        const bool holds = fsm_holds_slot(&job->m, i);
        const struct coord_node *node = holds ? coord_node_at(coord, of->node) : NULL;
        gone += i < job->m.size && of->gone;
        CHECK(job->ranks[i].node == node);
        CHECK(node == NULL || job->ranks[i].slot == of->slot);
    }
    CHECK(job->m.gone_count == gone);
}

static void check_job(struct coord *coord, struct coord_job *job)
{
    CHECK(coord_job_at(coord, job->id) == job);
    CHECK(job->timer.at == coord_job_deadline(job));
    const bool is_live = ordered_get(&coord->live, job->seq) == job;
    CHECK(is_live == !fsm_state_final(job->m.state));
    const bool queues = ordered_get(&coord->queue, job->seq) == job;
    CHECK(queues == coord_job_queues(job));
    const bool wants = ordered_get(&coord->lacking, job->seq) == job;
    CHECK(wants == (!job->unreadable[0] && fsm_wants_workers(&job->m)));
    CHECK(queues || job->behind == 0);
    check_seats(coord, job);
}

static void check_node(struct coord *coord, struct coord_node *node)
{
    const size_t slots = (size_t)node->slots + node->gpu_count;
    const struct coord_node kept = *node;
    CHECK(node->timer.at == coord_node_deadline(coord, node));
    if (!node->counted)
        return;
    node->used = NULL;
    node->counted = false;
    CHECK(coord_node_count(coord, node));
    CHECK(memcmp(kept.used, node->used, slots * sizeof(*kept.used)) == 0);
    CHECK(kept.slots_used == node->slots_used);
    CHECK(kept.gpus_used == node->gpus_used);
    free(kept.used);
}

void coord_check(struct coord *coord)
{
    for (size_t i = 0; i < coord->job_count && coord->failed == ST_OK; i++)
        check_job(coord, coord->jobs[i]);
    for (size_t i = 0; i < coord->node_count && coord->failed == ST_OK; i++)
        check_node(coord, coord->nodes[i]);
}
