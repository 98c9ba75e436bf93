/* The core's tables of jobs: how one is found, what is kept of it, which worker has which rank. */
#include "server/coord/index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "jobspec/budget.h"
#include "server/coord/base.h"
#include "server/coord/fleet_tables.h"
#include "server/jobfsm/persist.h"

static enum fsm_metric metric_of(enum jobspec_metric metric)
{
    switch (metric) {
    case JOBSPEC_METRIC_LOSS:
        return FSM_METRIC_LOSS;
    case JOBSPEC_METRIC_EVAL_LOSS:
        return FSM_METRIC_EVAL_LOSS;
    case JOBSPEC_METRIC_EVAL_ACCURACY:
        return FSM_METRIC_EVAL_ACCURACY;
    case JOBSPEC_METRIC_NONE:
        break;
    }
    return FSM_METRIC_NONE;
}

/* Returns how lanes are dealt. In a pipeline none move: the time that a worker takes for a lane
 * says nothing of another stage's. */
static enum fsm_shares shares_of(const struct jobspec *spec)
{
    if (spec->parallel.pipeline.stages > 1)
        return FSM_SHARES_FILE;
    if (spec->workers.by_speed)
        return FSM_SHARES_AUTO;
    return jobspec_shares_even(spec) ? FSM_SHARES_EVEN : FSM_SHARES_FILE;
}

/* Returns the steps from a snapshot to the comparison of the replicas that follows it, which is
 * made after that of its own step. */
static uint64_t states_audited(const struct jobspec *spec)
{
    return spec->audit.checksum > 0 ? (uint64_t)spec->audit.checksum + 1 : 0;
}

/* Returns within how many steps an error shows: two rounds of audits of lanes, or
 * states_audited. */
static uint64_t audited_within(const struct jobspec *spec)
{
    const uint64_t lanes = 2 * (uint64_t)spec->audit.every, states = states_audited(spec);
    if (spec->recovery.exactness == JOBSPEC_EXACTNESS_RELAXED)
        return 0;
    return lanes > states ? lanes : states;
}

/* True if pins and data that differ are accepted. In a pipeline they are not: unlike machines lay
 * out differently what one stage gives the next, and what the first one computes with is labelled
 * in the last. */
static bool accepts_others(const struct jobspec *spec)
{
    return spec->recovery.exactness == JOBSPEC_EXACTNESS_RELAXED &&
           spec->parallel.pipeline.stages <= 1;
}

/* Sets what only jobs with a command have. */
static void set_command(const struct jobspec *spec, struct fsm_config *config)
{
    config->program = true;
    config->saves_nothing = !spec->command.saves;
    config->budget = (uint32_t)jobspec_budget(spec);
    config->budget_first = (uint32_t)jobspec_budget_first(spec);
    config->grace_ms = spec->command.grace_ms;
    config->come_ms = spec->checkpoint.grace_ms + spec->command.grace_ms;
}

static struct fsm_config config_of(const struct coord *coord, const struct jobspec *spec)
{
    const int64_t count = spec->workers.count, min = spec->workers.min;
    const int64_t most = jobspec_workers_most(spec); /* 0: of one that can't be read */
    struct fsm_config config = { .ranks = (uint32_t)count,
                                 .most = (uint32_t)(most > count ? most : count),
                                 .min = (uint32_t)(min < count ? min : 0),
                                 .spares = (uint32_t)spec->workers.spares,
                                 .lanes = (uint32_t)spec->train.lanes,
                                 .shares = shares_of(spec),
                                 .stages = spec->parallel.pipeline.stages,
                                 .owns = spec->parallel.zero > 0,
                                 .on_device = spec->workers.device != JOBSPEC_DEVICE_CPU,
                                 .audited = audited_within(spec),
                                 .lanes_audited = 2 * (uint64_t)spec->audit.every,
                                 .states_audited = states_audited(spec),
                                 .keep_last = (uint64_t)spec->checkpoint.keep_last,
                                 .best_metric = metric_of(spec->checkpoint.keep_best.metric),
                                 .keep_best = (uint64_t)spec->checkpoint.keep_best.n,
                                 .keep_every = (uint64_t)spec->checkpoint.keep_every,
                                 .delta = spec->checkpoint.delta,
                                 .every_auto = spec->checkpoint.every.unit == JOBSPEC_AUTO,
                                 .relaxed = accepts_others(spec),
                                 .skip_nan = spec->recovery.on_nan == JOBSPEC_ON_NAN_SKIP,
                                 .ends_early = spec->train.stop.metric != JOBSPEC_METRIC_NONE,
                                 .hang_ms = coord->options.hang_ms,
                                 .restarts = coord->options.restarts,
                                 .silent_ms = coord->lost_ms,
                                 .spread_ms = coord->spread_ms };
    if (spec->checkpoint.every.unit == JOBSPEC_MS)
        config.every_ms = (int64_t)spec->checkpoint.every.value;
    if (spec->train.duration.unit == JOBSPEC_MS)
        config.time_limit_ms = (int64_t)spec->train.duration.value;
    memcpy(config.widths, spec->parallel.stages, sizeof(config.widths));
    if (jobspec_is_command(spec))
        set_command(spec, &config);
    return config;
}

