/*
 * The floor of the core: its tables of jobs and nodes and how one is found, names of folders,
 * random names, and giving up.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "server/core/internal.h"
#include "server/machine/codec.h"

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

void core_nonce(struct core *core, char *out, size_t capacity)
{
    uint8_t bytes[32];
    CHECK(capacity <= 2 * sizeof bytes + 1);
    core->options.random(core->options.random_arg, bytes, capacity / 2);
    for (size_t i = 0; i < capacity / 2; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

/* ---- jobs ---- */

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

static struct machine_config config_of(const struct core *core, const struct job *spec)
{
    struct machine_config config = { .ranks = (uint32_t)spec->workers.count,
                                     .keep_last = (uint64_t)spec->checkpoint.keep_last,
                                     .best_metric = metric_of(spec->checkpoint.keep_best.metric),
                                     .keep_best = (uint64_t)spec->checkpoint.keep_best.n,
                                     .keep_every = (uint64_t)spec->checkpoint.keep_every,
                                     .delta = spec->checkpoint.delta,
                                     .every_auto = spec->checkpoint.every.unit == JOB_AUTO,
                                     .relaxed = spec->recovery.exactness == JOB_EXACTNESS_RELAXED,
                                     .skip_nan = spec->recovery.on_nan == JOB_ON_NAN_SKIP,
                                     .hang_ms = core->options.hang_ms,
                                     .restarts = core->options.restarts,
                                     .silent_ms = core->lost_ms,
                                     .spread_ms = core->spread_ms };
    if (spec->checkpoint.every.unit == JOB_MS)
        config.every_ms = (int64_t)spec->checkpoint.every.value;
    if (spec->train.duration.unit == JOB_MS)
        config.time_limit_ms = (int64_t)spec->train.duration.value;
    return config;
}

struct core_job *core_job_at(struct core *core, const char *id)
{
    return table_get(&core->jobs_by_id, id);
}

/* Room for one job more, wherever it may come to be: nothing of that fails afterwards. */
static enum status reserve_jobs(struct core *core)
{
    enum status st = table_reserve(&core->jobs_by_id, core->job_count + 1);
    if (st == ST_OK)
        st = timers_reserve(&core->job_timers, core->job_count + 1);
    if (st == ST_OK)
        st = ordered_reserve(&core->live, core->job_count + 1);
    if (st == ST_OK)
        st = ordered_reserve(&core->queue, core->job_count + 1);
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
    for (; at > 0 && core->jobs[at - 1]->seq > job->seq; at--) /* it ended, and is read again */
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
    return !job->unreadable[0] && (m->state == MACHINE_QUEUED || machine_recovers(m));
}

/* What is due for longer than its last tick is due again in the next ms, not at once. */
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

