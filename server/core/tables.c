/* The core's tables of jobs: how one is found, what is kept of it, which worker has which rank. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "server/core/internal.h"
#include "server/machine/codec.h"

static enum machine_metric metric_of(enum job_metric metric)
{
    switch (metric) {
    case JOB_METRIC_LOSS:
        return MACHINE_METRIC_LOSS;
    case JOB_METRIC_EVAL_LOSS:
        return MACHINE_METRIC_EVAL_LOSS;
    case JOB_METRIC_EVAL_ACCURACY:
        return MACHINE_METRIC_EVAL_ACCURACY;
    case JOB_METRIC_NONE:
        break;
    }
    return MACHINE_METRIC_NONE;
}

/* Returns how lanes are dealt. In a pipeline none move: the time that a worker takes for a lane
 * says nothing of another stage's. */
static enum machine_shares shares_of(const struct job *spec)
{
    if (spec->parallel.pipeline.stages > 1)
        return MACHINE_SHARES_FILE;
    if (spec->workers.by_speed)
        return MACHINE_SHARES_AUTO;
    return job_shares_even(spec) ? MACHINE_SHARES_EVEN : MACHINE_SHARES_FILE;
}

/* Returns the steps from a snapshot to the comparison of the replicas that follows it, which is
 * made after that of its own step. */
static uint64_t states_audited(const struct job *spec)
{
    return spec->audit.checksum > 0 ? (uint64_t)spec->audit.checksum + 1 : 0;
}

/* Returns within how many steps an error shows: two rounds of audits of lanes, or
 * states_audited. */
static uint64_t audited_within(const struct job *spec)
{
    const uint64_t lanes = 2 * (uint64_t)spec->audit.every, states = states_audited(spec);
    if (spec->recovery.exactness == JOB_EXACTNESS_RELAXED)
        return 0;
    return lanes > states ? lanes : states;
}

/* True if pins and data that differ are accepted. In a pipeline they are not: unlike machines lay
 * out differently what one stage gives the next, and what the first one computes with is labelled
 * in the last. */
static bool accepts_others(const struct job *spec)
{
    return spec->recovery.exactness == JOB_EXACTNESS_RELAXED && spec->parallel.pipeline.stages <= 1;
}

static struct machine_config config_of(const struct core *core, const struct job *spec)
{
    const int64_t count = spec->workers.count, min = spec->workers.min;
    const int64_t most = job_workers_most(spec); /* 0: of one that can't be read */
    struct machine_config config = { .ranks = (uint32_t)count,
                                     .most = (uint32_t)(most > count ? most : count),
                                     .min = (uint32_t)(min < count ? min : 0),
                                     .spares = (uint32_t)spec->workers.spares,
                                     .lanes = (uint32_t)spec->train.lanes,
                                     .shares = shares_of(spec),
                                     .stages = spec->parallel.pipeline.stages,
                                     .owns = spec->parallel.zero > 0,
                                     .on_device = spec->workers.device != JOB_DEVICE_CPU,
                                     .audited = audited_within(spec),
                                     .lanes_audited = 2 * (uint64_t)spec->audit.every,
                                     .states_audited = states_audited(spec),
                                     .keep_last = (uint64_t)spec->checkpoint.keep_last,
                                     .best_metric = metric_of(spec->checkpoint.keep_best.metric),
                                     .keep_best = (uint64_t)spec->checkpoint.keep_best.n,
                                     .keep_every = (uint64_t)spec->checkpoint.keep_every,
                                     .delta = spec->checkpoint.delta,
                                     .every_auto = spec->checkpoint.every.unit == JOB_AUTO,
                                     .relaxed = accepts_others(spec),
                                     .skip_nan = spec->recovery.on_nan == JOB_ON_NAN_SKIP,
                                     .hang_ms = core->options.hang_ms,
                                     .restarts = core->options.restarts,
                                     .silent_ms = core->lost_ms,
                                     .spread_ms = core->spread_ms };
    if (spec->checkpoint.every.unit == JOB_MS)
        config.every_ms = (int64_t)spec->checkpoint.every.value;
    if (spec->train.duration.unit == JOB_MS)
        config.time_limit_ms = (int64_t)spec->train.duration.value;
    memcpy(config.widths, spec->parallel.stages, sizeof config.widths);
    return config;
}

