#include "trainer/worker/memory_need.h"

#include <stdio.h>

#include "comm/exact_order.h"
#include "trainer/tape/lane.h"
#include "trainer/tape/plan.h"
#include "trainer/update/owners.h"

#define INPUT_ENTRIES 2  /* of a feed */
#define LEFT_SHARE    10 /* left to libraries: a tenth, and */
#define LEFT_BYTES    (UINT64_C(512) << 20)
#define MIB           (1024.0 * 1024.0)
#define DRAW_WORDS(n) (OP_DRAW_SAMPLES + (n))

static enum status measure_plan(const struct memory_need_options *o, uint32_t micro_batch,
                                bool training, struct plan_sizes *out)
{
    struct plan *plan = NULL;
    struct plan_options options = { .table = o->table,
                                    .backend = o->backend,
                                    .batch = micro_batch,
                                    .training = training,
                                    .math = o->settings->math,
                                    .amp = o->settings->amp };
    enum status st = plan_new(o->tape, &options, &plan);
    if (st != ST_OK)
        return st;
    *out = *plan_sizes(plan);
    plan_free(plan);
    return ST_OK;
}

static size_t input_bytes(const struct tape *tape, uint32_t micro_batch)
{
    size_t bytes = DRAW_WORDS(micro_batch) * sizeof(uint32_t);
    for (int i = 0; i < tape->input_count; i++)
        bytes += micro_batch * tape->values[tape->inputs[i]].tensor.bytes;
    return INPUT_ENTRIES * bytes;
}

enum status memory_need_measure(const struct memory_need_options *options, uint32_t micro_batch,
                                struct memory_need *out)
{
    const struct memory_need_options *o = options;
    struct plan_sizes training;
    struct plan_sizes evaluation = { 0 };
    enum status st = measure_plan(o, micro_batch, true, &training);
    if (st == ST_OK && o->evaluates)
        st = measure_plan(o, micro_batch, false, &evaluation);
    if (st != ST_OK)
        return st;
    struct lane_layout layout = lane_layout(o->tape);
    const struct optimizer_options *optimizer = &o->settings->optimizer;
    size_t moments = optimizer->kind == OPTIMIZER_ADAMW ? 2 : optimizer->momentum != 0;
    size_t owned = layout.param_count;
    if (o->owners > 1)
        st = owners_most(o->tape, owners_unit(o->table->host_memory), o->owners, &owned);
    if (st != ST_OK)
        return st;
    const size_t copies = exact_gradient_buffers(o->lane_count);
    /* Evaluation uses the arena of training where that is large enough. */
    bool own_arena = evaluation.arena_bytes > training.arena_bytes;
    *out = (struct memory_need){
        .activations = training.arena_bytes + (own_arena ? evaluation.arena_bytes : 0),
        .caches = training.cache_bytes + evaluation.cache_bytes,
        .parameters = (layout.param_count + layout.stat_count) * sizeof(float),
        .moments = moments * owned * sizeof(float),
        .gradients = copies * layout.count * sizeof(float),
        .inputs = input_bytes(o->tape, micro_batch),
    };
    return ST_OK;
}

size_t memory_need_total(const struct memory_need *need)
{
    return need->activations + need->caches + need->parameters + need->moments + need->gradients +
           need->inputs;
}

void memory_need_print(const struct memory_need *need, char *text, size_t capacity)
{
    (void)snprintf(text, capacity,
                   "activations %.1f MiB, kernel caches %.1f, parameters %.1f, moments %.1f, "
                   "gradient copies %.1f, inputs %.1f",
                   (double)need->activations / MIB, (double)need->caches / MIB,
                   (double)need->parameters / MIB, (double)need->moments / MIB,
                   (double)need->gradients / MIB, (double)need->inputs / MIB);
}

enum status memory_need_fit(const struct memory_need_options *options, uint32_t lane_size,
                            uint64_t device_bytes, uint32_t *out, struct memory_need *out_need)
{
    struct memory_need_options whole = *options;
    whole.lane_count = options->settings->lanes;
    whole.owners = 0;
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
