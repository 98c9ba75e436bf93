#include "trainer/standalone/preview.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/store/store.h"
#include "comm/reducer_order.h"
#include "common/check.h"
#include "common/io.h"
#include "common/limits.h"
#include "common/paths.h"
#include "session/memory/budget.h"
#include "session/memory/copy_interval.h"
#include "session/memory/headroom.h"
#include "trainer/device/device.h"
#include "trainer/plan/plan.h"
#include "trainer/standalone/preview_data.h"
#include "trainer/standalone/preview_graph.h"
#include "trainer/standalone/preview_pipeline.h"
#include "trainer/standalone/preview_stages.h"
#include "trainer/state/initial_state.h"
#include "trainer/tape/lane.h"
#include "trainer/worker/build.h"
#include "trainer/worker/memory_need.h"
#include "trainer/worker/settings.h"

#define MIB          (1024.0 * 1024.0)
#define SPREAD_LANES 8 /* for each worker, and lanes by speed are fine enough */

struct preview {
    const struct jobspec *job;
    struct dataset *train, *eval;
    struct settings settings;
    struct tape *tape;
    struct jobspec_graph *graph; /* of a model of one's own, or NULL */
    struct device device;
    bool has_device;
    struct reason no_device; /* why there is none */
    struct buf *out;
    struct reason *reason;
};

static enum status preview_fail(const struct preview *p, enum status st, const char *what)
{
    reason_set(p->reason, "%s: %s", what, status_string(st));
    return st;
}

/* ---- data, device, micro-batch ---- */

static enum status open_splits(struct preview *p)
{
    struct build_options options = { .job = p->job, .io = io_system(), .split = DATASET_TRAIN };
    enum status st = build_dataset(&options, &p->train, p->reason);
    if (st != ST_OK || p->job->data.eval.format == JOBSPEC_FORMAT_NONE)
        return st;
    options.split = DATASET_EVAL;
    return build_dataset(&options, &p->eval, p->reason);
}

static void open_preview_device(struct preview *p)
{
    struct device_options options = { .job = p->job };
    p->has_device = device_open(&options, &p->device, &p->no_device) == ST_OK;
}

/* The worker whose reduction holds the most copies, of all numbers of workers that the job may
 * train with. out_workers: how many they are then. */
static enum status largest_worker(const struct preview *p, struct memory_need_options *out,
                                  int64_t *out_workers)
{
    *out = (struct memory_need_options){ .tape = p->tape,
                                         .settings = &p->settings,
                                         .table = p->device.table,
                                         .backend = p->device.backend,
                                         .evaluates = p->eval != NULL };
    struct jobspec_layout layout;
    for (int64_t count = p->job->workers.min; count <= p->job->workers.count; count++) {
        const enum status st = jobspec_layout_of(p->job, count, &layout);
        if (st != ST_OK)
            return preview_fail(p, st, "sharing the lanes");
        for (int64_t r = 0; r < count; r++) {
            if (layout.shares[r] > out->lane_count) {
                out->lane_count = layout.shares[r];
                out->owners = p->job->parallel.zero > 0 ? (uint32_t)count : 0;
                *out_workers = count;
            }
        }
    }
    return ST_OK;
}

static enum status choose_micro_batch(struct preview *p)
{
    struct settings *s = &p->settings;
    uint64_t bytes = 0;
    if (s->micro_batch > 0 || !p->has_device || device_total_bytes(&p->device, &bytes) != ST_OK)
        return ST_OK;
    struct memory_need_options options;
    struct memory_need need;
    int64_t workers = 0;
    enum status st = largest_worker(p, &options, &workers);
    if (st != ST_OK)
        return st;
    st = memory_need_fit(&options, s->lane_size, bytes, &s->micro_batch, &need);
    if (st != ST_OK)
        return preview_fail(p, st, "train.micro_batch: auto");
    s->accumulate = s->lane_size / s->micro_batch;
    return ST_OK;
}

static struct plan_options plan_options_of(const struct preview *p)
{
    return (struct plan_options){ .table = p->device.table,
                                  .backend = p->device.backend,
                                  .batch = p->settings.micro_batch,
                                  .training = true,
                                  .math = p->settings.math,
                                  .amp = p->settings.amp,
                                  .recompute = p->settings.recompute };
}