struct coord_job *coord_job_at(struct coord *coord, const char *id)
{
    return table_get(&coord->jobs_by_id, id);
}

/* Makes room for one job more, wherever it may come to be: nothing of that fails afterwards. */
static enum status reserve_jobs(struct coord *coord)
{
    enum status st = table_reserve(&coord->jobs_by_id, coord->job_count + 1);
    if (st == ST_OK)
        st = timers_reserve(&coord->job_timers, coord->job_count + 1);
    if (st == ST_OK)
        st = ordered_reserve(&coord->live, coord->job_count + 1);
    if (st == ST_OK)
        st = ordered_reserve(&coord->queue, coord->job_count + 1);
    if (st == ST_OK)
        st = ordered_reserve(&coord->lacking, coord->job_count + 1);
    if (st != ST_OK || coord->job_count < coord->job_capacity)
        return st;
    size_t capacity = coord->job_capacity ? 2 * coord->job_capacity : 16;
    struct coord_job **more = realloc(coord->jobs, capacity * sizeof(void *));
    if (more == NULL)
        return ST_NO_MEMORY;
    coord->jobs = more;
    coord->job_capacity = capacity;
    return ST_OK;
}

enum status coord_add_job(struct coord *coord, struct coord_job *job)
{
    enum status st = reserve_jobs(coord);
    if (st == ST_OK)
        st = table_put(&coord->jobs_by_id, job->id, job);
    if (st != ST_OK)
        return st;
    CHECK(coord->job_count < coord->job_capacity);
    size_t at = coord->job_count++;
    for (; at > 0 && coord->jobs[at - 1]->seq > job->seq; at--) /* a job that ended is read */
        coord->jobs[at] = coord->jobs[at - 1];
    coord->jobs[at] = job;
    job->used = ++coord->uses;
    job->version = ++coord->loads << 32;
    if (job->seq > coord->seq_last)
        coord->seq_last = job->seq;
    coord_job_moved(coord, job);
    return ST_OK;
}

struct coord_job *coord_loaded(struct coord *coord, const char *id)
{
    return coord_job_at(coord, id);
}

void coord_hold(struct coord *coord, const char *id)
{
    struct coord_job *job = coord_job_at(coord, id);
    if (job != NULL)
        job->held++;
}

void coord_release(struct coord *coord, const char *id)
{
    struct coord_job *job = coord_job_at(coord, id);
    if (job == NULL || job->held == 0)
        return;
    job->held--;
    coord->retire_needed = true;
}

/* ---- jobs: what is kept of them ---- */

bool coord_job_queues(const struct coord_job *job)
{
    const struct fsm *m = &job->m;
    const bool goes_on =
        m->state == FSM_RECOVERING && (!fsm_ends(m) || m->ending.to == FSM_RECOVERING);
    return !job->unreadable[0] && (m->state == FSM_QUEUED || goes_on);
}

/* A job that is due for longer than its last tick is due again in the next ms, not at once. */
int64_t coord_job_deadline(const struct coord_job *job)
{
    if (job->unreadable[0])
        return TIMERS_NEVER;
    int64_t at = fsm_deadline(&job->m);
    if (job->rows.count > 0 && !job->dirty && job->rows.since + COORD_ROWS_MS < at)
        at = job->rows.since + COORD_ROWS_MS;
    return at > job->ticked_at ? at : job->ticked_at + 1;
}

