/* Norms of vectors that ranks own parts of: sums of squares by blocks. */
#include <math.h>

#include "common/tree_sum.h"
#include "trainer/update/optimizer_internal.h"

/* Computes the sums of squares of this rank's blocks, packed. */
static enum status square_parts(struct optimizer *optimizer, const float *sum,
                                struct stream *stream, size_t *out_count)
{
    const struct vector_table *vector = &optimizer->table->vector;
    enum status st = ST_OK;
    size_t at = 0;
    for (uint32_t i = 0; st == ST_OK && i < optimizer->part_count; i++) {
        const struct optimizer_part *part = &optimizer->parts[i];
        const size_t blocks = part->block_end - part->block_begin;
        st = vector->square_sums(optimizer->backend, optimizer->squares + at, sum,
                                 optimizer->norm_begin + part->block_begin, blocks, stream);
        at += blocks;
    }
    *out_count = at;
    return st;
}

enum status optimizer_fetch_squares(struct optimizer *optimizer, const float *x,
                                    struct stream *stream)
{
    const struct vector_table *vector = &optimizer->table->vector;
    struct backend *backend = optimizer->backend;
    size_t count = 0;
    enum status st = square_parts(optimizer, x, stream, &count);
    if (st == ST_OK && count > 0) {
        st = vector->copy(backend, optimizer->squares_read + optimizer->own_packed,
                          optimizer->squares, count * sizeof(double), stream);
    }
    return st == ST_OK ? optimizer->table->stream_sync(backend, stream) : st;
}

void optimizer_order_squares(const struct optimizer *optimizer)
{
    for (size_t i = 0; i < optimizer->norm_count; i++)
        optimizer->in_order[optimizer->norm_packed[i]] = optimizer->squares_read[i];
}

enum status optimizer_tensor_norms(struct optimizer *optimizer, const float *x,
                                   const struct optimizer_peers *peers, struct stream *stream,
                                   double *out)
{
    const struct tape *tape = optimizer->tape;
    enum status st = optimizer_fetch_squares(optimizer, x, stream);
    if (st == ST_OK && peers != NULL)
        st = peers->exchange_squares(peers->arg, optimizer->squares_read, optimizer->scalars);
    if (st != ST_OK)
        return st;
    optimizer_order_squares(optimizer);
    double *block = optimizer->in_order;
    for (int i = 0; i < tape->param_count; i++) {
        const size_t blocks = optimizer_blocks(&tape->params[i]);
        out[i] = sqrt(tree_sum(block, blocks));
        block += blocks;
    }
    return ST_OK;
}