/* ---- printing ---- */

/* "2 to 4, 1 spare: 5 slots" */
static enum status print_workers(const struct preview *p)
{
    const long long count = p->job->workers.count, min = p->job->workers.min,
                    spares = p->job->workers.spares, slots = count + spares;
    enum status st = buf_append_text(p->out, "workers    ");
    if (st == ST_OK && min < count)
        st = buf_printf(p->out, "%lld to ", min);
    if (st == ST_OK)
        st = buf_printf(p->out, "%lld", count);
    if (st == ST_OK && spares > 0)
        st = buf_printf(p->out, ", %lld spare%s", spares, spares == 1 ? "" : "s");
    return st == ST_OK ? buf_printf(p->out, ": %lld slot%s\n", slots, slots == 1 ? "" : "s") : st;
}

/* Returns the cost of each node, if there is a device to ask; else NULL. */
static enum status measure_nodes(const struct preview *p, double **out)
{
    struct plan *plan = NULL;
    struct plan_options options = plan_options_of(p);
    double *cost = NULL;
    *out = NULL;
    if (!p->has_device)
        return ST_OK;
    const enum status st = plan_new(p->tape, &options, &plan);
    if (st != ST_OK)
        return preview_fail(p, st, "preparing the model");
    cost = calloc((size_t)p->tape->node_count, sizeof(*cost));
    for (int n = 0; cost != NULL && n < p->tape->node_count; n++)
        cost[n] = plan_cost(plan, n);
    plan_free(plan);
    *out = cost;
    return cost != NULL ? ST_OK : ST_NO_MEMORY;
}

static enum status print_pipeline(const struct preview *p)
{
    double *cost = NULL;
    if (p->job->parallel.pipeline.stages <= 1)
        return ST_OK;
    enum status st = measure_nodes(p, &cost);
    const struct preview_pipeline pipeline = {
        .job = p->job, .tape = p->tape, .cost = cost, .accumulate = p->settings.accumulate
    };
    if (st == ST_OK)
        st = preview_pipeline_print(&pipeline, p->out, p->reason);
    free(cost);
    return st;
}

/* A worker that is to have 5.5 lanes has 6. */
static enum status print_shares(const struct preview *p)
{
    const long long count = p->job->workers.count, lanes = p->job->train.lanes;
    if (!p->job->workers.by_speed || count < 2 || lanes >= SPREAD_LANES * count)
        return ST_OK;
    return buf_printf(p->out,
                      "shares     auto, in whole lanes: with %lld of them workers of unequal speed "
                      "lose up to %lld %% of a step; train.lanes: %lld would lose a fraction\n",
                      lanes, 100 * count / lanes, SPREAD_LANES * count);
}

/* Prints what audits add to a step, on average. */
static enum status print_audits(const struct preview *p)
{
    const double state = (double)p->tape->param_elements * sizeof(float) / MIB;
    const long long every = p->job->audit.every, checksum = p->job->audit.checksum;
    const bool relaxed = p->job->recovery.exactness == JOBSPEC_EXACTNESS_RELAXED;
    if (p->job->workers.count < 2 || relaxed || (every == 0 && checksum == 0))
        return ST_OK;
    enum status st = buf_append_text(p->out, "audits     ");
    if (st == ST_OK && every > 0) {
        st = buf_printf(p->out, "each lane is computed twice once in %lld steps: %.2g %% more%s",
                        every, 100.0 / (double)every, checksum > 0 ? "; " : "");
    }
    if (st == ST_OK && checksum > 0) {
        st = buf_printf(p->out, "a checksum of the state every %lld steps (weights alone %.1f MiB)",
                        checksum, state);
    }
    return st == ST_OK ? buf_append_text(p->out, "\n") : st;
}

