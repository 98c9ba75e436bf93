/* The core as a whole: opened, closed, and what the loop of a process asks of it as time passes. */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "server/core/internal.h"

enum status core_reader_new(const struct core_options *options, struct core **out)
{
    struct core *core = calloc(1, sizeof *core);
    if (!core)
        return ST_NO_MEMORY;
    core->options = *options;
    if (core->options.hang_ms == 0)
        core->options.hang_ms = 30000;
    core->started_at = core_now(core);
    core_pace_set(core);
    core->promised_at = core->left_at = core->tidy_at = INT64_MAX;
    *out = core;
    return ST_OK;
}

enum status core_new(const struct core_options *options, struct core **out)
{
    struct core *core;
    enum status st = core_reader_new(options, &core);
    if (st != ST_OK)
        return st;
    st = core_load(core);
    if (st == ST_OK)
        st = core_commit(core);
    if (st != ST_OK) {
        core_free(core);
        return st;
    }
    core_wake(core); /* nobody is judged by the time that loading took */
    *out = core;
    return ST_OK;
}

void core_free(struct core *core)
{
    if (!core)
        return;
    core_outbox_release(core);
    for (size_t i = 0; i < core->job_count; i++)
        core_job_free(core->jobs[i]);
    core_nodes_release(core);
    core_release_withdrawn(core);
    free(core->jobs);
    table_release(&core->jobs_by_id);
    table_release(&core->nodes_by_name);
    ordered_release(&core->live);
    ordered_release(&core->queue);
    ordered_release(&core->hungry);
    timers_release(&core->job_timers);
    timers_release(&core->node_timers);
    pairs_close(&core->pairs);
    free(core->board);
    free(core);
}

/* ---- time ---- */

int64_t core_deadline(struct core *core)
{
    int64_t now = core_now(core);
    int64_t at = timers_at(&core->job_timers);
    int64_t look_at = core->looked_at + CORE_LOOK_MS;
    if (look_at < now)
        look_at = now; /* nothing that was promised before */
    /* A reason that keeps a job from a node passes with time, too. */
    if (core->queue.count + core->hungry.count > 0 && look_at < at)
        at = look_at;
    if (timers_at(&core->node_timers) < at)
        at = timers_at(&core->node_timers);
    if (core->outage.since != 0 && core->outage.looked_at + OUTAGE_LOOK_MS < at)
        at = core->outage.looked_at + OUTAGE_LOOK_MS;
    if (core->grace_until != 0 && core->grace_until < at)
        at = core->grace_until;
    if (core->draining_until != 0 && core->draining_until < at)
        at = core->draining_until;
    const int64_t paths_at = paths_deadline(&core->paths);
    at = paths_at < at ? paths_at : at;
    const int64_t pairs_at = pairs_deadline(&core->pairs);
    at = pairs_at < at ? pairs_at : at;
    if (core->left_at < at)
        at = core->left_at;
    if (core->tidy_at < at)
        at = core->tidy_at;
    if (core->options.room && core->room_at < at)
        at = core->room_at;
    if (core->schedule_needed || core->accused)
        at = now;
    core->promised_at = at > now ? at : now; /* what is overdue already was excused already */
    return at;
}

enum status core_commit(struct core *core)
{
    core_schedule(core);
    return core_write(core);
}

void core_wake(struct core *core)
{
    if (core->retire_needed)
        (void)core_retire(core, 0);
    core_excuse(core);
}

static void tick_job(struct core *core, struct core_job *job, int64_t now)
{
    job->ticked_at = now;
    if (job->rows.count > 0 && now >= job->rows.since + CORE_ROWS_MS) {
        core_mark_dirty(core, job); /* they are written with the group */
        job->version++;
    }
    if (machine_deadline(&job->m) <= now) {
        struct machine_event event = core_event(core, MACHINE_EV_TICK);
        (void)core_apply(core, job, &event);
    }
    core_job_moved(core, job); /* its next one is later than now */
}

/*
 * ---- a journal's disk without room ----
 *
 * What decides goes on being journalled, in the room that the journal has kept for itself
 * (server/journal/reserve.c): jobs train on, recover and save. What would fill that room waits:
 * rows of metrics stay in memory, jobs are not taken.
 */

