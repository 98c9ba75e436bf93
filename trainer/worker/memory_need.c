#include "trainer/worker/memory_need.h"

#include <stdio.h>

#include "comm/reducer_order.h"
#include "trainer/plan/plan.h"
#include "trainer/stage/stage_run.h"
#include "trainer/tape/lane.h"
#include "trainer/update/owners.h"

#define INPUT_ENTRIES 2  /* of a feed */
#define OUTBOXES      2  /* of a stage */
#define LEFT_SHARE    10 /* left to libraries: a tenth, and */
#define LEFT_BYTES    (UINT64_C(512) << 20)
#define MIB           (1024.0 * 1024.0)
#define DRAW_WORDS(n) (OP_DRAW_SAMPLES + (n))

/* Memory of the plans: of a stage's chunks the most, and caches of all. */
struct plan_needs {
    size_t training, evaluation; /* arenas */
    size_t caches;
    size_t leaving; /* bytes of gradients that go to the part before */
};

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static enum status measure_plan(const struct memory_need_options *o, uint32_t micro_batch,
                                bool training, uint32_t chunk, struct plan_needs *out)
{
    struct plan *plan = NULL;
    const struct stage *s = o->stage;
    const uint32_t part = s != NULL ? stage_part(s, chunk) : 0;
    const struct plan_options options = { .table = o->table,
                                          .backend = o->backend,
                                          .begin = s != NULL ? (int)s->node_begin[part] : 0,
                                          .end = s != NULL ? (int)s->node_begin[part + 1] : 0,
                                          .stashes = s != NULL ? (int)s->row->stashes : 0,
                                          .batch = micro_batch,
                                          .training = training,
                                          .split = s != NULL && pipeline_row_splits(s->row),
                                          .math = o->settings->math,
                                          .amp = o->settings->amp,
                                          .recompute = o->settings->recompute };
    struct plan_border leaving;
    enum status st = plan_new(o->tape, &options, &plan);
    if (st != ST_OK)
        return st;
    size_t *arena = training ? &out->training : &out->evaluation, bytes = 0;
    *arena = max_size(*arena, plan_sizes(plan)->arena_bytes);
    out->caches += plan_sizes(plan)->cache_bytes;
    plan_border(plan, PLAN_BEFORE, PLAN_BACKWARD, 0, &leaving);
    for (int i = 0; i < leaving.count; i++)
        bytes += leaving.tensor[i].bytes;
    out->leaving = max_size(out->leaving, bytes);
    plan_free(plan);
    return ST_OK;
}

static enum status measure_plans(const struct memory_need_options *o, uint32_t micro_batch,
                                 struct plan_needs *out)
{
    const uint32_t chunks = o->stage != NULL ? stage_chunks(o->stage) : 1;
    enum status st = ST_OK;
    for (uint32_t c = 0; st == ST_OK && c < chunks; c++) {
        st = measure_plan(o, micro_batch, true, c, out);
        if (st == ST_OK && o->evaluates)
            st = measure_plan(o, micro_batch, false, c, out);
    }
    if (chunks > 1) /* which use the same stashes */
        out->training = out->evaluation = max_size(out->training, out->evaluation);
    return st;
}

static size_t draw_bytes(uint32_t micro_batch)
{
    return DRAW_WORDS(micro_batch) * sizeof(uint32_t);
}

static size_t input_bytes(const struct tape *tape, uint32_t micro_batch)
{
    size_t bytes = draw_bytes(micro_batch);
    for (int i = 0; i < tape->input_count; i++)
        bytes += micro_batch * tape->values[tape->inputs[i]].tensor.bytes;
    return INPUT_ENTRIES * bytes;
}

/* Inputs, random numbers, statistics and scalars of each micro-batch; two of what goes back. */
static size_t under_way(const struct memory_need_options *o, uint32_t micro_batch, size_t leaving)
{
    const struct stage *s = o->stage;
    const struct tape *tape = o->tape;
    if (s == NULL)
        return 0;
    size_t each = OPTIMIZER_SCALARS * sizeof(float), inputs = draw_bytes(micro_batch);
    for (uint32_t c = 0; c < stage_chunks(s); c++) {
        const struct lane_extent *stats = &s->slice[stage_part(s, c)].part[LANE_STATS];
        each += (stats->end - stats->first) * sizeof(float);
    }
    for (int i = 0; i < tape->input_count; i++) {
        if (stage_reads(s, tape->inputs[i]))
            inputs += micro_batch * tape->values[tape->inputs[i]].tensor.bytes;
    }
    return s->row->stashes * each + stage_run_kept(s) * inputs + OUTBOXES * leaving;
}