static enum status print_job(const struct preview *p)
{
    const struct jobspec *job = p->job;
    const struct settings *s = &p->settings;
    const struct tape *tape = p->tape;
    enum status st = buf_printf(p->out, "model      %s: %.2f million parameters in %d tensors\n",
                                jobspec_arch_word(job->model.arch),
                                (double)tape->param_elements / 1e6, tape->param_count);
    if (st == ST_OK)
        st = preview_data_print(job, p->train, p->eval, p->out, p->reason);
    if (st != ST_OK)
        return st;
    st = buf_printf(p->out, "step       %lld samples in %u lanes of %u",
                    (long long)job->train.global_batch, s->lanes, s->lane_size);
    if (st == ST_OK && s->micro_batch > 0)
        st = buf_printf(p->out, ", cut into %u x %u", s->accumulate, s->micro_batch);
    if (st == ST_OK) {
        st = buf_printf(p->out, "; %llu steps in all, %llu per epoch\nprecision  %s",
                        (unsigned long long)s->total_steps, (unsigned long long)s->steps_per_epoch,
                        jobspec_precision_word(job->train.precision));
    }
    if (st == ST_OK && job->train.amp != JOBSPEC_AMP_NONE)
        st = buf_printf(p->out, ", amp %s", jobspec_amp_word(job->train.amp));
    if (st == ST_OK && s->scaler.dynamic)
        st = buf_append_text(p->out, ", dynamic loss scale");
    if (st == ST_OK && !s->scaler.dynamic && s->scaler.scale != 1)
        st = buf_printf(p->out, ", loss scale %.9g", s->scaler.scale);
    return st == ST_OK ? buf_append_text(p->out, "\n") : st;
}

/* Bytes of rank 0's share of the state, cut for `ranks`: no share is larger. */
static size_t share_bytes(const struct preview *p, uint32_t ranks)
{
    const uint32_t moments = (uint32_t)optimizer_moments(&p->settings.optimizer);
    const struct lane_layout layout = lane_layout(p->tape);
    struct ckpt_buffer buffers[4] = { { .dtype = CKPT_F32 } };
    struct ckpt_state state = { .buffers = buffers };
    for (uint32_t i = 0; i < 1 + moments; i++) {
        buffers[state.buffer_count++] =
            (struct ckpt_buffer){ .dtype = CKPT_F32, .count = layout.param_count };
    }
    if (layout.stat_count > 0) {
        buffers[state.buffer_count++] =
            (struct ckpt_buffer){ .dtype = CKPT_F32, .count = layout.stat_count };
    }
    struct ckpt_share share = { .count = 0 };
    const enum status st = ckpt_share_even(&state, CKPT_ALL_BUFFERS, 0, ranks, &share);
    CHECK(st == ST_OK);
    return (size_t)ckpt_share_bytes(&state, &share);
}

/* Returns the folder for copies in memory on a node of this home; NULL: none. */
static const char *copies_folder(char *out, size_t capacity)
{
    struct paths paths;
    return paths_open(&paths) == ST_OK && paths_copies(&paths, out, capacity) == ST_OK ? out : NULL;
}

static enum status print_no_copies(const struct preview *p, const struct reason *why)
{
    return buf_printf(p->out, "copies     none in memory, with all workers here: %s\n", why->text);
}

/* Prints how often copies between saves are taken, what memory they need and where; or why there
 * are none. Assumes that all workers are on this machine. */
static enum status print_copies(const struct preview *p, struct session_demand *demand)
{
    const int64_t every = p->job->checkpoint.memory_every;
    const uint32_t workers = (uint32_t)p->job->workers.count;
    char folder[LIMIT_PATH], often[96];
    const char *dir = copies_folder(folder, sizeof(folder));
    struct session_budget budget = { .least = 0 };
    struct reason why = { "" };
    if (every == 0)
        return buf_append_text(p->out, "copies     none in memory (checkpoint.memory_every)\n");
    const struct session_headroom headroom = session_headroom_measure(dir);
    if (every == JOBSPEC_EVERY_AUTO) {
        demand->every = session_headroom_holds(&headroom, demand, workers, &budget, &why);
        if (!demand->every)
            return print_no_copies(p, &why);
        (void)snprintf(often, sizeof(often), "as often as they take %.1f %% of the time at most",
                       100 * SESSION_COPY_COST_SHARE);
    } else {
        const enum status st = session_budget(demand, &budget);
        CHECK(st == ST_OK); /* print_saving has refused what isn't held */
        if (!session_headroom_fits(&headroom, &budget, workers, &why)) {
            demand->every = false;
            return print_no_copies(p, &why);
        }
        if (every == 1) {
            (void)snprintf(often, sizeof(often), "after every step");
        } else {
            (void)snprintf(often, sizeof(often), "after every %lld steps", (long long)every);
        }
    }
    const double each = (double)session_budget_copies(&budget) / MIB;
    return buf_printf(p->out, "copies     in memory %s: %.1f MiB per worker, %.1f in all, in %s\n",
                      often, each, each * workers, dir != NULL ? dir : "the workers alone");
}

