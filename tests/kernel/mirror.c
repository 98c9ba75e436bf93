#include "tests/kernel/mirror.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"

#define REGIONS_MAX 512
#define MARGIN      64

/* Host memory, and where it is on the device: as a tensor, and as a part of a flat buffer. */
struct region {
    char *host;
    size_t bytes;
    void *tensor, *flat; /* flat: made when first needed */
    bool used_flat;
};

struct backend {
    const struct backend_table *device;
    struct backend *inner;
    struct stream *stream;
    bool weak;
    struct region regions[REGIONS_MAX];
    int count;
    void *draw, *loss_scale; /* of the device */
};

struct kernel {
    struct kernel *inner;
    enum op op;
    int64_t samples;
};

#define DRAW_BYTES 4096

static void *device_memory(struct backend *b, size_t bytes)
{
    void *memory = NULL;
    CHECK(b->device->alloc(b->inner, bytes, &memory) == ST_OK);
    return memory;
}

enum status mirror_open(const struct mirror_options *options, struct backend **out)
{
    struct backend *b = calloc(1, sizeof(*b));
    CHECK(b != NULL);
    b->device = options->device;
    b->weak = options->weak;
    const struct backend_options inner = { .ordinal = options->ordinal,
                                           .threads = 1,
                                           .choices = options->stored };
    enum status st = b->device->open(&inner, &b->inner);
    if (st != ST_OK) {
        free(b);
        return st;
    }
    CHECK(b->device->stream_new(b->inner, &b->stream) == ST_OK);
    b->draw = device_memory(b, DRAW_BYTES);
    b->loss_scale = device_memory(b, sizeof(float));
    *out = b;
    return ST_OK;
}

static enum status mirror_open_default(const struct backend_options *options, struct backend **out)
{
    (void)options;
    (void)out;
    return ST_INVALID;
}

static void mirror_close(struct backend *b)
{
    CHECK(b->count == 0);
    b->device->free(b->inner, b->draw);
    b->device->free(b->inner, b->loss_scale);
    b->device->stream_free(b->inner, b->stream);
    b->device->close(b->inner);
    free(b);
}

static enum status mirror_alloc(struct backend *b, size_t bytes, void **out)
{
    CHECK(b->count < REGIONS_MAX);
    struct region *region = &b->regions[b->count++];
    *region = (struct region){ .bytes = bytes };
    region->host = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    CHECK(region->host != NULL);
    memset(region->host, 0, bytes);
    region->tensor = device_memory(b, bytes);
    *out = region->host;
    return ST_OK;
}

static void mirror_free(struct backend *b, void *memory)
{
    for (int i = 0; i < b->count; i++) {
        struct region *region = &b->regions[i];
        if (region->host != memory)
            continue;
        b->device->free(b->inner, region->tensor);
        b->device->free(b->inner, region->flat);
        free(region->host);
        *region = b->regions[--b->count];
        return;
    }
    CHECK(memory == NULL);
}

static struct region *find(struct backend *b, const void *memory)
{
    for (int i = 0; i < b->count; i++) {
        if (b->regions[i].host == memory)
            return &b->regions[i];
    }
    return NULL;
}

static void *as_tensor(struct backend *b, const void *memory)
{
    struct region *region = memory == NULL ? NULL : find(b, memory);
    CHECK(memory == NULL || region != NULL);
    return region == NULL ? NULL : region->tensor;
}

static char *flat_of(const struct backend *b, const struct region *region)
{
    return (char *)region->flat + (b->weak ? 4 : 16);
}

static void *as_flat(struct backend *b, const void *memory)
{
    struct region *region = memory == NULL ? NULL : find(b, memory);
    CHECK(memory == NULL || region != NULL);
    if (region == NULL)
        return NULL;
    if (region->flat == NULL)
        region->flat = device_memory(b, region->bytes + MARGIN);
    region->used_flat = true;
    return flat_of(b, region);
}

static void copy(struct backend *b, void *to, const void *from, size_t bytes)
{
    CHECK(b->device->vector.copy(b->inner, to, from, bytes, b->stream) == ST_OK);
}

static void to_device(struct backend *b)
{
    for (int i = 0; i < b->count; i++) {
        const struct region *region = &b->regions[i];
        copy(b, region->tensor, region->host, region->bytes);
        if (region->used_flat)
            copy(b, flat_of(b, region), region->host, region->bytes);
    }
}

static enum status from_device(struct backend *b, enum status st)
{
    const enum status synced = b->device->stream_sync(b->inner, b->stream);
    for (int i = 0; i < b->count && st == ST_OK && synced == ST_OK; i++) {
        struct region *region = &b->regions[i];
        copy(b, region->host, region->used_flat ? flat_of(b, region) : region->tensor,
             region->bytes);
        region->used_flat = false;
    }
    CHECK(b->device->stream_sync(b->inner, b->stream) == ST_OK || synced != ST_OK);
    st = st != ST_OK ? st : synced;
    if (st != ST_OK && b->device->why != NULL)
        fprintf(stderr, "%s\n", b->device->why(b->inner));
    return st;
}