bool core_journal_full(const struct core *core)
{
    return core->full;
}

static void tell_room(struct core *core, const char *what, const char *message)
{
    for (size_t i = 0; i < core->job_count; i++)
        core->jobs[i]->version++;
    for (size_t i = core->live.count; i > 0 && core->failed == ST_OK; i--)
        core_note(core, core->live.list[i - 1].value, what, message);
}

static void look_for_room(struct core *core)
{
    const struct core_options *options = &core->options;
    if (!options->room || core_now(core) < core->room_at)
        return;
    const bool full = options->room(options->journal) == ST_FULL;
    core->room_at = core_now(core) + CORE_ROOM_MS;
    if (full == core->full)
        return;
    core->full = full;
    if (full) {
        LOG_ERROR(options->log, "%s: %s", journal_path(options->journal), CORE_JOURNAL_FULL);
        tell_room(core, "journal-full", CORE_JOURNAL_FULL);
    } else {
        LOG_INFO(options->log, "the journal's disk has room again");
        tell_room(core, "journal-room", "the journal's disk has room again");
    }
}

void core_tick(struct core *core)
{
    int64_t now = core_now(core);
    core_wake(core);
    if (core->draining_until != 0 && now >= core->draining_until)
        core_drain_end(core);
    core_grace_tick(core);
    core_nodes_tick(core);
    core_paths_tick(core);
    core_pairs_tick(core);
    while (timers_at(&core->job_timers) <= now && core->failed == ST_OK) {
        struct core_job *job = core_job_of(timers_first(&core->job_timers));
        tick_job(core, job, now);
    }
    if (core->queue.count + core->hungry.count > 0 && now >= core->looked_at + CORE_LOOK_MS)
        core->schedule_needed = true;
    look_for_room(core);
    core_chores_tick(core);
    core_drain_accused(core);
    core_settle(core);
}

/* ---- for tests ---- */

static void check_seats(struct core *core, struct core_job *job)
{
    uint32_t gone = 0;
    for (uint32_t i = 0; i < machine_capacity(&job->m); i++) {
        const struct machine_rank *of = &job->m.ranks[i];
        const bool holds = machine_holds_slot(&job->m, i);
        const struct core_node *node = holds ? core_node_at(core, of->node) : NULL;
        gone += i < job->m.size && of->gone;
        CHECK(job->ranks[i].node == node);
        CHECK(!node || job->ranks[i].slot == of->slot);
    }
    CHECK(job->m.gone_count == gone);
}

static void check_job(struct core *core, struct core_job *job)
{
    CHECK(core_job_at(core, job->id) == job);
    CHECK(job->timer.at == core_job_deadline(job));
    const bool is_live = ordered_get(&core->live, job->seq) == job;
    CHECK(is_live == !machine_state_final(job->m.state));
    const bool queues = ordered_get(&core->queue, job->seq) == job;
    CHECK(queues == core_job_queues(job));
    const bool hungers = ordered_get(&core->hungry, job->seq) == job;
    CHECK(hungers == (!job->unreadable[0] && machine_hungers(&job->m)));
    CHECK(queues || job->behind == 0);
    check_seats(core, job);
}

static void check_node(struct core *core, struct core_node *node)
{
    const size_t slots = (size_t)node->slots + node->gpu_count;
    const struct core_node kept = *node;
    CHECK(node->timer.at == core_node_deadline(core, node));
    if (!node->counted)
        return;
    node->used = NULL;
    node->counted = false;
    CHECK(core_node_count(core, node));
    CHECK(memcmp(kept.used, node->used, slots * sizeof *kept.used) == 0);
    CHECK(kept.slots_used == node->slots_used);
    CHECK(kept.gpus_used == node->gpus_used);
    free(kept.used);
}

void core_check(struct core *core)
{
    for (size_t i = 0; i < core->job_count && core->failed == ST_OK; i++)
        check_job(core, core->jobs[i]);
    for (size_t i = 0; i < core->node_count && core->failed == ST_OK; i++)
        check_node(core, core->nodes[i]);
}