struct core_job *core_job_at(struct core *core, const char *id)
{
    return table_get(&core->jobs_by_id, id);
}

/* Makes room for one job more, wherever it may come to be: nothing of that fails afterwards. */
static enum status reserve_jobs(struct core *core)
{
    enum status st = table_reserve(&core->jobs_by_id, core->job_count + 1);
    if (st == ST_OK)
        st = timers_reserve(&core->job_timers, core->job_count + 1);
    if (st == ST_OK)
        st = ordered_reserve(&core->live, core->job_count + 1);
    if (st == ST_OK)
        st = ordered_reserve(&core->queue, core->job_count + 1);
    if (st == ST_OK)
        st = ordered_reserve(&core->hungry, core->job_count + 1);
    if (st != ST_OK || core->job_count < core->job_capacity)
        return st;
    size_t capacity = core->job_capacity ? 2 * core->job_capacity : 16;
    struct core_job **more = realloc(core->jobs, capacity * sizeof(void *));
    if (!more)
        return ST_NO_MEMORY;
    core->jobs = more;
    core->job_capacity = capacity;
    return ST_OK;
}

enum status core_add_job(struct core *core, struct core_job *job)
{
    enum status st = reserve_jobs(core);
    if (st == ST_OK)
        st = table_put(&core->jobs_by_id, job->id, job);
    if (st != ST_OK)
        return st;
    CHECK(core->job_count < core->job_capacity);
    size_t at = core->job_count++;
    for (; at > 0 && core->jobs[at - 1]->seq > job->seq; at--) /* a job that ended is read */
        core->jobs[at] = core->jobs[at - 1];
    core->jobs[at] = job;
    job->used = ++core->uses;
    job->version = ++core->loads << 32;
    if (job->seq > core->seq_last)
        core->seq_last = job->seq;
    core_job_moved(core, job);
    return ST_OK;
}

struct core_job *core_loaded(struct core *core, const char *id)
{
    return core_job_at(core, id);
}

void core_hold(struct core *core, const char *id)
{
    struct core_job *job = core_job_at(core, id);
    if (job)
        job->held++;
}

void core_release(struct core *core, const char *id)
{
    struct core_job *job = core_job_at(core, id);
    if (!job || job->held == 0)
        return;
    job->held--;
    core->retire_needed = true;
}

/* ---- jobs: what is kept of them ---- */

bool core_job_queues(const struct core_job *job)
{
    const struct machine *m = &job->m;
    const bool goes_on =
        m->state == MACHINE_RECOVERING && (!machine_ends(m) || m->ending.to == MACHINE_RECOVERING);
    return !job->unreadable[0] && (m->state == MACHINE_QUEUED || goes_on);
}

/* A job that is due for longer than its last tick is due again in the next ms, not at once. */
int64_t core_job_deadline(const struct core_job *job)
{
    if (job->unreadable[0])
        return TIMERS_NEVER;
    int64_t at = machine_deadline(&job->m);
    if (job->rows.count > 0 && !job->dirty && job->rows.since + CORE_ROWS_MS < at)
        at = job->rows.since + CORE_ROWS_MS;
    return at > job->ticked_at ? at : job->ticked_at + 1;
}

static void leave_seat(struct core_rank *rank)
{
    if (!rank->node)
        return;
    rank->node->counted = false;
    *rank->link = rank->next;
    if (rank->next)
        rank->next->link = rank->link;
    rank->node = NULL;
}

/* Takes the rank's slot on its node. A node that nobody heard of yet is made: its slots are taken
 * when its agent comes. */