/* A node that nobody heard of yet is made: its slots are taken when its agent comes. */
static void take_seat_of(struct core *core, struct core_job *job, uint32_t index)
{
    struct core_rank *rank = &job->ranks[index];
    const struct machine_rank *of = &job->m.ranks[index];
    struct core_node *node = core_node_at(core, of->node);
    if (!node)
        node = core_node_make(core, of->node);
    if (!node)
        return; /* of so many nodes none more is placed on either */
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

/* While a generation lives, ranks only leave. */
static void seat_ranks(struct core *core, struct core_job *job)
{
    const struct machine *m = &job->m;
    const struct core_seats now = { m->state, m->ending.to, m->generation, m->gone_count };
    const struct core_seats was = job->seats;
    if (now.state == was.state && now.end_to == was.end_to && now.generation == was.generation &&
        now.gone_count == was.gone_count)
        return;
    job->seats = now;
    const bool anew = now.generation != was.generation || (now.state == MACHINE_PLACING);
    for (uint32_t i = m->config.ranks; i > 0; i--) {
        if (anew || !machine_holds_slot(m, i - 1))
            leave_seat(&job->ranks[i - 1]);
        if (anew && machine_holds_slot(m, i - 1))
            take_seat_of(core, job, i - 1);
    }
}

void core_job_moved(struct core *core, struct core_job *job)
{
    timers_set(&core->job_timers, &job->timer, core_job_deadline(job));
    ordered_keep(&core->live, job->seq, machine_state_final(job->m.state) ? NULL : job);
    const bool waits = core_job_queues(job);
    ordered_keep(&core->queue, job->seq, waits ? job : NULL);
    if (!waits && core->holds_back == job)
        core_queue_moved(core, NULL);
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
    if (core->holds_back == job)
        core_queue_moved(core, NULL);
    for (uint32_t i = 0; i < job->m.config.ranks; i++)
        leave_seat(&job->ranks[i]);
}

void core_queue_moved(struct core *core, const struct core_job *holds_back)
{
    core->holds_back = holds_back;
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
    job->loss = job->samples_per_s = job->step_ms = job->accuracy = job->eval_loss =
        __builtin_nan("");
    (void)snprintf(job->id, sizeof job->id, "%s", row->id);
    (void)snprintf(job->name, sizeof job->name, "%s", row->name);
    job->job_file = strdup(row->job_file);
    job->pins = strdup(row->pins);
    job->ranks = calloc((size_t)spec->workers.count, sizeof *job->ranks);
    job->recorded_ranks = calloc((size_t)spec->workers.count, sizeof *job->recorded_ranks);
    enum status st =
        job->job_file && job->pins && job->ranks && job->recorded_ranks ? ST_OK : ST_NO_MEMORY;
    if (st == ST_OK) {
        struct machine_config config = config_of(core, spec);
        st = machine_init(&job->m, row->id, &config, core_now(core),
                          clock_wall_ms(core->options.clock));
    }
    if (st != ST_OK) {
        core_job_free(job);
        return st;
    }
    for (uint32_t i = 0; i < job->m.config.ranks; i++) /* which need no rows */
        job->recorded_ranks[i] = machine_rank_row(&job->m, i);
    *out = job;
    return ST_OK;
}

void core_forget_meetings(struct core_job *job)
{
    while (job->meetings) {
        struct core_meeting *meeting = job->meetings;
        job->meetings = meeting->next;
        for (uint32_t i = 0; i < job->m.config.ranks; i++)
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

/* Characters of "MAJOR.MINOR". */
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

/* ---- nodes ---- */

struct core_node *core_node_at(struct core *core, const char *name)
{
    return table_get(&core->nodes_by_name, name);
}

struct core_node *core_node_make(struct core *core, const char *name)
{
    if (core->node_count >= LIMIT_NODES ||
        timers_reserve(&core->node_timers, core->node_count + 1) != ST_OK)
        return NULL;
    struct core_node **more = realloc(core->nodes, (core->node_count + 1) * sizeof(void *));
    if (!more)
        return NULL;
    core->nodes = more;
    struct core_node *node = calloc(1, sizeof *node);
    if (!node)
        return NULL;
    (void)snprintf(node->name, sizeof node->name, "%s", name);
    if (table_put(&core->nodes_by_name, node->name, node) != ST_OK) {
        free(node);
        return NULL;
    }
    core->nodes[core->node_count++] = node;
    core_node_moved(core, node);
    return node;
}

bool core_node_held(const struct core *core, const struct core_node *node)
{
    return core->outage.since != 0 && node->known && !node->local && !node->silent;
}

int64_t core_node_unheard_ms(const struct core *core, const struct core_node *node)
{
    return core_now(core) - node->heard_at;
}

bool core_node_cut_off(const struct core_node *node)
{
    return node->silent && node->doubt.reached;
}

/* Its stream was closed, so that something lives there: it opens another one in its turn. */
static int64_t node_spread_ms(const struct core *core, const struct core_node *node)
{
    return node->conn ? 0 : core->spread_ms;
}

int64_t core_node_due(const struct core *core, const struct core_node *node)
{
    const int64_t at = node->heard_at + (node->alone ? CORE_ALONE : 1) * core->lost_ms +
                       node_spread_ms(core, node);
    return at > core->grace_until ? at : core->grace_until;
}

int64_t core_node_deadline(const struct core *core, const struct core_node *node)
{
    int64_t at = TIMERS_NEVER;
    if (!node->silent && !core_node_held(core, node)) {
        at = doubt_deadline(&node->doubt);
        if (node->doubt.state == DOUBT_NONE) {
            at = node->heard_at + core->lost_ms + node_spread_ms(core, node) - DOUBT_LEAD_MS;
        } else if (node->doubt.state != DOUBT_ASKED) {
            at = core_node_due(core, node);
        }
    } else if (core_node_cut_off(node) && core->outage.since == 0) {
        at = doubt_deadline(&node->doubt);
    }
    if (node->record.count > 0 && node->record.faults[0].at + FLEET_FORGET_MS < at)
        at = node->record.faults[0].at + FLEET_FORGET_MS;
    if (node->drain_until != 0 && node->drain_until < at)
        at = node->drain_until;
    if (core_node_inherited(node))
        at = node->heard_at; /* at once */
    return at;
}

void core_node_moved(struct core *core, struct core_node *node)
{
    timers_set(&core->node_timers, &node->timer, core_node_deadline(core, node));
}

bool core_gpu_serves(const struct core_gpu *gpu)
{
    return gpu->capability == 0 || gpu->capability >= LIMIT_CUDA_CAPABILITY;
}

static struct core_stray *find_stray(const struct core_node *node, const Cairn__V1__TrainerRef *ref)
{
    for (size_t i = 0; i < node->stray_count; i++) {
        struct core_stray *stray = &node->strays[i];
        if (stray->generation == ref->generation && stray->rank == ref->rank &&
            strcmp(stray->job, ref->job) == 0)
            return stray;
    }
    return NULL;
}

void core_stray_add(struct core *core, struct core_node *node, const Cairn__V1__TrainerRef *ref,
                    uint32_t slot, int64_t since)
{
    if (find_stray(node, ref) || node->stray_count >= CORE_STRAYS_MAX)
        return;
    struct core_stray *more = realloc(node->strays, ((size_t)node->stray_count + 1) * sizeof *more);
    if (!more) {
        core_fail(core, ST_NO_MEMORY, "holding a slot");
        return;
    }
    node->strays = more;
    struct core_stray *stray = &node->strays[node->stray_count++];
    node->counted = false;
    *stray = (struct core_stray){
        .generation = ref->generation, .rank = ref->rank, .slot = slot, .since = since
    };
    (void)snprintf(stray->job, sizeof stray->job, "%.15s", ref->job);
}

void core_stray_gone(struct core *core, struct core_node *node, const Cairn__V1__TrainerRef *ref)
{
    struct core_stray *stray = find_stray(node, ref);
    if (!stray)
        return;
    LOG_INFO(core->options.log, "node %s: slot %u is free: %s generation %u rank %u is gone",
             node->name, stray->slot, stray->job, stray->generation, stray->rank);
    *stray = node->strays[--node->stray_count];
    node->counted = false;
    core->schedule_needed = true;
}

/* Of a node that is lost nobody knows. */
uint32_t core_node_undying(struct core *core, const struct core_node *node)
{
    uint32_t count = 0;
    for (size_t i = 0; i < node->stray_count; i++)
        count += core_now(core) - node->strays[i].since >= CORE_UNDYING_MS;
    return node->silent ? 0 : count;
}

bool core_node_has(const struct core_node *node, const char *device)
{
    bool found = strcmp(node->device, device) == 0;
    for (uint32_t i = 0; strcmp(device, CORE_GPU_DEVICE) == 0 && i < node->gpu_count; i++)
        found = found || core_gpu_serves(&node->gpus[i]);
    return found;
}

/* ---- nodes: what is kept of them ---- */

static void take_slot(struct core_node *node, uint32_t slot)
{
    if (slot >= node->slots + node->gpu_count || node->used[slot])
        return;
    node->used[slot] = true;
    node->slots_used += slot < node->slots;
    node->gpus_used += slot >= node->slots;
}

/* As core_node_count; used: room for all slots, free. */
static void count_slots(struct core_node *node)
{
    node->slots_used = node->gpus_used = 0;
    for (const struct core_rank *rank = node->ranks; rank; rank = rank->next)
        take_slot(node, rank->slot);
    for (size_t i = 0; i < node->stray_count; i++)
        take_slot(node, node->strays[i].slot);
    for (uint32_t i = 0; i < node->gpu_count; i++) {
        bool *used = &node->used[node->slots + i];
        *used = *used || node->gpus[i].problem[0] || !core_gpu_serves(&node->gpus[i]);
    }
}

bool core_node_count(struct core *core, struct core_node *node)
{
    if (node->counted)
        return true;
    const size_t slots = (size_t)node->slots + node->gpu_count;
    free(node->used);
    node->used = calloc(slots ? slots : 1, sizeof *node->used);
    if (!node->used) {
        core_fail(core, ST_NO_MEMORY, "counting slots");
        return false;
    }
    count_slots(node);
    node->counted = true;
    return true;
}

uint32_t core_node_used(struct core *core, struct core_node *node)
{
    return core_node_count(core, node) ? node->slots_used : 0;
}

uint32_t core_node_gpus_used(struct core *core, struct core_node *node)
{
    return core_node_count(core, node) ? node->gpus_used : 0;
}

bool core_node_heard(const struct core_node *node)
{
    for (const struct core_rank *rank = node->ranks; rank; rank = rank->next) {
        if (rank->job->m.ranks[core_rank_number(rank)].session)
            return true;
    }
    return false;
}

static int compare_ranks(const void *a, const void *b)
{
    const struct core_rank *x = *(struct core_rank *const *)a, *y = *(struct core_rank *const *)b;
    if (x->job != y->job)
        return x->job->seq < y->job->seq ? -1 : 1;
    return (x > y) - (x < y);
}

struct core_rank **core_ranks_of(struct core *core, const struct core_node *node, size_t *out_count)
{
    size_t count = 0;
    for (const struct core_rank *rank = node->ranks; rank; rank = rank->next)
        count++;
    *out_count = 0;
    struct core_rank **list = count > 0 ? calloc(count, sizeof(void *)) : NULL;
    if (!list) {
        if (count > 0)
            core_fail(core, ST_NO_MEMORY, "looking at a node");
        return NULL;
    }
    for (struct core_rank *rank = node->ranks; rank; rank = rank->next)
        list[(*out_count)++] = rank;
    qsort(list, count, sizeof(void *), compare_ranks);
    return list;
}