/* Returns the bytes of parameters of this stage that other stages read. */
static size_t arriving_bytes(const struct stage *s, const struct tape *tape)
{
    size_t bytes = 0;
    for (int t = 0; s != NULL && t < tape->tie_count; t++) {
        const struct tape_tensor *param = &tape->params[tape->ties[t].param];
        if (stage_has_node(s, param->first_node) && !stage_has_node(s, tape->ties[t].node))
            bytes += param->count * sizeof(float);
    }
    return bytes;
}

static size_t gradient_bytes(const struct memory_need_options *o)
{
    size_t count = lane_layout(o->tape).count;
    if (o->stage != NULL) {
        count = 0;
        for (size_t i = 0; i < o->stage->extent_count; i++)
            count += o->stage->extents[i].count;
    }
    return reducer_gradient_buffers(o->lane_count) * count * sizeof(float) +
           arriving_bytes(o->stage, o->tape);
}

static enum status measure_state(const struct memory_need_options *o, struct optimizer_bytes *out)
{
    const struct optimizer_options *optimizer = &o->settings->optimizer;
    const struct optimizer_holding holding =
        o->stage != NULL ? stage_holding(o->stage) : (struct optimizer_holding){ NULL };
    size_t owned = 0;
    enum status st = optimizer_measure(optimizer, o->tape, &holding, out);
    if (st != ST_OK || o->owners <= 1 || o->stage != NULL)
        return st;
    st = owners_most(o->tape, owners_unit(o->table->host_memory), o->owners, &owned);
    out->moments = (size_t)optimizer_moments(optimizer) * owned * sizeof(float);
    return st;
}

enum status memory_need_measure(const struct memory_need_options *options, uint32_t micro_batch,
                                struct memory_need *out)
{
    const struct memory_need_options *o = options;
    struct plan_needs plans = { 0 };
    struct optimizer_bytes state;
    enum status st = measure_plans(o, micro_batch, &plans);
    if (st == ST_OK)
        st = measure_state(o, &state);
    if (st != ST_OK)
        return st;
    const size_t stashes = o->stage != NULL ? o->stage->row->stashes : 1;
    const size_t training = plans.training, evaluation = plans.evaluation;
    /* Evaluation uses the arenas of training where those are large enough. */
    *out = (struct memory_need){
        .activations = stashes * (training + (evaluation > training ? evaluation : 0)),
        .caches = plans.caches,
        .parameters = state.params + state.stats,
        .moments = state.moments + state.work,
        .gradients = gradient_bytes(o),
        .inputs = input_bytes(o->tape, micro_batch),
        .under_way = under_way(o, micro_batch, plans.leaving),
    };
    return ST_OK;
}

size_t memory_need_total(const struct memory_need *need)
{
    return need->activations + need->caches + need->parameters + need->moments + need->gradients +
           need->inputs + need->under_way;
}

void memory_need_print(const struct memory_need *need, char *text, size_t capacity)
{
    const int size = snprintf(
        text, capacity,
        "activations %.1f MiB, kernel caches %.1f, parameters %.1f, moments %.1f, "
        "gradient copies %.1f, inputs %.1f",
        (double)need->activations / MIB, (double)need->caches / MIB, (double)need->parameters / MIB,
        (double)need->moments / MIB, (double)need->gradients / MIB, (double)need->inputs / MIB);
    if (need->under_way > 0 && size > 0 && (size_t)size < capacity) {
        (void)snprintf(text + size, capacity - (size_t)size, ", micro-batches under way %.1f",
                       (double)need->under_way / MIB);
    }
}

enum status memory_need_fit(const struct memory_need_options *options, uint32_t lane_size,
                            uint64_t device_bytes, uint32_t *out, struct memory_need *out_need)
{
    struct memory_need_options whole = *options;
    whole.lane_count = options->settings->lanes;
    whole.owners = 0;
    whole.stage = NULL;
    uint64_t left = device_bytes / LEFT_SHARE + LEFT_BYTES;
    uint64_t room = device_bytes > left ? device_bytes - left : 0;
    for (uint32_t micro = lane_size; micro > 0; micro--) {
        if (lane_size % micro != 0)
            continue;
        struct memory_need need;
        enum status st = memory_need_measure(&whole, micro, &need);
        if (st != ST_OK)
            return st;
        if (memory_need_total(&need) <= room) {
            *out = micro;
            *out_need = need;
            return ST_OK;
        }
        *out_need = need;
    }
    return ST_NO_MEMORY;
}