/* Returns the demand of one of `workers` workers. Where copies go to other nodes, it assumes two
 * nodes with half of all workers each, one of which has lost some. */
static struct session_demand demand_of(const struct preview *p, uint32_t workers)
{
    const struct jobspec *job = p->job;
    const uint32_t half = ((uint32_t)job->workers.count + 1) / 2;
    const uint32_t most = half < workers ? half : workers - 1, rest = workers - most;
    const bool peers = job->checkpoint.peers > 0;
    const size_t share = share_bytes(p, workers);
    return (struct session_demand){ .share_bytes = share,
                                    .threads = (uint32_t)job->checkpoint.threads,
                                    .every = job->checkpoint.memory_every > 0,
                                    .differs = job->checkpoint.delta,
                                    .state_bytes = share_bytes(p, 1),
                                    .object = ckpt_store_is_object(job->checkpoint.store),
                                    .peers = peers && most > 0,
                                    .peer_copies = peers ? (most + rest - 1) / rest : 0,
                                    .peer_copy_bytes = share,
                                    .bytes_max = (size_t)job->checkpoint.memory_bytes };
}

static enum status print_budget(const struct preview *p, const struct session_demand *demand,
                                const struct session_budget *budget)
{
    enum status st = buf_printf(
        p->out,
        "saving     at most %.1f MiB of host memory per worker: %d x %.1f for "
        "snapshots%s, %.1f for %u encoder threads%s%s",
        (double)budget->bytes / MIB, budget->files + budget->peer_copy_files,
        (double)budget->file_bytes / MIB, budget->peer_copy_files > 0 ? " and a peer's copies" : "",
        (double)budget->writer_bytes / MIB, budget->threads,
        demand->differs ? ", reading what differences are made to" : "",
        demand->object ? ", parts on their way to S3" : "");
    const int own = budget->files - (demand->peers ? SESSION_PEER_FILES : 0);
    if (st == ST_OK && own == 1) {
        st = buf_append_text(p->out,
                             "; for want of more (checkpoint.memory) a checkpoint that is due "
                             "while the one before is written is given up");
    } else if (st == ST_OK && budget->threads < demand->threads) {
        st = buf_printf(p->out, " instead of %u (checkpoint.memory)", demand->threads);
    }
    return st == ST_OK ? buf_append_text(p->out, "\n") : st;
}

/* Worst cases over all numbers of workers that the job may train with: that in which most is given
 * up, and that in which a worker then takes the most memory. */
struct worst {
    struct session_demand largest;
    size_t bytes; /* bytes that `largest` takes */
    enum session_lack lack;
    size_t least; /* the bound with which that weren't given up */
    uint32_t workers;
};

static struct worst find_worst(const struct preview *p)
{
    struct worst worst = { .workers = 0 };
    for (uint32_t n = (uint32_t)p->job->workers.min; n <= (uint32_t)p->job->workers.count; n++) {
        struct session_demand demand = demand_of(p, n);
        struct session_budget budget;
        const enum session_lack lack = session_lack_of(&demand, 1);
        const size_t least = session_least(&demand, 1, lack > 0 ? lack - 1 : lack);
        if (lack > worst.lack || (lack == worst.lack && least > worst.least)) {
            worst.lack = lack;
            worst.least = least;
            worst.workers = n;
        }
        session_do_without(lack, &demand);
        if (session_budget(&demand, &budget) == ST_OK && budget.bytes > worst.bytes) {
            worst.largest = demand;
            worst.bytes = budget.bytes;
        }
    }
    return worst;
}

