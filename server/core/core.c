#include "server/core/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    core->promised_at = INT64_MAX;
    enum status st = core_load(core);
    if (st == ST_OK)
        st = core->failed;
    if (st != ST_OK) {
        core_free(core);
        return st;
    }
    *out = core;
    return ST_OK;
}

void core_job_free(struct core_job *job)
{
    if (!job)
        return;
    jm_release(&job->m);
    kv_map_clear(&job->kv);
    while (job->waits) {
        struct core_wait *wait = job->waits;
        job->waits = wait->next;
        free(wait);
    }
    for (size_t i = 0; i < job->rows.count; i++)
        free(job->rows.list[i].data);
    free(job->rows.list);
    free(job->spec);
    free(job->job_file);
    free(job->pins);
    free(job->ranks);
    free(job);
}

void core_free(struct core *core)
{
    if (!core)
        return;
    for (size_t i = 0; i < core->job_count; i++)
        core_job_free(core->jobs[i]);
    for (size_t i = 0; i < core->node_count; i++) {
        free(core->nodes[i]->gpus);
        free(core->nodes[i]);
    }
    free(core->jobs);
    free(core->nodes);
    free(core);
}

enum status core_failed(const struct core *core)
{
    return core->failed;
}

const struct core_options *core_options(const struct core *core)
{
    return &core->options;
}

void core_fail(struct core *core, enum status st, const char *doing)
{
    if (core->failed != ST_OK)
        return;
    core->failed = st;
    const char *detail = journal_error(core->options.journal);
    LOG_ERROR(core->options.log, "%s: %s%s%s; the coordinator ends and starts again", doing,
              status_string(st), detail[0] ? ": " : "", detail);
}

/* ---- jobs ---- */

static enum jm_metric metric_of(enum job_metric metric)
{
    switch (metric) {
    case JOB_METRIC_LOSS:
        return METRIC_LOSS;
    case JOB_METRIC_EVAL_LOSS:
        return METRIC_EVAL_LOSS;
    case JOB_METRIC_EVAL_ACCURACY:
        return METRIC_EVAL_ACCURACY;
    case JOB_METRIC_NONE:
        break;
    }
    return METRIC_NONE;
}

struct jm_config core_config(const struct core *core, const struct job *spec)
{
    struct jm_config config = { .ranks = (uint32_t)spec->workers.count,
                                .keep_last = (uint64_t)spec->checkpoint.keep_last,
                                .best_metric = metric_of(spec->checkpoint.keep_best.metric),
                                .keep_best = (uint64_t)spec->checkpoint.keep_best.n,
                                .keep_every = (uint64_t)spec->checkpoint.keep_every,
                                .delta = spec->checkpoint.delta,
                                .every_auto = spec->checkpoint.every.unit == JOB_AUTO,
                                .relaxed = spec->recovery.exactness == JOB_EXACTNESS_RELAXED,
                                .skip_nan = spec->recovery.on_nan == JOB_ON_NAN_SKIP,
                                .hang_ms = core->options.hang_ms };
    if (spec->checkpoint.every.unit == JOB_MS)
        config.every_ms = (int64_t)spec->checkpoint.every.value;
    if (spec->train.duration.unit == JOB_MS)
        config.time_limit_ms = (int64_t)spec->train.duration.value;
    return config;
}

struct core_job *core_job_at(struct core *core, const char *id)
{
    for (size_t i = core->job_count; i > 0; i--) {
        if (strcmp(core->jobs[i - 1]->id, id) == 0)
            return core->jobs[i - 1];
    }
    return NULL;
}

enum status core_add_job(struct core *core, struct core_job *job)
{
    if (core->job_count == core->job_capacity) {
        size_t capacity = core->job_capacity ? 2 * core->job_capacity : 16;
        struct core_job **more = realloc(core->jobs, capacity * sizeof(void *));
        if (!more)
            return ST_NO_MEMORY;
        core->jobs = more;
        core->job_capacity = capacity;
    }
    core->jobs[core->job_count++] = job;
    if (job->seq > core->seq_last)
        core->seq_last = job->seq;
    return ST_OK;
}

/* ---- time ---- */

void core_settle(struct core *core)
{
    for (int i = 0; i < 8 && core->schedule_needed && core->failed == ST_OK; i++) {
        core->schedule_needed = false;
        core_schedule(core);
    }
}

static int64_t job_deadline(const struct core_job *job)
{
    int64_t at = jm_deadline(&job->m);
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
    for (size_t i = 0; i < core->job_count; i++) {
        int64_t of_job = job_deadline(core->jobs[i]);
        if (of_job < at)
            at = of_job;
    }
    for (size_t i = 0; i < core->node_count; i++) {
        const struct core_node *node = core->nodes[i];
        int64_t silent_at = node->heard_at + CORE_NODE_MS;
        if (!node->silent && silent_at < at)
            at = silent_at;
    }
    if (core->draining_until != 0 && core->draining_until < at)
        at = core->draining_until;
    if (core->schedule_needed)
        at = now;
    core->promised_at = at;
    return at;
}

/* SIGSTOP, a starved machine, a suspended laptop: what happened meanwhile waits in the mailbox. */
void core_wake(struct core *core)
{
    int64_t now = core_now(core);
    if (core->promised_at == INT64_MAX || now - core->promised_at < CORE_LATE_MS)
        return;
    int64_t late = now - core->promised_at;
    core->promised_at = now;
    LOG_WARN(core->options.log, "did not run for %.1f s; nobody is judged by that time",
             (double)late / 1000.0);
    for (size_t i = 0; i < core->node_count; i++)
        core->nodes[i]->heard_at += late;
    for (size_t i = 0; i < core->job_count; i++)
        jm_excuse(&core->jobs[i]->m, late);
}

void core_tick(struct core *core)
{
    int64_t now = core_now(core);
    core_wake(core);
    if (core->draining_until != 0 && now >= core->draining_until)
        core_drain_end(core);
    core_nodes_tick(core);
    for (size_t i = 0; i < core->job_count && core->failed == ST_OK; i++) {
        struct core_job *job = core->jobs[i];
        if (job->rows.count > 0 && now >= job->rows.since + CORE_ROWS_MS)
            core_flush_rows(core, job);
        core_waits_tick(core, job);
        /* Also where the job's own deadline, the end of its back-off, has just passed. */
        if (jm_wants_slots(&job->m, now))
            core->schedule_needed = true;
        if (jm_deadline(&job->m) == INT64_MAX)
            continue;
        struct job_event event = core_event(core, EV_TICK);
        (void)core_apply(core, job, &event);
    }
    core_settle(core);
}
