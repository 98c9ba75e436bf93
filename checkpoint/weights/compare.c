#include "checkpoint/weights/compare.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/weights/floats.h"
#include "checkpoint/weights/values.h"
#include "common/check.h"

static const struct ckpt_tensor *find_tensor(const struct ckpt_values *side, const char *name)
{
    for (uint32_t i = 0; i < side->tensor_count; i++) {
        if (strcmp(side->tensors[i].name, name) == 0)
            return &side->tensors[i];
    }
    return NULL;
}

static enum ckpt_dtype dtype_of(const struct ckpt_values *side, const struct ckpt_tensor *tensor)
{
    return side->buffers[tensor->buffer].dtype;
}

/* ---- what no tensor has ---- */

static int by_place(const void *x, const void *y)
{
    const struct ckpt_tensor *a = x, *b = y;
    if (a->buffer != b->buffer)
        return (a->buffer > b->buffer) - (a->buffer < b->buffer);
    return (a->offset > b->offset) - (a->offset < b->offset);
}

/* A part of a buffer as a tensor: by the buffer's name, and where it begins in it. */
static void name_rest(const struct ckpt_buffer *buffer, uint32_t number, uint64_t first,
                      uint64_t end, struct ckpt_tensor *out)
{
    *out = (struct ckpt_tensor){
        .buffer = number, .offset = first, .ndim = 1, .dims = { end - first }
    };
    if (first == 0 && end == buffer->count) {
        (void)snprintf(out->name, sizeof(out->name), "(%.32s)", buffer->name);
    } else {
        (void)snprintf(out->name, sizeof(out->name), "(%.32s from %" PRIu64 ")", buffer->name,
                       first);
    }
}

/* Adds to the list, which has tensors by place and room for twice as many and the buffers. */
static uint32_t add_rests(const struct ckpt_buffer *buffers, uint32_t buffer_count,
                          struct ckpt_tensor *list, uint32_t tensors)
{
    uint32_t count = tensors, next = 0;
    for (uint32_t i = 0; i < buffer_count; i++) {
        uint64_t first = 0;
        for (; next < tensors && list[next].buffer == i; next++) {
            uint64_t end = list[next].offset + ckpt_tensor_elements(&list[next]);
            if (list[next].offset > first)
                name_rest(&buffers[i], i, first, list[next].offset, &list[count++]);
            first = end > first ? end : first;
        }
        if (first < buffers[i].count)
            name_rest(&buffers[i], i, first, buffers[i].count, &list[count++]);
    }
    return count;
}

/* The side's tensors, in their order, then what no tensor has. *out: free(), also after an error */
static enum status list_side(struct ckpt_values *side, struct ckpt_tensor **out)
{
    const struct ckpt_buffer *buffers = NULL;
    const uint32_t tensors = side->tensor_count;
    const uint32_t buffer_count = ckpt_reader_buffers(side->reader, &buffers);
    struct ckpt_tensor *list = calloc(2 * (size_t)tensors + buffer_count + 1, sizeof(*list));
    *out = list;
    if (list == NULL)
        return ST_NO_MEMORY;
    if (tensors > 0) {
        memcpy(list, side->tensors, tensors * sizeof(*list));
        qsort(list, tensors, sizeof(*list), by_place);
    }
    side->tensor_count = add_rests(buffers, buffer_count, list, tensors);
    if (tensors > 0)
        memcpy(list, side->tensors, tensors * sizeof(*list));
    side->tensors = list;
    return ST_OK;
}

/* ---- one part ---- */

static uint64_t differing_bits(const uint8_t *a, const uint8_t *b, uint64_t width)
{
    uint64_t bits = 0;
    for (uint64_t i = 0; i < width; i++)
        bits += (uint64_t)__builtin_popcount((unsigned)(a[i] ^ b[i]));
    return bits;
}

static double integer_value(enum ckpt_dtype dtype, const void *part, size_t i)
{
    switch (dtype) {
    case CKPT_I32:
        return (double)((const int32_t *)part)[i];
    case CKPT_I64:
        return (double)((const int64_t *)part)[i];
    case CKPT_U8:
        return (double)((const uint8_t *)part)[i];
    case CKPT_F32:
    case CKPT_BF16:
    case CKPT_F16:
        break;
    }
    CHECK(false); /* the caller asks for floats elsewhere */
    return 0;
}

static double value_at(const struct ckpt_values *side, enum ckpt_dtype dtype, size_t i)
{
    return floats_known(dtype) ? (double)side->wide[i] : integer_value(dtype, side->stored, i);
}

struct difference_sums {
    double difference, a; /* of squares */
};

static void add_differences(struct compare_tensor *out, const struct ckpt_values *a,
                            const struct ckpt_values *b, size_t count, struct difference_sums *sums)
{
    bool same_type = out->dtype_a == out->dtype_b;
    uint64_t width = ckpt_dtype_size(out->dtype_a);
    const uint8_t *bytes_a = a->stored, *bytes_b = b->stored;
    for (size_t i = 0; i < count; i++) {
        double x = value_at(a, out->dtype_a, i);
        if (isfinite(x))
            sums->a += x * x;
        if (same_type && memcmp(bytes_a + i * width, bytes_b + i * width, width) == 0)
            continue;
        double y = value_at(b, out->dtype_b, i), distance = fabs(x - y);
        if (!same_type && x == y)
            continue;
        out->differing++;
        if (same_type)
            out->bits += differing_bits(bytes_a + i * width, bytes_b + i * width, width);
        if (!isfinite(distance)) {
            out->not_finite++;
            continue;
        }
        sums->difference += distance * distance;
        out->max_abs = distance > out->max_abs ? distance : out->max_abs;
    }
}