static void detach_from_node(struct coord_rank *rank)
{
    if (rank->node == NULL)
        return;
    rank->node->counted = false;
    *rank->link = rank->next;
    if (rank->next != NULL)
        rank->next->link = rank->link;
    rank->node = NULL;
}

/* Takes the rank's slot on its node. A node that nobody heard of yet is made: its slots are taken
 * when its agent comes. */
static void attach_to_node(struct coord *coord, struct coord_job *job, uint32_t index)
{
    struct coord_rank *rank = &job->ranks[index];
    const struct fsm_rank *of = &job->m.ranks[index];
    struct coord_node *node = coord_node_at(coord, of->node);
    if (node == NULL)
        node = coord_node_make(coord, of->node);
    if (node == NULL)
        return; /* with LIMIT_NODES nodes no other one gets jobs */
    rank->node = node;
    rank->slot = of->slot;
    rank->job = job;
    rank->next = node->ranks;
    rank->link = &node->ranks;
    if (rank->next != NULL)
        rank->next->link = &rank->next;
    node->ranks = rank;
    node->counted = false;
}

/* Takes and leaves the ranks' slots. While a generation lives, ranks only leave, and spares come
 * and go. */
static void take_places(struct coord *coord, struct coord_job *job)
{
    const struct fsm *m = &job->m;
    const struct coord_places_seen now = { m->state, m->ending.to, m->generation, m->gone_count,
                                           m->spares.moves };
    const struct coord_places_seen was = job->places_seen;
    if (now.state == was.state && now.end_to == was.end_to && now.generation == was.generation &&
        now.gone_count == was.gone_count && now.spare_moves == was.spare_moves)
        return;
    job->places_seen = now;
    const bool anew = now.generation != was.generation || now.state == FSM_PLACING ||
                      now.spare_moves != was.spare_moves;
    for (uint32_t i = fsm_capacity(m); i > 0; i--) {
        if (anew || !fsm_holds_slot(m, i - 1))
            detach_from_node(&job->ranks[i - 1]);
        if (anew && fsm_holds_slot(m, i - 1))
            attach_to_node(coord, job, i - 1);
    }
}

static bool is_moved(const struct coord_rank *rank, const struct fsm *m, uint32_t index)
{
    const struct fsm_rank *of = &m->ranks[index];
    return rank->conn != NULL && (of->gone || rank->conn->number != of->number);
}

/* Ranks were renumbered: each connection is given to its worker's new rank. */
void coord_reattach_connections(struct coord *coord, struct coord_job *job)
{
    const struct fsm *m = &job->m;
    const uint32_t capacity = fsm_capacity(m);
    bool moved = false;
    for (uint32_t i = 0; i < capacity; i++)
        moved = moved || is_moved(&job->ranks[i], m, i);
    struct coord_conn **conns = moved ? calloc(capacity, sizeof(void *)) : NULL;
    if (conns == NULL) {
        if (moved)
            coord_fail(coord, ST_NO_MEMORY, "seating workers");
        return;
    }
    for (uint32_t i = 0; i < capacity; i++) {
        conns[i] = job->ranks[i].conn;
        job->ranks[i].conn = NULL;
    }
    for (uint32_t i = 0; i < capacity; i++) {
        if (conns[i] == NULL)
            continue;
        const uint32_t at = fsm_find_number(m, conns[i]->number, m->count);
        if (at == FSM_ALL_RANKS) {
            coord_detach(conns[i]);
            continue;
        }
        conns[i]->rank = at;
        job->ranks[at].conn = conns[i];
    }
    free(conns);
}

void coord_job_moved(struct coord *coord, struct coord_job *job)
{
    timers_set(&coord->job_timers, &job->timer, coord_job_deadline(job));
    ordered_keep(&coord->live, job->seq, fsm_state_final(job->m.state) ? NULL : job);
    const bool waits = coord_job_queues(job);
    ordered_keep(&coord->queue, job->seq, waits ? job : NULL);
    const bool wants = !job->unreadable[0] && fsm_wants_workers(&job->m);
    ordered_keep(&coord->lacking, job->seq, wants ? job : NULL);
    if (!waits)
        job->behind = 0;
    if (job->m.state != FSM_RECOVERING && job->m.state != FSM_PLACING) {
        job->recovers_at = 0;
    } else if (job->recovers_at == 0) {
        job->recovers_at = coord_now(coord);
    }
    take_places(coord, job);
}

