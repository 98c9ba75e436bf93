#include "server/render/render.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

_Static_assert(FSM_KILLED == (int)CAIRN__V1__JOB_STATE__KILLED, "states as in common.proto");
_Static_assert(FSM_SAVING == (int)CAIRN__V1__JOB_STATE__SAVING, "states as in common.proto");
_Static_assert(FSM_FAULT_DATA == (int)CAIRN__V1__FAULT_KIND__DATA_CHANGED,
               "faults as in the proto");
_Static_assert(FSM_FAULT_WRONG == (int)CAIRN__V1__FAULT_KIND__WRONG, "faults as in the proto");
_Static_assert(FSM_FAULT_STORE == (int)CAIRN__V1__FAULT_KIND__STORE, "faults as in the proto");

void render_time(int64_t wall_ms, char out[32])
{
    time_t seconds = (time_t)(wall_ms / 1000);
    struct tm tm;
    out[0] = '\0';
    if (wall_ms <= 0 || gmtime_r(&seconds, &tm) == NULL)
        return;
    size_t used = strftime(out, 32, "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(out + used, 32 - used, ".%03dZ", (int)(wall_ms % 1000));
}

/* A copy on the heap; "" is the default value, which free_unpacked knows and leaves alone. */
char *render_text(const char *value)
{
    return value[0] ? strdup(value) : (char *)protobuf_c_empty_string;
}

char *render_time_text(int64_t wall_ms)
{
    char out[32];
    render_time(wall_ms, out);
    return render_text(out);
}

/* ---- reasons ---- */

/* The oldest one that can go; NULL: one is all there is. */
static const struct fsm_ckpt *oldest_ckpt(const struct fsm *m)
{
    const struct fsm_ckpt *oldest = NULL;
    size_t count = 0;
    for (size_t i = m->catalog_count; i > 0; i--) {
        if (m->catalog[i - 1].state != FSM_CKPT_GOOD)
            continue;
        oldest = &m->catalog[i - 1];
        count++;
    }
    return count > 1 ? oldest : NULL;
}

void render_space_hint(const struct coord_job *job, struct reason *out)
{
    const struct fsm_ckpt *oldest = oldest_ckpt(&job->m);
    if (oldest != NULL && !job->unreadable[0]) {
        reason_set(out,
                   "'cairn ckpt rm %s@%llu' removes the oldest one that is kept "
                   "(checkpoint.keep.last: %lld)",
                   job->id, (unsigned long long)oldest->step,
                   (long long)job->spec->checkpoint.keep_last);
    } else {
        reason_set(out, "make room there: 'cairn ckpt ls %s' lists what other jobs keep",
                   job->unreadable[0] ? "STORE" : job->spec->checkpoint.store);
    }
}

void render_reason(const struct coord *coord, const struct coord_job *job, struct reason *out)
{
    struct reason why, hint;
    coord_reason(coord, job, &why);
    if (why.text[0] == '\0' || job->m.store_full.consecutive == 0 ||
        fsm_state_final(job->m.state)) {
        *out = why;
        return;
    }
    render_space_hint(job, &hint);
    reason_set(out, "%.330s. %.170s", why.text, hint.text);
}

/* ---- parts ---- */

/* ST_NO_MEMORY, or ST_OK: *out is NULL where they are not known. */
static enum status render_times(const struct fsm_save_times *times, Cairn__V1__SaveTimes **out)
{
    *out = NULL;
    if (times->encode_us == 0)
        return ST_OK;
    *out = malloc(sizeof(**out));
    if (*out == NULL)
        return ST_NO_MEMORY;
    cairn__v1__save_times__init(*out);
    (*out)->stall_us = (uint64_t)times->stall_us;
    (*out)->encode_us = (uint64_t)times->encode_us;
    (*out)->write_us = (uint64_t)times->io_us;
    (*out)->sync_us = (uint64_t)times->sync_us;
    (*out)->save_us = (uint64_t)times->save_us;
    (*out)->commit_us = (uint64_t)times->commit_us;
    return ST_OK;
}

Cairn__V1__Checkpoint *render_ckpt(const struct coord_job *job, const struct fsm_ckpt *ckpt)
{
    Cairn__V1__Checkpoint *out = malloc(sizeof(*out));
    if (out == NULL)
        return NULL;
    cairn__v1__checkpoint__init(out);
    bool bad = ckpt->state == FSM_CKPT_BAD || ckpt->state == FSM_CKPT_QUARANTINING;
    char dir[LIMIT_PATH] = "", path[LIMIT_PATH + 8] = "";
    if (!job->unreadable[0] &&
        coord_ckpt_dir(job, ckpt->step, ckpt->generation, dir, sizeof(dir)) == ST_OK) {
        const char *slash = strrchr(dir, '/');
        int parent = slash != NULL ? (int)(slash - dir) + 1 : 0;
        (void)snprintf(path, sizeof(path), "%.*s%s%s", parent, dir,
                       ckpt->state == FSM_CKPT_BAD ? "bad-" : "", dir + parent);
    }
    out->step = ckpt->step;
    out->generation = ckpt->generation;
    out->path = render_text(path);
    out->bytes = ckpt->bytes;
    out->raw_bytes = ckpt->raw_bytes;
    out->digest = render_text(ckpt->digest);
    out->shards = ckpt->shards;
    out->committed_at = render_time_text(ckpt->wall_ms);
    out->status = render_text(bad ? "bad" : "good");
    out->verified__case = CAIRN__V1__CHECKPOINT__VERIFIED__VERIFIED;
    out->verified = ckpt->verified;
    out->parent_step = ckpt->parent_step;
    out->parent_generation = ckpt->parent_generation;
    out->loss = ckpt->loss;
    out->eval_loss = ckpt->eval_loss;
    out->eval_accuracy = ckpt->eval_accuracy;
    if (render_times(&ckpt->times, &out->times) == ST_OK)
        return out;
    cairn__v1__checkpoint__free_unpacked(out, NULL);
    return NULL;
}

static const char *worker_state(const struct fsm *m, const struct fsm_rank *rank)
{
    if (!fsm_alive_rank(m, (uint32_t)(rank - m->ranks)))
        return "gone";
    if (!rank->joined)
        return "starting";
    return rank->ready ? "running" : "forming";
}

/* Copies: what is told of usage has no pointers. NULL: no memory. */
static Cairn__V1__WorkerUsage *render_usage(const Cairn__V1__WorkerUsage *usage)
{
    Cairn__V1__WorkerUsage *out = malloc(sizeof(*out));
    if (out != NULL)
        *out = *usage;
    return out;
}

/* Adds what is measured of a worker. false: no memory. */
static bool add_measured(const struct coord_job *job, uint32_t index, Cairn__V1__Worker *out)
{
    const struct coord_rank_report *report = coord_rank_report(job, index);
    const Cairn__V1__WorkerUsage *usage = coord_usage(job, index);
    const bool runs = fsm_alive_rank(&job->m, index);
    if (runs && report != NULL && report->peak_flops > 0) {
        out->peak_flops__case = CAIRN__V1__WORKER__PEAK_FLOPS__PEAK_FLOPS;
        out->peak_flops = report->peak_flops;
    }
    if (runs && report != NULL && report->counts) {
        out->sent__case = CAIRN__V1__WORKER__SENT__SENT_BYTES;
        out->sent_bytes = report->sent_bytes;
        out->received__case = CAIRN__V1__WORKER__RECEIVED__RECEIVED_BYTES;
        out->received_bytes = report->received_bytes;
    }
    out->usage = usage != NULL ? render_usage(usage) : NULL;
    return usage == NULL || out->usage != NULL;
}

static Cairn__V1__Worker *render_worker(const struct coord_job *job, uint32_t index, uint32_t share)
{
    const struct fsm_rank *rank = &job->m.ranks[index];
    Cairn__V1__Worker *out = malloc(sizeof(*out));
    if (out == NULL)
        return NULL;
    cairn__v1__worker__init(out);
    out->rank = index;
    out->node = render_text(rank->node);
    out->pid = rank->pid;
    out->share = share;
    out->step = rank->step;
    out->seconds_per_step = rank->step_us / 1e6;
    out->phase = render_text(rank->phase);
    out->state = render_text(worker_state(&job->m, rank));
    if (job->m.config.stages > 1) {
        out->stage__case = CAIRN__V1__WORKER__STAGE__STAGE;
        out->stage = rank->stage;
    }
    if (add_measured(job, index, out))
        return out;
    cairn__v1__worker__free_unpacked(out, NULL);
    return NULL;
}

static Cairn__V1__Spare *render_spare(const struct fsm_rank *rank)
{
    Cairn__V1__Spare *out = malloc(sizeof(*out));
    if (out == NULL)
        return NULL;
    cairn__v1__spare__init(out);
    out->node = render_text(rank->node);
    out->pid = rank->pid;
    out->slot = rank->slot;
    out->number = rank->number;
    out->state = render_text(rank->ended ? "ending" : rank->parked ? "warm" : "starting");
    return out;
}

static Cairn__V1__LostSeconds *render_lost(const struct fsm *m, enum fsm_lost lost)
{
    Cairn__V1__LostSeconds *out = malloc(sizeof(*out));
    if (out == NULL)
        return NULL;
    cairn__v1__lost_seconds__init(out);
    out->cause = render_text(fsm_lost_name(lost));
    out->seconds = (double)m->accounts.lost_ms[lost] / 1000.0;
    return out;
}

static Cairn__V1__Gpu *render_gpu(const struct coord_gpu *gpu)
{
    Cairn__V1__Gpu *out = malloc(sizeof(*out));
    if (out == NULL)
        return NULL;
    cairn__v1__gpu__init(out);
    out->name = render_text(gpu->name);
    out->uuid = render_text(gpu->uuid);
    out->driver = render_text(gpu->driver);
    out->problem = render_text(gpu->problem);
    out->capability = gpu->capability;
    out->temperature = gpu->temperature;
    out->memory_bytes = gpu->memory_bytes;
    out->memory_used_bytes = gpu->memory_used_bytes;
    out->ecc_errors = gpu->ecc_errors;
    out->throttled = gpu->throttled;
    if (!isnan(gpu->utilization)) {
        out->utilization__case = CAIRN__V1__GPU__UTILIZATION__UTILIZATION;
        out->utilization = gpu->utilization;
    }
    if (!isnan(gpu->power_watts)) {
        out->power__case = CAIRN__V1__GPU__POWER__POWER_WATTS;
        out->power_watts = gpu->power_watts;
    }
    return out;
}

static char *reason_of(const struct coord *coord, const struct coord_node *node)
{
    struct reason reason;
    if (node->stay != COORD_STAYS)
        return render_text(node->why_leaves);
    if (node->silent && node->suspicion.said[0]) {
        reason_set(&reason, "not heard for %lld s; %s",
                   (long long)(coord_node_unheard_ms(coord, node) / 1000), node->suspicion.said);
        return render_text(reason.text);
    }
    if (node->why_drains[0])
        return render_text(node->why_drains);
    coord_node_clock(node, &reason);
    return render_text(reason.text[0] ? reason.text : node->trouble);
}

Cairn__V1__Node *render_node(struct coord *coord, struct coord_node *node)
{
    Cairn__V1__Node *out = malloc(sizeof(*out));
    if (out == NULL)
        return NULL;
    cairn__v1__node__init(out);
    const char *state = "ready";
    if (!node->known) {
        state = "forgotten";
    } else if (node->stay == COORD_LEFT) {
        state = "left";
    } else if ((node->silent || node->conn == NULL) && coord_node_heard(node)) {
        state = "unsupervised";
    } else if (coord_node_held(coord, node)) {
        state = "silent";
    } else if (node->silent) {
        state = coord_node_cut_off(node) ? "unreachable" : "lost";
    } else if (node->stay == COORD_LEAVES || node->drains) {
        state = "draining";
    } else if (coord_node_drained(coord, node)) {
        state = "drained";
    }
    out->name = render_text(node->name);
    out->state = render_text(state);
    out->device = render_text(node->device);
    out->slots = node->slots;
    out->used = coord_node_used(coord, node);
    out->version = render_text(node->version);
    out->host = render_text(node->host);
    out->address = render_text(node->host);
    out->boot_id = render_text(node->boot_id);
    out->gpus_used = coord_node_gpus_used(coord, node);
    out->undying = coord_node_unkillable(coord, node);
    out->reason = reason_of(coord, node);
    if (coord_node_usage(node) != NULL)
        out->usage = malloc(sizeof(*out->usage));
    if (out->usage != NULL) /* without memory it isn't told */
        *out->usage = *coord_node_usage(node);
    out->gpus = calloc(node->gpu_count ? node->gpu_count : 1, sizeof(void *));
    for (uint32_t i = 0; out->gpus != NULL && i < node->gpu_count; i++) {
        out->gpus[i] = render_gpu(&node->gpus[i]);
        if (out->gpus[i] == NULL)
            break;
        out->n_gpus++;
    }
    return out;
}

/* ---- the job ---- */

/* Adds at most `max` of the first *end of the catalog, the last of them first; *end: what is
 * left. */
static bool add_checkpoints(const struct coord_job *job, size_t max, size_t *end, size_t *out_count,
                            Cairn__V1__Checkpoint ***out)
{
    const struct fsm *m = &job->m;
    Cairn__V1__Checkpoint **list = calloc(max < *end ? max + 1 : *end + 1, sizeof(void *));
    *out = list;
    if (list == NULL)
        return false;
    for (; *end > 0 && *out_count < max; (*end)--) {
        const struct fsm_ckpt *ckpt = &m->catalog[*end - 1];
        if (ckpt->state == FSM_CKPT_REMOVING)
            continue;
        list[*out_count] = render_ckpt(job, ckpt);
        if (list[*out_count] == NULL)
            return false;
        (*out_count)++;
    }
    return true;
}

/* The token is the last one of the page before: STEP.GENERATION. */
static bool read_token(const char *token, uint64_t *out_step, uint32_t *out_generation)
{
    char *end = NULL;
    errno = 0;
    *out_step = strtoull(token, &end, 10);
    if (errno != 0 || *end != '.')
        return false;
    unsigned long generation = strtoul(end + 1, &end, 10);
    *out_generation = (uint32_t)generation;
    return errno == 0 && *end == '\0' && generation <= UINT32_MAX;
}

static Cairn__V1__ListCheckpointsReply *render_page(const struct coord_job *job, size_t size,
                                                    size_t end)
{
    Cairn__V1__ListCheckpointsReply *page = malloc(sizeof(*page));
    if (page == NULL)
        return NULL;
    cairn__v1__list_checkpoints_reply__init(page);
    bool ok = add_checkpoints(job, size, &end, &page->n_checkpoints, &page->checkpoints);
    if (ok && end > 0 && page->n_checkpoints > 0) {
        const Cairn__V1__Checkpoint *last = page->checkpoints[page->n_checkpoints - 1];
        char token[48];
        (void)snprintf(token, sizeof(token), "%llu.%u", (unsigned long long)last->step,
                       last->generation);
        page->next_page_token = strdup(token);
        ok = page->next_page_token != NULL;
    }
    if (ok)
        return page;
    cairn__v1__list_checkpoints_reply__free_unpacked(page, NULL);
    return NULL;
}

enum status render_ckpts(const struct coord_job *job, size_t size, const char *token,
                         Cairn__V1__ListCheckpointsReply **out)
{
    const struct fsm *m = &job->m;
    size_t end = m->catalog_count;
    if (token[0]) {
        uint64_t step;
        uint32_t generation;
        if (!read_token(token, &step, &generation))
            return ST_INVALID;
        while (end > 0 &&
               (m->catalog[end - 1].step > step ||
                (m->catalog[end - 1].step == step && m->catalog[end - 1].generation >= generation)))
            end--;
    }
    *out = render_page(job, size > 0 && size < RENDER_PAGE ? size : RENDER_PAGE, end);
    return *out != NULL ? ST_OK : ST_NO_MEMORY;
}

static bool add_workers(const struct coord_job *job, Cairn__V1__Job *out)
{
    uint32_t ranks = job->m.generation > 0 ? job->m.size : 0;
    out->workers = calloc(ranks ? ranks : 1, sizeof(void *));
    if (out->workers == NULL)
        return false;
    struct jobspec_layout layout = { .stage_count = 0 };
    if (ranks > 0 && coord_layout(job, &layout) != ST_OK)
        layout.shares[0] = 0; /* its file can't be read */
    for (uint32_t i = 0; i < ranks; i++) {
        Cairn__V1__Worker *worker = render_worker(job, i, layout.shares[i]);
        if (worker == NULL)
            return false;
        out->workers[out->n_workers++] = worker;
    }
    return true;
}

static bool add_spares(const struct coord_job *job, Cairn__V1__Job *out)
{
    const struct fsm *m = &job->m;
    out->spares = calloc(m->count - m->size + 1, sizeof(void *));
    if (out->spares == NULL)
        return false;
    for (uint32_t i = m->size; i < m->count; i++) {
        Cairn__V1__Spare *spare = m->ranks[i].gone ? NULL : render_spare(&m->ranks[i]);
        if (spare == NULL && !m->ranks[i].gone)
            return false;
        if (spare != NULL)
            out->spares[out->n_spares++] = spare;
    }
    return true;
}

static bool add_lost(const struct coord_job *job, Cairn__V1__Job *out)
{
    out->lost_seconds = calloc(FSM_LOST_COUNT, sizeof(void *));
    if (out->lost_seconds == NULL)
        return false;
    for (int i = 0; i < FSM_LOST_COUNT; i++) {
        Cairn__V1__LostSeconds *lost = render_lost(&job->m, (enum fsm_lost)i);
        if (lost == NULL)
            return false;
        out->lost_seconds[out->n_lost_seconds++] = lost;
    }
    return true;
}

static bool add_plan(const struct coord_job *job, Cairn__V1__Job *out)
{
    const struct fsm *m = &job->m;
    Cairn__V1__CheckpointPlan *plan = malloc(sizeof(*plan));
    if (plan == NULL)
        return false;
    cairn__v1__checkpoint_plan__init(plan);
    out->checkpoint_plan = plan;
    plan->interval_s = (double)fsm_interval_ms(m) / 1e3;
    plan->failures = m->failures;
    plan->refused = m->store_full.refused;
    plan->refused_reason = render_text(m->store_full.reason);
    if (m->config.every_auto) {
        struct interval_facts facts = fsm_interval_facts(m);
        plan->cost_s = (double)m->due.cost_us / 1e6;
        plan->mtbf_s = interval_mtbf_ms(&facts) / 1e3;
    }
    return true;
}

static bool add_phase(const struct coord_job *job, uint32_t part, Cairn__V1__Job *out)
{
    const double ms = coord_part_ms(job, part);
    if (!isfinite(ms))
        return true;
    Cairn__V1__Phase *phase = malloc(sizeof(*phase));
    if (phase == NULL)
        return false;
    cairn__v1__phase__init(phase);
    phase->name = render_text(coord_part_name(part));
    phase->ms = ms;
    out->phases[out->n_phases++] = phase;
    return true;
}

/* Adds the throughput, after add_scalars. */
static bool add_throughput(const struct coord_job *job, Cairn__V1__Job *out)
{
    out->step_ms = coord_step_ms(job);
    out->phases = calloc(COORD_PARTS, sizeof(void *));
    bool ok = out->phases != NULL;
    for (uint32_t i = 0; ok && i < COORD_PARTS; i++)
        ok = add_phase(job, i, out);
    out->throughput = coord_throughput(job);
    out->throughput_unit = render_text(coord_is_text(job) ? "tokens/s" : "samples/s");
    out->eta_seconds = coord_eta_s(job, out->step);
    const double mfu = coord_mfu(job);
    if (isfinite(mfu)) {
        out->mfu__case = CAIRN__V1__JOB__MFU__MFU;
        out->mfu = mfu;
    }
    if (job->step_flops > 0) {
        out->flops_per_step__case = CAIRN__V1__JOB__FLOPS_PER_STEP__FLOPS_PER_STEP;
        out->flops_per_step = job->step_flops;
    }
    return ok;
}

/* Adds the copies of the workers that there are. */
static void add_copies(const struct coord_job *job, Cairn__V1__Job *out)
{
    const struct coord_copies *copies = &job->copies;
    const bool known = copies->generation == job->m.generation && !fsm_state_final(job->m.state);
    out->memory_every = known ? copies->every : 0;
    out->memory_bytes = known ? copies->bytes : 0;
    out->memory_reason = render_text(known ? copies->reason.text : "");
}

static void add_scalars(const struct coord *coord, struct coord_job *job, Cairn__V1__Job *out)
{
    const struct fsm *m = &job->m;
    struct reason reason;
    uint64_t step = fsm_step_now(m);
    if (m->state == FSM_FORMING)
        step = m->step_max;
    out->id = render_text(job->id);
    out->name = render_text(job->name);
    out->state = (Cairn__V1__JobState)m->state;
    bool kept = job->unreadable[0] && !fsm_state_final(m->state);
    const char *health = fsm_health(m);
    if (!fsm_state_final(m->state) && strcmp(health, "ok") == 0 && coord_journal_full(coord))
        health = "degraded";
    out->health = render_text(kept ? "unreadable" : health);
    render_reason(coord, job, &reason);
    out->reason = render_text(reason.text);
    out->generation = m->generation;
    out->step = step;
    out->total_steps = m->total_steps;
    out->steps_per_epoch = m->steps_per_epoch;
    out->restarts = m->restarts;
    out->loss = job->loss;
    out->accuracy = job->accuracy;
    out->eval_loss = job->eval_loss;
    out->recovery_count = m->recoveries;
    out->goodput = fsm_goodput(m);
    add_copies(job, out);
    out->final_digest = render_text(m->final_digest);
    out->submitted_at = render_time_text(m->submitted_wall);
    out->started_at = render_time_text(m->started_wall);
    out->ended_at = render_time_text(m->ended_wall);
    out->job_file = render_text(job->job_file);
    if (job->unreadable[0])
        return; /* what its file would say */
    out->workers_count = m->config.ranks;
    out->workers_min = m->config.min;
    out->workers_spares = (uint32_t)job->spec->workers.spares;
    if (jobspec_is_command(job->spec)) {
        char line[LIMIT_REASON];
        jobspec_command_line(job->spec, line, sizeof(line));
        out->model = render_text("command");
        out->command = render_text(line);
    } else {
        out->model = render_text(jobspec_arch_word(job->spec->model.arch));
    }
    if (m->config.saves_nothing)
        return; /* it has no checkpoints */
    char store[LIMIT_PATH + 16];
    (void)snprintf(store, sizeof(store), "%s/%s", job->spec->checkpoint.store, job->id);
    out->store = render_text(store);
}

Cairn__V1__Job *render_job(const struct coord *coord, struct coord_job *job, size_t ckpts_max)
{
    Cairn__V1__Job *out = malloc(sizeof(*out));
    if (out == NULL)
        return NULL;
    cairn__v1__job__init(out);
    add_scalars(coord, job, out);
    size_t end = job->m.catalog_count;
    bool ok = add_checkpoints(job, ckpts_max, &end, &out->n_checkpoints, &out->checkpoints) &&
              add_workers(job, out) && add_spares(job, out) && add_lost(job, out) &&
              add_plan(job, out) && add_throughput(job, out);
    if (ok)
        return out;
    cairn__v1__job__free_unpacked(out, NULL);
    return NULL;
}