/* --- ops ------------------------------------------------------------------------------------ */

static struct op_buffers translated(struct backend *b, const struct kernel *kernel,
                                    const struct op_buffers *from)
{
    struct op_buffers to = *from;
    for (int i = 0; i < OP_IN_MAX; i++) {
        to.in[i] = as_tensor(b, from->in[i]);
        to.din[i] = as_tensor(b, from->din[i]);
        to.din_add[i] = as_tensor(b, from->din_add[i]);
    }
    for (int i = 0; i < 2; i++)
        to.dout[i] = as_tensor(b, from->dout[i]);
    to.out = as_tensor(b, from->out);
    to.saved = as_tensor(b, from->saved);
    to.scratch = as_tensor(b, from->scratch);
    to.cache = as_tensor(b, from->cache);
    for (int i = 0; i < OP_PARAM_MAX; i++) {
        to.param[i] = as_flat(b, from->param[i]);
        to.dparam[i] = as_flat(b, from->dparam[i]);
    }
    for (int i = 0; i < OP_STAT_MAX; i++) {
        to.stat[i] = as_flat(b, from->stat[i]);
        to.stat_sum[i] = as_flat(b, from->stat_sum[i]);
    }
    to_device(b);
    if (from->draw != NULL) {
        const size_t words = (size_t)(OP_DRAW_SAMPLES + kernel->samples);
        CHECK(words * sizeof(uint32_t) <= DRAW_BYTES);
        copy(b, b->draw, from->draw, words * sizeof(uint32_t));
        to.draw = b->draw;
    }
    if (from->loss_scale != NULL) {
        copy(b, b->loss_scale, from->loss_scale, sizeof(float));
        to.loss_scale = b->loss_scale;
    }
    return to;
}

typedef enum status op_call(struct backend *backend, struct kernel *kernel,
                            const struct op_buffers *buffers, struct stream *stream);

static enum status run(struct backend *b, struct kernel *kernel, op_call *call,
                       const struct op_buffers *buffers)
{
    const struct op_buffers there = translated(b, kernel, buffers);
    return from_device(b, call(b->inner, kernel->inner, &there, b->stream));
}

static enum status prepare(struct backend *b, const struct op_spec *spec, struct kernel **out,
                           struct kernel_info *out_info)
{
    struct kernel *kernel = calloc(1, sizeof(*kernel));
    CHECK(kernel != NULL);
    kernel->op = spec->op;
    kernel->samples = spec->in[0].dims[0];
    enum status st = b->device->op[spec->op].prepare(b->inner, spec, &kernel->inner, out_info);
    if (st != ST_OK) {
        free(kernel);
        return st;
    }
    *out = kernel;
    return ST_OK;
}

static enum status forward(struct backend *b, struct kernel *kernel,
                           const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    return run(b, kernel, b->device->op[kernel->op].forward, buffers);
}

static enum status backward(struct backend *b, struct kernel *kernel,
                            const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    return run(b, kernel, b->device->op[kernel->op].backward, buffers);
}

static enum status mirror_refresh(struct backend *b, struct kernel *kernel,
                                  const float *const param[OP_PARAM_MAX], void *cache,
                                  struct stream *stream)
{
    (void)stream;
    const float *there[OP_PARAM_MAX];
    for (int i = 0; i < OP_PARAM_MAX; i++)
        there[i] = as_flat(b, param[i]);
    void *cached = as_tensor(b, cache);
    to_device(b);
    return from_device(b, b->device->refresh(b->inner, kernel->inner, there, cached, b->stream));
}

static enum status mirror_reformat(struct backend *b, const struct tensor *from, const void *in,
                                   const struct tensor *to, void *out, struct stream *stream)
{
    (void)stream;
    const void *there = as_tensor(b, in);
    void *result = as_tensor(b, out);
    to_device(b);
    return from_device(b, b->device->reformat(b->inner, from, there, to, result, b->stream));
}

static void mirror_kernel_free(struct backend *b, struct kernel *kernel)
{
    if (kernel == NULL)
        return;
    b->device->kernel_free(b->inner, kernel->inner);
    free(kernel);
}

static enum status mirror_pins(struct backend *b, struct buf *out)
{
    return b->device->pins(b->inner, out);
}

#define MIRROR_ROW(upper, lower, in, params, stats) [OP_##upper] = { prepare, forward, backward },

const struct backend_table *mirror_table(void)
{
    static const struct backend_table table = {
        .name = "mirror",
        .host_memory = true,
        .open = mirror_open_default,
        .close = mirror_close,
        .alloc = mirror_alloc,
        .free = mirror_free,
        .op = { OP_LIST(MIRROR_ROW) },
        .refresh = mirror_refresh,
        .reformat = mirror_reformat,
        .kernel_free = mirror_kernel_free,
        .pins = mirror_pins,
    };
    return &table;
}
