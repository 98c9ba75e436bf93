/* The core as a whole: opened, closed, and what the loop of a process asks of it as time passes. */
#include <stdlib.h>

#include "server/core/internal.h"

enum status core_new(const struct core_options *options, struct core **out)
{
    struct core *core = calloc(1, sizeof *core);
    if (!core)
        return ST_NO_MEMORY;
    core->options = *options;
    if (core->options.hang_ms == 0)
        core->options.hang_ms = 30000;
    core->started_at = core_now(core);
    core->promised_at = core->left_at = core->tidy_at = INT64_MAX;
    enum status st = core_load(core);
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
    for (size_t i = 0; i < core->node_count; i++) {
        free(core->nodes[i]->gpus);
        free(core->nodes[i]->strays);
        free(core->nodes[i]);
    }
    free(core->jobs);
    free(core->nodes);
    free(core);
}

/* ---- time ---- */

static int64_t job_deadline(const struct core_job *job)
{
    int64_t at = job->unreadable[0] ? INT64_MAX : machine_deadline(&job->m);
    if (job->rows.count > 0 && job->rows.since + CORE_ROWS_MS < at)
        at = job->rows.since + CORE_ROWS_MS;
    for (const struct core_wait *wait = job->waits; wait; wait = wait->next) {
        if (wait->until < at)
            at = wait->until;
    }
    return at;
}

int64_t core_deadline(struct core *core)
{
    int64_t now = core_now(core);
    int64_t at = INT64_MAX;
    int64_t look_at = core->looked_at + CORE_LOOK_MS;
    if (look_at < now)
        look_at = now; /* nothing that was promised before */
    for (size_t i = 0; i < core->job_count; i++) {
        int64_t of_job = job_deadline(core->jobs[i]);
        if (of_job < at)
            at = of_job;
        /* What keeps it from a node passes with time, too. */
        if (machine_wants_slots(&core->jobs[i]->m, now) && look_at < at)
            at = look_at;
    }
    for (size_t i = 0; i < core->node_count; i++) {
        const struct core_node *node = core->nodes[i];
        int64_t silent_at = node->heard_at + CORE_NODE_MS;
        if (!node->silent && !core_node_held(core, node) && silent_at < at)
            at = silent_at;
    }
    if (core->outage.since != 0 && core->outage.looked_at + OUTAGE_LOOK_MS < at)
        at = core->outage.looked_at + OUTAGE_LOOK_MS;
    if (core->draining_until != 0 && core->draining_until < at)
        at = core->draining_until;
    if (core->left_at < at)
        at = core->left_at;
    if (core->tidy_at < at)
        at = core->tidy_at;
    if (core->schedule_needed)
        at = now;
    core->promised_at = at > now ? at : now; /* what is overdue already was excused already */
    return at;
}

/* SIGSTOP, a starved machine, a suspended laptop: what happened meanwhile waits in the mailbox. */
void core_wake(struct core *core)
{
    int64_t now = core_now(core);
    if (core->retire_needed)
        (void)core_retire(core, 0);
    if (core->promised_at == INT64_MAX || now - core->promised_at < CORE_LATE_MS)
        return;
    int64_t late = now - core->promised_at;
    core->promised_at = now;
    LOG_WARN(core->options.log, "did not run for %.1f s; nobody is judged by that time",
             (double)late / 1000.0);
    core->expects_until += late; /* the nodes can't have come meanwhile */
    for (size_t i = 0; i < core->node_count; i++)
        core->nodes[i]->heard_at += late;
    for (size_t i = 0; i < core->job_count; i++)
        machine_excuse(&core->jobs[i]->m, late);
}

void core_tick(struct core *core)
{
    int64_t now = core_now(core);
    core_wake(core);
    if (core->draining_until != 0 && now >= core->draining_until)
        core_drain_end(core);
    core_nodes_tick(core);
    core_verdicts_tick(core);
    for (size_t i = 0; i < core->job_count && core->failed == ST_OK; i++) {
        struct core_job *job = core->jobs[i];
        if (job->unreadable[0])
            continue;
        if (job->rows.count > 0 && now >= job->rows.since + CORE_ROWS_MS)
            core_flush_rows(core, job);
        core_waits_tick(core, job);
        /* Also where the job's own deadline, the end of its back-off, has just passed. */
        if (machine_wants_slots(&job->m, now))
            core->schedule_needed = true;
        if (machine_deadline(&job->m) == INT64_MAX)
            continue;
        struct machine_event event = core_event(core, MACHINE_EV_TICK);
        (void)core_apply(core, job, &event);
    }
    core_chores_tick(core);
    core_schedule(core);
}
