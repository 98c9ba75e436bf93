/*
 * The floor of the core: its tables of jobs and nodes and how one is found, names of folders,
 * random names, and giving up.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "server/core/internal.h"

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
    CHECK(core->job_count < core->job_capacity);
    size_t at = core->job_count++;
    for (; at > 0 && core->jobs[at - 1]->seq > job->seq; at--) /* it ended, and is read again */
        core->jobs[at] = core->jobs[at - 1];
    core->jobs[at] = job;
    job->used = ++core->uses;
    job->version = ++core->loads << 32;
    if (job->seq > core->seq_last)
        core->seq_last = job->seq;
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
    enum status st = job->job_file && job->pins && job->ranks ? ST_OK : ST_NO_MEMORY;
    if (st == ST_OK) {
        struct machine_config config = config_of(core, spec);
        st = machine_init(&job->m, row->id, &config, core_now(core),
                          clock_wall_ms(core->options.clock));
    }
    if (st != ST_OK) {
        core_job_free(job);
        return st;
    }
    *out = job;
    return ST_OK;
}

void core_forget_kv(struct core_job *job)
{
    kv_map_clear(&job->kv);
    while (job->waits) {
        struct core_wait *wait = job->waits;
        job->waits = wait->next;
        free(wait);
    }
    job->wait_count = 0;
}

void core_job_free(struct core_job *job)
{
    if (!job)
        return;
    machine_release(&job->m);
    core_forget_kv(job);
    for (size_t i = 0; i < job->rows.count; i++)
        free(job->rows.list[i].data);
    free(job->rows.list);
    free(job->spec);
    free(job->job_file);
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
    for (size_t i = 0; i < core->node_count; i++) {
        if (strcmp(core->nodes[i]->name, name) == 0)
            return core->nodes[i];
    }
    return NULL;
}

struct core_node *core_node_make(struct core *core, const char *name)
{
    if (core->node_count >= LIMIT_NODES)
        return NULL;
    struct core_node **more = realloc(core->nodes, (core->node_count + 1) * sizeof(void *));
    if (!more)
        return NULL;
    core->nodes = more;
    struct core_node *node = calloc(1, sizeof *node);
    if (!node)
        return NULL;
    (void)snprintf(node->name, sizeof node->name, "%s", name);
    core->nodes[core->node_count++] = node;
    return node;
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
    core->schedule_needed = true;
}

bool core_stray_holds(const struct core_node *node, uint32_t slot)
{
    bool holds = false;
    for (size_t i = 0; i < node->stray_count; i++)
        holds = holds || node->strays[i].slot == slot;
    return holds;
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

/* Slots first to end - 1 that are taken. */
static uint32_t count_used(struct core *core, const struct core_node *node, uint32_t first,
                           uint32_t end)
{
    uint32_t used = 0;
    for (uint32_t slot = first; slot < end; slot++)
        used += core_stray_holds(node, slot);
    for (size_t j = 0; j < core->job_count; j++) {
        const struct machine *m = &core->jobs[j]->m;
        for (uint32_t r = 0; r < m->config.ranks; r++) {
            uint32_t slot = m->ranks[r].slot;
            used += machine_holds_slot(m, r) && slot >= first && slot < end &&
                    !core_stray_holds(node, slot) && strcmp(m->ranks[r].node, node->name) == 0;
        }
    }
    return used;
}

uint32_t core_node_used(struct core *core, const struct core_node *node)
{
    return count_used(core, node, 0, node->slots);
}

uint32_t core_node_gpus_used(struct core *core, const struct core_node *node)
{
    return count_used(core, node, node->slots, node->slots + node->gpu_count);
}

bool core_node_heard(struct core *core, const struct core_node *node)
{
    for (size_t j = 0; j < core->job_count; j++) {
        const struct machine *m = &core->jobs[j]->m;
        for (uint32_t r = 0; r < m->config.ranks; r++) {
            if (machine_holds_slot(m, r) && m->ranks[r].session &&
                strcmp(m->ranks[r].node, node->name) == 0)
                return true;
        }
    }
    return false;
}
