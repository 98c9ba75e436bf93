#include "bench/gpu_check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/kernel/halves.h"
#include "tests/kernel/numbers.h"

#define CHUNK 65536 /* elements that are filled at once */

static void must(enum status st, const char *what)
{
    if (st == ST_OK)
        return;
    (void)fprintf(stderr, "gpu: %s: %s\n", what, status_string(st));
    exit(1);
}

void gpu_fill(const struct gpu_check *check, void *memory, int64_t count, enum dtype dtype,
              unsigned seed)
{
    const size_t size = dtype_size(dtype);
    static float chunk[CHUNK];
    for (int64_t first = 0; first < count; first += CHUNK) {
        const int64_t left = count - first < CHUNK ? count - first : CHUNK;
        for (int64_t i = 0; i < left; i++)
            store_float(dtype, chunk, i, number_at(seed, first + i));
        must(check->table->vector.copy(check->backend, (char *)memory + (size_t)first * size, chunk,
                                       (size_t)left * size, check->stream),
             "copy");
        must(check->table->stream_sync(check->backend, check->stream), "wait");
    }
}

void gpu_expect(const struct gpu_check *check, const char *what, const void *memory,
                enum dtype dtype, int64_t at, double wanted, double slack)
{
    float word = 0;
    const size_t size = dtype_size(dtype);
    must(check->table->vector.copy(check->backend, &word, (const char *)memory + (size_t)at * size,
                                   size, check->stream),
         "copy");
    must(check->table->stream_sync(check->backend, check->stream), "wait");
    const double got = (double)load_as_float(dtype, &word, 0);
    const double last = dtype == DTYPE_F32 ? 0x1p-22 : 0x1p-8;
    if (fabs(got - wanted) <= last * fabs(wanted) + slack)
        return;
    (void)fprintf(stderr, "gpu: %s: element %lld is %.9g, and %.9g by float64\n", what,
                  (long long)at, got, wanted);
    exit(1);
}

/* Column `depth` of q (0), k (1) or v (2) of a row. */
static double qkv_of(const struct attention_row *at, int part, int64_t row, int64_t depth)
{
    const int64_t column = part * at->width + at->head * at->depth + depth;
    return (double)number_at(at->qkv_seed, at->qkv_first + row * 3 * at->width + column);
}

static double dout_of(const struct attention_row *at, int64_t depth)
{
    return (double)number_at(at->dout_seed,
                             at->dout_first + at->row * at->width + at->head * at->depth + depth);
}

/* The row's weights of all keys that it sees. */
static void softmax(const struct attention_row *at, double *weight)
{
    const double scale = 1 / sqrt((double)at->depth);
    double greatest = -INFINITY, sum = 0;
    for (int64_t j = 0; j <= at->row; j++) {
        weight[j] = 0;
        for (int64_t d = 0; d < at->depth; d++)
            weight[j] += scale * qkv_of(at, 0, at->row, d) * qkv_of(at, 1, j, d);
        greatest = fmax(greatest, weight[j]);
    }
    for (int64_t j = 0; j <= at->row; j++) {
        weight[j] = exp(weight[j] - greatest);
        sum += weight[j];
    }
    for (int64_t j = 0; j <= at->row; j++)
        weight[j] /= sum;
}

/* Returns the gradient of a key's weight: the product of dout and the key's value. */
static double dweight_of(const struct attention_row *at, int64_t key)
{
    double sum = 0;
    for (int64_t d = 0; d < at->depth; d++)
        sum += dout_of(at, d) * qkv_of(at, 2, key, d);
    return sum;
}

void attention_row_reference(const struct attention_row *at, double *out, double *dq, double *dk,
                             double *dv)
{
    double *weight = malloc((size_t)at->length * sizeof(*weight));
    if (weight == NULL)
        must(ST_NO_MEMORY, "attention");
    softmax(at, weight);
    const double scale = 1 / sqrt((double)at->depth);
    double mean = 0;
    for (int64_t j = 0; j <= at->row; j++)
        mean += weight[j] * dweight_of(at, j);
    for (int64_t d = 0; d < at->depth; d++)
        out[d] = dq[d] = 0;
    for (int64_t j = 0; j <= at->row; j++) {
        const double dscore = weight[j] * (dweight_of(at, j) - mean);
        for (int64_t d = 0; d < at->depth; d++) {
            out[d] += weight[j] * qkv_of(at, 2, j, d);
            dq[d] += scale * dscore * qkv_of(at, 1, j, d);
            dk[d] = scale * dscore * qkv_of(at, 0, at->row, d); /* j == row comes last */
            dv[d] = weight[j] * dout_of(at, d);
        }
    }
    free(weight);
}
