#include "trainer/initial.h"

#include <stdio.h>
#include <string.h>

#include "checkpoint/weights.h"
#include "trainer/init.h"

static enum status load(const struct initial_options *o, float *params, float *stats, char *message,
                        size_t capacity)
{
    float *data[CKPT_BUFFERS_MAX] = { NULL };
    struct weights_target target = { .arch = o->job->model.arch,
                                     .buffers = o->buffers,
                                     .data = data,
                                     .buffer_count = o->buffer_count,
                                     .tensors = o->tensors,
                                     .tensor_count = o->tensor_count };
    for (uint32_t i = 0; i < o->buffer_count; i++) {
        if (strcmp(o->buffers[i].name, "parameters") == 0) {
            data[i] = params;
        } else if (strcmp(o->buffers[i].name, "statistics") == 0) {
            data[i] = stats;
        }
    }
    struct weights_loaded loaded;
    struct weights_message why;
    enum status st = weights_load(o->io, o->job->model.weights, &target, &loaded, &why);
    if (st != ST_OK)
        (void)snprintf(message, capacity, "model.weights: %s", why.text);
    return st;
}

enum status initial_state(const struct initial_options *options, float *params, float *stats,
                          char *message, size_t capacity)
{
    init_params(options->tape, (uint64_t)options->job->train.seed, params);
    if (stats != NULL)
        init_stats(options->tape, stats);
    if (options->job->model.weights[0] == '\0')
        return ST_OK;
    return load(options, params, stats, message, capacity);
}