/* ---- one tensor ---- */

struct comparison {
    struct ckpt_values a, b;
    void (*progress)(void *arg, uint64_t bytes);
    void *arg;
    uint64_t bytes;
};

static enum status compare_values(struct comparison *c, const struct ckpt_tensor *x,
                                  const struct ckpt_tensor *y, struct compare_tensor *out)
{
    struct difference_sums sums = { 0 };
    struct ckpt_values_part part = { 0 };
    while (ckpt_values_next(&c->a, x, &part)) {
        enum status st = ckpt_values_read(&c->a, x, &part);
        if (st == ST_OK)
            st = ckpt_values_read(&c->b, y, &part);
        if (st != ST_OK)
            return st;
        if (floats_known(out->dtype_a)) {
            ckpt_values_widen(&c->a, x, part.count);
            ckpt_values_widen(&c->b, y, part.count);
        }
        add_differences(out, &c->a, &c->b, part.count, &sums);
        c->bytes += part.count * ckpt_dtype_size(out->dtype_a);
        if (c->progress != NULL)
            c->progress(c->arg, c->bytes);
    }
    out->norm_difference = sqrt(sums.difference);
    out->norm_a = sqrt(sums.a);
    bool differs = out->differing > 0 || out->dtype_a != out->dtype_b;
    out->kind = differs ? COMPARE_DIFFERS : COMPARE_EQUAL;
    return ST_OK;
}

static void describe_tensor(const struct ckpt_tensor *tensor, struct compare_tensor *out)
{
    memcpy(out->name, tensor->name, sizeof(out->name));
    out->ndim = tensor->ndim;
    memcpy(out->dims, tensor->dims, sizeof(out->dims));
    out->elements = ckpt_tensor_elements(tensor);
}

static enum status compare_one(struct comparison *c, const struct ckpt_tensor *x,
                               struct compare_tensor *out)
{
    const struct ckpt_tensor *y = find_tensor(&c->b, x->name);
    describe_tensor(x, out);
    out->dtype_a = dtype_of(&c->a, x);
    out->kind = COMPARE_ONLY_A;
    if (y == NULL)
        return ST_OK;
    out->dtype_b = dtype_of(&c->b, y);
    out->kind = COMPARE_SHAPE;
    bool same_shape =
        x->ndim == y->ndim && memcmp(x->dims, y->dims, (size_t)x->ndim * sizeof(x->dims[0])) == 0;
    bool comparable =
        out->dtype_a == out->dtype_b || (floats_known(out->dtype_a) && floats_known(out->dtype_b));
    return same_shape && comparable ? compare_values(c, x, y, out) : ST_OK;
}

static enum status compare_all(struct comparison *c, struct compare_tensor *list,
                               uint32_t *out_count)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < c->a.tensor_count; i++) {
        enum status st = compare_one(c, &c->a.tensors[i], &list[count++]);
        if (st != ST_OK)
            return st;
    }
    for (uint32_t i = 0; i < c->b.tensor_count; i++) {
        if (find_tensor(&c->a, c->b.tensors[i].name) != NULL)
            continue;
        describe_tensor(&c->b.tensors[i], &list[count]);
        list[count].dtype_b = dtype_of(&c->b, &c->b.tensors[i]);
        list[count++].kind = COMPARE_ONLY_B;
    }
    *out_count = count;
    return ST_OK;
}

double compare_relative(const struct compare_tensor *tensor)
{
    if (tensor->norm_difference == 0)
        return 0;
    return tensor->norm_a == 0 ? (double)INFINITY : tensor->norm_difference / tensor->norm_a;
}

enum status compare_tensors(struct ckpt_reader *a, struct ckpt_reader *b,
                            void (*progress)(void *arg, uint64_t bytes), void *arg,
                            struct compare_tensor **out, uint32_t *out_count)
{
    struct comparison c = { .progress = progress, .arg = arg };
    enum status st = ckpt_values_open(&c.a, a);
    if (st == ST_OK)
        st = ckpt_values_open(&c.b, b);
    struct ckpt_tensor *all_a = NULL, *all_b = NULL;
    struct compare_tensor *list = NULL;
    if (st == ST_OK)
        st = list_side(&c.a, &all_a);
    if (st == ST_OK)
        st = list_side(&c.b, &all_b);
    if (st == ST_OK) {
        list = calloc((size_t)c.a.tensor_count + c.b.tensor_count + 1, sizeof(*list));
        st = list == NULL ? ST_NO_MEMORY : compare_all(&c, list, out_count);
    }
    ckpt_values_release(&c.a);
    ckpt_values_release(&c.b);
    free(all_a);
    free(all_b);
    if (st != ST_OK) {
        free(list);
        return st;
    }
    *out = list;
    return ST_OK;
}