static void take_seat_of(struct core *core, struct core_job *job, uint32_t index)
{
    struct core_rank *rank = &job->ranks[index];
    const struct machine_rank *of = &job->m.ranks[index];
    struct core_node *node = core_node_at(core, of->node);
    if (!node)
        node = core_node_make(core, of->node);
    if (!node)
        return; /* with LIMIT_NODES nodes no other one gets jobs */
    rank->node = node;
    rank->slot = of->slot;
    rank->job = job;
    rank->next = node->ranks;
    rank->link = &node->ranks;
    if (rank->next)
        rank->next->link = &rank->next;
    node->ranks = rank;
    node->counted = false;
}

/* Takes and leaves the ranks' slots. While a generation lives, ranks only leave, and spares come
 * and go. */
static void seat_ranks(struct core *core, struct core_job *job)
{
    const struct machine *m = &job->m;
    const struct core_seats now = { m->state, m->ending.to, m->generation, m->gone_count,
                                    m->spares.moves };
    const struct core_seats was = job->seats;
    if (now.state == was.state && now.end_to == was.end_to && now.generation == was.generation &&
        now.gone_count == was.gone_count && now.spare_moves == was.spare_moves)
        return;
    job->seats = now;
    const bool anew = now.generation != was.generation || now.state == MACHINE_PLACING ||
                      now.spare_moves != was.spare_moves;
    for (uint32_t i = machine_capacity(m); i > 0; i--) {
        if (anew || !machine_holds_slot(m, i - 1))
            leave_seat(&job->ranks[i - 1]);
        if (anew && machine_holds_slot(m, i - 1))
            take_seat_of(core, job, i - 1);
    }
}

static bool is_moved(const struct core_rank *rank, const struct machine *m, uint32_t index)
{
    const struct machine_rank *of = &m->ranks[index];
    return rank->conn && (of->gone || rank->conn->number != of->number);
}

/* Ranks were renumbered: each connection is given to its worker's new rank. */
void core_reseat(struct core *core, struct core_job *job)
{
    const struct machine *m = &job->m;
    const uint32_t capacity = machine_capacity(m);
    bool moved = false;
    for (uint32_t i = 0; i < capacity; i++)
        moved = moved || is_moved(&job->ranks[i], m, i);
    struct core_conn **conns = moved ? calloc(capacity, sizeof(void *)) : NULL;
    if (!conns) {
        if (moved)
            core_fail(core, ST_NO_MEMORY, "seating workers");
        return;
    }
    for (uint32_t i = 0; i < capacity; i++) {
        conns[i] = job->ranks[i].conn;
        job->ranks[i].conn = NULL;
    }
    for (uint32_t i = 0; i < capacity; i++) {
        if (!conns[i])
            continue;
        const uint32_t at = machine_find_number(m, conns[i]->number, m->count);
        if (at == MACHINE_ALL_RANKS) {
            core_detach(conns[i]);
            continue;
        }
        conns[i]->rank = at;
        job->ranks[at].conn = conns[i];
    }
    free(conns);
}

void core_job_moved(struct core *core, struct core_job *job)
{
    timers_set(&core->job_timers, &job->timer, core_job_deadline(job));
    ordered_keep(&core->live, job->seq, machine_state_final(job->m.state) ? NULL : job);
    const bool waits = core_job_queues(job);
    ordered_keep(&core->queue, job->seq, waits ? job : NULL);
    const bool hungers = !job->unreadable[0] && machine_hungers(&job->m);
    ordered_keep(&core->hungry, job->seq, hungers ? job : NULL);
    if (!waits)
        job->behind = 0;
    if (job->m.state != MACHINE_RECOVERING && job->m.state != MACHINE_PLACING) {
        job->recovers_at = 0;
    } else if (job->recovers_at == 0) {
        job->recovers_at = core_now(core);
    }
    seat_ranks(core, job);
}

void core_remove_job(struct core *core, struct core_job *job)
{
    size_t at = 0;
    while (at < core->job_count && core->jobs[at] != job)
        at++;
    CHECK(at < core->job_count);
    core->job_count--;
    memmove(&core->jobs[at], &core->jobs[at + 1], (core->job_count - at) * sizeof(void *));
    table_remove(&core->jobs_by_id, job->id);
    timers_set(&core->job_timers, &job->timer, TIMERS_NEVER);
    ordered_keep(&core->live, job->seq, NULL);
    ordered_keep(&core->queue, job->seq, NULL);
    ordered_keep(&core->hungry, job->seq, NULL);
    for (uint32_t i = 0; i < machine_capacity(&job->m); i++)
        leave_seat(&job->ranks[i]);
}