static enum status print_lack(const struct preview *p, const struct worst *worst)
{
    struct reason text;
    if (worst->lack == SESSION_LACK_NOTHING)
        return ST_OK;
    session_lack_describe(worst->lack, worst->least, worst->workers, &text);
    return buf_printf(p->out, "note       %s\n", text.text);
}

/* Host memory for checkpoints, and what checkpoint.memory means for it. With fewer workers it may
 * hold less: a note says that. */
static enum status print_saving(const struct preview *p)
{
    const size_t most = share_bytes(p, (uint32_t)p->job->workers.min);
    const struct session_demand all = demand_of(p, (uint32_t)p->job->workers.count);
    const struct worst worst = find_worst(p);
    struct session_demand demand = worst.largest;
    struct session_budget budget;
    enum status st = session_share_check(most, all.state_bytes, p->reason);
    if (st == ST_OK)
        st = session_bound_check(&all, 1, p->reason);
    if (st != ST_OK)
        return st;
    st = print_copies(p, &demand);
    if (st == ST_OK)
        st = session_budget(&demand, &budget);
    if (st == ST_OK)
        st = print_budget(p, &demand, &budget);
    return st == ST_OK ? print_lack(p, &worst) : st;
}

#define LANES_BYTES 96

/* "4 lanes", with `workers.min` "4 lanes, one of 2 workers". */
static const char *lanes_text(const struct preview *p, const struct memory_need_options *worker,
                              int64_t workers, char out[LANES_BYTES])
{
    const bool fixed = p->job->workers.min == p->job->workers.count;
    int size = snprintf(out, LANES_BYTES, "%u lanes", worker->lane_count);
    if (!fixed && size > 0) {
        (void)snprintf(out + size, LANES_BYTES - (size_t)size, ", one of %lld worker%s",
                       (long long)workers, workers == 1 ? "" : "s");
    }
    return out;
}

static enum status print_stages(const struct preview *p)
{
    double *cost = NULL;
    enum status st = measure_nodes(p, &cost);
    const struct preview_stages stages = { .job = p->job,
                                           .tape = p->tape,
                                           .settings = &p->settings,
                                           .device = &p->device,
                                           .cost = cost,
                                           .evaluates = p->eval != NULL };
    if (st == ST_OK)
        st = preview_stages_print(&stages, p->out, p->reason);
    free(cost);
    return st;
}

static enum status print_memory(const struct preview *p)
{
    struct memory_need_options options;
    struct memory_need need;
    char text[MEMORY_NEED_TEXT], lanes[LANES_BYTES];
    int64_t workers = 0;
    if (p->job->parallel.pipeline.stages > 1)
        return print_stages(p);
    enum status st = largest_worker(p, &options, &workers);
    if (st != ST_OK)
        return st;
    st = memory_need_measure(&options, p->settings.micro_batch, &need);
    if (st != ST_OK)
        return preview_fail(p, st, "preparing the model");
    memory_need_print(&need, text, sizeof(text));
    return buf_printf(p->out, "worker     %.1f MiB with %s: %s\n",
                      (double)memory_need_total(&need) / MIB,
                      lanes_text(p, &options, workers, lanes), text);
}

static enum status print_plan(const struct preview *p)
{
    struct plan *plan = NULL;
    const struct plan_options options = plan_options_of(p);
    enum status st = plan_new(p->tape, &options, &plan);
    if (st != ST_OK)
        return preview_fail(p, st, "preparing the model");
    double micros = (double)p->settings.lanes * p->settings.accumulate;
    const struct plan_sizes *sizes = plan_sizes(plan);
    st = buf_printf(p->out, "compute    %.2f GFLOP per step\n",
                    (sizes->flops_forward + sizes->flops_backward) * micros / 1e9);
    if (st == ST_OK)
        st = plan_print(plan, p->out);
    plan_free(plan);
    return st;
}

