/* The state's description for checkpoints: buffers and tensors by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "trainer/update/optimizer_internal.h"

/* The average of the parameters is the last moment. */
static bool is_ema(const struct optimizer *optimizer, int moment)
{
    return optimizer->options.ema > 0 && moment == optimizer->moment_count - 1;
}

static const char *moment_name(const struct optimizer *optimizer, int moment)
{
    if (is_ema(optimizer, moment))
        return "ema";
    switch (optimizer->options.kind) {
    case JOBSPEC_OPTIMIZER_SGD:
        return "momentum";
    case JOBSPEC_OPTIMIZER_ADAMW:
        return moment == 0 ? "adam.m" : "adam.v";
    case JOBSPEC_OPTIMIZER_LION:
        return "lion.m";
    case JOBSPEC_OPTIMIZER_LAMB:
        return moment == 0 ? "lamb.m" : "lamb.v";
    case JOBSPEC_OPTIMIZER_MUON:
        return moment == 0 ? "muon.m" : "muon.v";
    case JOBSPEC_OPTIMIZER_NONE:
        break;
    }
    CHECK("an optimizer" == NULL);
    return "";
}

/* Describes one buffer and its tensors, each named PREFIX + the tape's name. */
static enum status describe_buffer(struct optimizer *optimizer, const char *name,
                                   const char *prefix, bool statistics)
{
    const struct tape *tape = optimizer->tape;
    const struct tape_tensor *from = statistics ? tape->stats : tape->params;
    int count = statistics ? tape->stat_count : tape->param_count;
    if (count == 0)
        return ST_OK;
    struct ckpt_buffer *buffer = &optimizer->buffers[optimizer->buffer_count];
    (void)snprintf(buffer->name, sizeof(buffer->name), "%s", name);
    buffer->dtype = CKPT_F32;
    buffer->count = statistics ? tape->stat_elements : tape->param_elements;
    for (int i = 0; i < count; i++) {
        struct ckpt_tensor *tensor = &optimizer->tensors[optimizer->tensor_count++];
        int length = snprintf(tensor->name, sizeof(tensor->name), "%s%s", prefix, from[i].name);
        if (length < 0 || (size_t)length >= sizeof(tensor->name))
            return ST_INVALID;
        tensor->buffer = optimizer->buffer_count;
        tensor->offset = from[i].offset;
        tensor->ndim = from[i].ndim;
        for (int d = 0; d < from[i].ndim; d++)
            tensor->dims[d] = (uint64_t)from[i].dims[d];
    }
    optimizer->buffer_count++;
    return ST_OK;
}

enum status optimizer_describe_open(struct optimizer *optimizer)
{
    size_t count = (size_t)optimizer->tape->param_count * (size_t)(1 + optimizer->moment_count) +
                   (size_t)optimizer->tape->stat_count;
    optimizer->tensors = calloc(count + 1, sizeof(*optimizer->tensors));
    if (optimizer->tensors == NULL)
        return ST_NO_MEMORY;
    enum status st = describe_buffer(optimizer, "parameters", "", false);
    for (int i = 0; st == ST_OK && i < optimizer->moment_count; i++) {
        char prefix[32];
        (void)snprintf(prefix, sizeof(prefix), "%s/", moment_name(optimizer, i));
        st = describe_buffer(optimizer, moment_name(optimizer, i), prefix, false);
    }
    if (st != ST_OK)
        return st;
    return describe_buffer(optimizer, "statistics", "", true);
}

void optimizer_describe(struct optimizer *optimizer, const struct ckpt_buffer **out_buffers,
                        uint32_t *out_buffer_count, const struct ckpt_tensor **out_tensors,
                        uint32_t *out_tensor_count)
{
    *out_buffers = optimizer->buffers;
    *out_buffer_count = optimizer->buffer_count;
    *out_tensors = optimizer->tensors;
    *out_tensor_count = optimizer->tensor_count;
}

enum optimizer_buffer_kind optimizer_buffer_kind(const struct optimizer *optimizer, uint32_t i)
{
    CHECK(i < optimizer->buffer_count);
    if (i == 0)
        return OPTIMIZER_PARAMETERS;
    return i <= (uint32_t)optimizer->moment_count ? OPTIMIZER_MOMENT : OPTIMIZER_STATISTICS;
}

void *optimizer_buffer(struct optimizer *optimizer, const char *name)
{
    struct {
        const char *name;
        float *data;
    } rows[OPTIMIZER_BUFFERS_MAX] = { { "parameters", optimizer->params },
                                      { "statistics", optimizer->stats } };
    for (int i = 0; i < optimizer->moment_count; i++) {
        rows[2 + i].name = moment_name(optimizer, i);
        rows[2 + i].data = optimizer->moments[i];
    }
    for (int i = 0; i < 2 + optimizer->moment_count; i++) {
        if (strcmp(rows[i].name, name) == 0)
            return rows[i].data;
    }
    return NULL;
}