void core_queue_moved(struct core *core)
{
    for (size_t i = 0; i < core->queue.count; i++)
        ((struct core_job *)core->queue.list[i].value)->version++;
}

enum status core_job_new(struct core *core, const struct journal_job *row, struct job *spec,
                         struct core_job **out)
{
    struct core_job *job = calloc(1, sizeof *job);
    if (!job) {
        free(spec);
        return ST_NO_MEMORY;
    }
    job->spec = spec;
    job->seq = row->seq;
    job->loss = job->accuracy = job->eval_loss = __builtin_nan("");
    (void)snprintf(job->id, sizeof job->id, "%s", row->id);
    (void)snprintf(job->name, sizeof job->name, "%s", row->name);
    job->job_file = strdup(row->job_file);
    job->pins = strdup(row->pins);
    const struct machine_config config = config_of(core, spec);
    const size_t capacity = (size_t)config.most + config.spares;
    job->ranks = calloc(capacity, sizeof *job->ranks);
    job->recorded_ranks = calloc(capacity, sizeof *job->recorded_ranks);
    job->layout = calloc(1, sizeof *job->layout);
    enum status st = job->job_file && job->pins && job->ranks && job->recorded_ranks && job->layout
                         ? ST_OK
                         : ST_NO_MEMORY;
    if (st == ST_OK) {
        st = machine_init(&job->m, row->id, &config, core_now(core),
                          clock_wall_ms(core->options.clock));
    }
    if (st != ST_OK) {
        core_job_free(job);
        return st;
    }
    for (uint32_t i = 0; i < capacity; i++) /* which need no rows */
        job->recorded_ranks[i] = machine_rank_row(&job->m, i);
    *out = job;
    return ST_OK;
}

void core_forget_meetings(struct core_job *job)
{
    while (job->meetings) {
        struct core_meeting *meeting = job->meetings;
        job->meetings = meeting->next;
        for (uint32_t i = 0; i < meeting->size; i++)
            free(meeting->ranks[i].part);
        free(meeting);
    }
}

void core_job_free(struct core_job *job)
{
    if (!job)
        return;
    core_forget_meetings(job);
    machine_release(&job->m);
    for (size_t i = 0; i < job->rows.count; i++)
        free(job->rows.list[i].data);
    free(job->rows.list);
    free(job->spec);
    free(job->job_file);
    free(job->recorded);
    free(job->recorded_ranks);
    free(job->layout);
    free(job->pins);
    free(job->ranks);
    free(job);
}

enum status core_ckpt_dir(const struct core_job *job, uint64_t step, uint32_t generation, char *out,
                          size_t capacity)
{
    return ckpt_folder_path(job->spec->checkpoint.store, job->id, step, generation,
                            machine_folder_try(&job->m, step, generation), out, capacity);
}

/* ---- sessions ---- */

void core_detach(struct core_conn *conn)
{
    struct core_job *job = conn->job;
    conn->job = NULL;
    if (!job)
        return;
    if (job->metrics_from == conn)
        job->metrics_from = NULL;
    if (job->ranks[conn->rank].conn == conn)
        job->ranks[conn->rank].conn = NULL;
}

const char *core_version_said(const char *theirs)
{
    return theirs[0] ? theirs : "0.1"; /* the last one that didn't say it */
}

/* Returns the number of characters of "MAJOR.MINOR". */
static size_t minor_end(const char *version)
{
    static const char digits[] = "0123456789";
    size_t end = strspn(version, digits);
    return version[end] == '.' ? end + 1 + strspn(version + end + 1, digits) : end;
}

bool core_version_fits(const char *theirs)
{
    const char *said = core_version_said(theirs);
    size_t end = minor_end(CAIRN_VERSION);
    return minor_end(said) == end && strncmp(said, CAIRN_VERSION, end) == 0;
}
