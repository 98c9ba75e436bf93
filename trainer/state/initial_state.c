#include "trainer/state/initial_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/weights/weights.h"
#include "common/cleanup.h"
#include "trainer/state/weights_config.h"
#include "trainer/tape/initial_values.h"

static enum status load_weights(const struct jobspec *job, const struct io *io,
                                const struct weights_target *target, struct reason *reason)
{
    struct weights_loaded loaded;
    struct reason why;
    enum status st = weights_config_check(job, io, reason);
    if (st != ST_OK)
        return st;
    st = weights_load(io, job->model.weights, target, &loaded, &why);
    if (st != ST_OK)
        reason_set(reason, "model.weights: %s", why.text);
    return st;
}

enum status initial_state_fill(const struct initial_state_options *options, float *params,
                               float *stats, struct reason *reason)
{
    initial_values_params(options->tape, (uint64_t)options->job->train.seed, params);
    if (stats != NULL)
        initial_values_stats(options->tape, stats);
    if (options->job->model.weights[0] == '\0')
        return ST_OK;
    float *data[CKPT_BUFFERS_MAX] = { NULL };
    struct weights_target target = { .arch = jobspec_arch_word(options->job->model.arch),
                                     .buffers = options->buffers,
                                     .data = data,
                                     .buffer_count = options->buffer_count,
                                     .tensors = options->tensors,
                                     .tensor_count = options->tensor_count };
    for (uint32_t i = 0; i < options->buffer_count; i++) {
        if (strcmp(options->buffers[i].name, "parameters") == 0) {
            data[i] = params;
        } else if (strcmp(options->buffers[i].name, "statistics") == 0) {
            data[i] = stats;
        }
    }
    return load_weights(options->job, options->io, &target, reason);
}

/* The tensors of one kind, from the tape alone. */
static enum status describe_tensors(const struct tape_tensor *from, int count, uint32_t buffer,
                                    struct ckpt_tensor *out)
{
    for (int i = 0; i < count; i++) {
        int length = snprintf(out[i].name, sizeof(out[i].name), "%s", from[i].name);
        if (length < 0 || (size_t)length >= sizeof(out[i].name))
            return ST_INVALID;
        out[i].buffer = buffer;
        out[i].offset = from[i].offset;
        out[i].ndim = from[i].ndim;
        for (int d = 0; d < from[i].ndim; d++)
            out[i].dims[d] = (uint64_t)from[i].dims[d];
    }
    return ST_OK;
}

enum status initial_state_check(const struct jobspec *job, const struct io *io,
                                const struct tape *tape, struct reason *reason)
{
    static const struct ckpt_buffer buffers[] = { { .name = "parameters" },
                                                  { .name = "statistics" } };
    uint32_t params = (uint32_t)tape->param_count, stats = (uint32_t)tape->stat_count;
    if (job->model.weights[0] == '\0')
        return ST_OK;
    auto_free struct ckpt_tensor *tensors = calloc((size_t)params + stats + 1, sizeof(*tensors));
    if (tensors == NULL)
        return ST_NO_MEMORY;
    enum status st = describe_tensors(tape->params, tape->param_count, 0, tensors);
    if (st == ST_OK)
        st = describe_tensors(tape->stats, tape->stat_count, 1, tensors + params);
    if (st != ST_OK)
        return st;
    struct weights_target target = { .arch = jobspec_arch_word(job->model.arch),
                                     .buffers = buffers,
                                     .buffer_count = 2,
                                     .tensors = tensors,
                                     .tensor_count = params + stats };
    return load_weights(job, io, &target, reason);
}