void coord_remove_job(struct coord *coord, struct coord_job *job)
{
    size_t at = 0;
    while (at < coord->job_count && coord->jobs[at] != job)
        at++;
    CHECK(at < coord->job_count);
    coord->job_count--;
    memmove(&coord->jobs[at], &coord->jobs[at + 1], (coord->job_count - at) * sizeof(void *));
    table_remove(&coord->jobs_by_id, job->id);
    timers_set(&coord->job_timers, &job->timer, TIMERS_NEVER);
    ordered_keep(&coord->live, job->seq, NULL);
    ordered_keep(&coord->queue, job->seq, NULL);
    ordered_keep(&coord->lacking, job->seq, NULL);
    for (uint32_t i = 0; i < fsm_capacity(&job->m); i++)
        detach_from_node(&job->ranks[i]);
}

void coord_queue_moved(struct coord *coord)
{
    for (size_t i = 0; i < coord->queue.count; i++)
        ((struct coord_job *)coord->queue.list[i].value)->version++;
}

enum status coord_job_new(struct coord *coord, const struct journal_job *row, struct jobspec *spec,
                          struct coord_job **out)
{
    struct coord_job *job = calloc(1, sizeof(*job));
    if (job == NULL) {
        free(spec);
        return ST_NO_MEMORY;
    }
    job->spec = spec;
    job->seq = row->seq;
    job->loss = job->accuracy = job->eval_loss = __builtin_nan("");
    (void)snprintf(job->id, sizeof(job->id), "%s", row->id);
    (void)snprintf(job->name, sizeof(job->name), "%s", row->name);
    job->job_file = strdup(row->job_file);
    job->pins = strdup(row->pins);
    const struct fsm_config config = config_of(coord, spec);
    const size_t capacity = (size_t)config.most + config.spares;
    job->ranks = calloc(capacity, sizeof(*job->ranks));
    job->recorded_ranks = calloc(capacity, sizeof(*job->recorded_ranks));
    job->layout = calloc(1, sizeof(*job->layout));
    enum status st = job->job_file != NULL && job->pins != NULL && job->ranks != NULL &&
                             job->recorded_ranks != NULL && job->layout != NULL
                         ? ST_OK
                         : ST_NO_MEMORY;
    if (st == ST_OK) {
        st = fsm_init(&job->m, row->id, &config, coord_now(coord),
                      clock_wall_ms(coord->options.clock));
    }
    if (st != ST_OK) {
        coord_job_free(job);
        return st;
    }
    for (uint32_t i = 0; i < capacity; i++) /* which need no rows */
        job->recorded_ranks[i] = fsm_rank_row(&job->m, i);
    *out = job;
    return ST_OK;
}

void coord_forget_rendezvous(struct coord_job *job)
{
    while (job->rounds != NULL) {
        struct coord_rendezvous_round *round = job->rounds;
        job->rounds = round->next;
        for (uint32_t i = 0; i < round->size; i++)
            free(round->ranks[i].part);
        free(round);
    }
}

void coord_job_free(struct coord_job *job)
{
    if (job == NULL)
        return;
    coord_forget_rendezvous(job);
    fsm_release(&job->m);
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

enum status coord_ckpt_dir(const struct coord_job *job, uint64_t step, uint32_t generation,
                           char *out, size_t capacity)
{
    return ckpt_folder_path(job->spec->checkpoint.store, job->id, step, generation,
                            fsm_folder_try(&job->m, step, generation), out, capacity);
}

/* ---- sessions ---- */

void coord_detach(struct coord_conn *conn)
{
    struct coord_job *job = conn->job;
    conn->job = NULL;
    if (job == NULL)
        return;
    if (job->metrics_from == conn)
        job->metrics_from = NULL;
    if (job->ranks[conn->rank].conn == conn)
        job->ranks[conn->rank].conn = NULL;
}

const char *coord_version_text(const char *theirs)
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

bool coord_version_fits(const char *theirs)
{
    const char *said = coord_version_text(theirs);
    size_t end = minor_end(CAIRN_VERSION);
    return minor_end(said) == end && strncmp(said, CAIRN_VERSION, end) == 0;
}