static enum status print_tape_node(const struct preview *p, int n)
{
    const struct tape *tape = p->tape;
    const struct tape_node *node = &tape->nodes[n];
    const struct tape_value *value = &tape->values[node->out];
    char shape[96] = "";
    size_t used = 0;
    for (int i = 0; i < value->tensor.ndim && used < sizeof(shape); i++) {
        int64_t dim = value->tensor.dims[i];
        if (i == 0 && value->batched && p->settings.micro_batch > 0)
            dim *= p->settings.micro_batch;
        int size =
            snprintf(shape + used, sizeof(shape) - used, i > 0 ? "x%lld" : "%lld", (long long)dim);
        used += size > 0 ? (size_t)size : 0;
    }
    size_t params = 0;
    for (int i = 0; i < OP_PARAM_MAX; i++)
        params += tape_param_elements(tape, node->param[i]);
    return buf_printf(p->out, "%4d  %-21s  %-18s  %10zu\n", n, op_name(node->op), shape, params);
}

/* The tape, and the memory that is the same on all devices. */
static enum status print_tape(const struct preview *p)
{
    const int moments = optimizer_moments(&p->settings.optimizer);
    double params = (double)p->tape->param_elements * sizeof(float) / MIB;
    struct memory_need_options worker;
    char lanes[LANES_BYTES];
    int64_t workers = 0;
    enum status st = largest_worker(p, &worker, &workers);
    if (st != ST_OK)
        return st;
    const uint32_t copies = reducer_gradient_buffers(worker.lane_count);
    st = buf_printf(
        p->out, "worker     with %s: parameters %.1f MiB, moments %.1f, gradient copies %.1f\n",
        lanes_text(p, &worker, workers, lanes), params, params * (double)moments, params * copies);
    if (st == ST_OK) {
        st = buf_printf(p->out,
                        "not known without the device: activations, kernel caches, implementations"
                        "%s (%s)\n",
                        p->settings.micro_batch == 0 ? ", micro-batch" : "", p->no_device.text);
    }
    if (st == ST_OK) {
        st = buf_printf(p->out, "%4s  %-21s  %-18s  %10s\n", "node", "op", "output", "parameters");
    }
    for (int n = 0; st == ST_OK && n < p->tape->node_count; n++)
        st = print_tape_node(p, n);
    return st;
}

static enum status open_inputs(struct preview *p)
{
    enum status st = open_splits(p);
    if (st == ST_OK) {
        st = settings_derive(p->job, p->train->samples, &p->settings, p->reason);
    }
    struct built_model model = { NULL };
    if (st == ST_OK)
        st = build_model(&(struct build_options){ .job = p->job }, p->train, &model, p->reason);
    p->tape = model.tape;
    p->graph = model.graph;
    if (st == ST_OK)
        st = initial_state_check(p->job, io_system(), p->tape, p->reason);
    return st;
}

static enum status print_all(struct preview *p)
{
    enum status st = open_inputs(p);
    if (st != ST_OK)
        return st;
    open_preview_device(p);
    st = choose_micro_batch(p);
    if (st == ST_OK)
        st = print_job(p);
    if (st == ST_OK)
        st = print_workers(p);
    if (st == ST_OK)
        st = print_pipeline(p);
    if (st == ST_OK)
        st = print_shares(p);
    if (st == ST_OK)
        st = print_audits(p);
    if (st == ST_OK)
        st = print_saving(p);
    if (st == ST_OK && p->graph != NULL)
        st = preview_graph_print(p->graph, p->tape, p->out);
    if (st != ST_OK || !p->has_device)
        return st == ST_OK ? print_tape(p) : st;
    st = print_memory(p);
    return st == ST_OK ? print_plan(p) : st;
}

static void close_preview(struct preview *p)
{
    tape_free(p->tape);
    free(p->graph);
    dataset_close(p->train);
    dataset_close(p->eval);
    device_close(&p->device);
}

enum status preview_check(const struct jobspec *job, struct reason *reason)
{
    struct preview p = { .job = job, .reason = reason };
    const enum status st = open_inputs(&p);
    close_preview(&p);
    return st;
}

enum status preview_print(const struct jobspec *job, struct buf *out, struct reason *reason)
{
    struct preview p = { .job = job, .out = out, .reason = reason };
    enum status st = print_all(&p);
    close_preview(&p);
    return st;
}
