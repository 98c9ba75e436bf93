/*
 * LAMB, tensor by tensor (You et al., arXiv 1904.00962, algorithm 2):
 *
 *   u = m̂ / (√v̂ + ε) + weight_decay·θ
 *   θ = θ - lr·(‖θ‖ / ‖u‖)·u           1 in place of the ratio where a norm is 0
 *
 * The directions u overwrite the gradients. Where ranks own parts, a tensor may be cut: its norms
 * are sums over blocks that all ranks exchange.
 */
#include "trainer/update/optimizer_internal.h"

static enum status find_directions(struct optimizer *optimizer, const struct optimizer_call *call,
                                   struct stream *stream)
{
    const struct optimizer_options *options = &optimizer->options;
    enum status st = ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < optimizer->part_count; i++) {
        const struct optimizer_part *part = &optimizer->parts[i];
        const struct adamw_args args = { .beta1 = options->beta1,
                                         .beta2 = options->beta2,
                                         .eps = options->eps,
                                         .weight_decay = options->weight_decay,
                                         .grad_scale = call->scale,
                                         .decay = optimizer_decay(optimizer, part),
                                         .t = call->step->update };
        st = optimizer->table->vector.lamb(optimizer->backend, optimizer->params + part->first,
                                           optimizer_moment(optimizer, 0, part),
                                           optimizer_moment(optimizer, 1, part),
                                           call->sum + part->first, part->count, &args, stream);
    }
    return st;
}

/* Moves the elements of a tensor that lie in a part. */
static enum status move_tensor(struct optimizer *optimizer, const struct optimizer_part *part,
                               const struct tape_tensor *tensor, double lr, const float *directions,
                               struct stream *stream)
{
    const size_t part_end = part->first + part->count, tensor_end = tensor->offset + tensor->count;
    const size_t first = tensor->offset > part->first ? tensor->offset : part->first;
    const size_t end = tensor_end < part_end ? tensor_end : part_end;
    const struct sgd_args args = { .lr = (float)lr, .grad_scale = 1 };
    if (first >= end)
        return ST_OK;
    return optimizer->table->vector.sgd(optimizer->backend, optimizer->params + first, NULL,
                                        directions + first, end - first, &args, stream);
}

enum status optimizer_lamb(struct optimizer *optimizer, const struct optimizer_call *call,
                           struct stream *stream)
{
    const struct tape *tape = optimizer->tape;
    const struct optimizer_peers *peers = call->step->peers;
    double *weights = optimizer->tensor_norms, *directions = weights + tape->param_count;
    enum status st = optimizer_tensor_norms(optimizer, optimizer->params, peers, stream, weights);
    if (st == ST_OK)
        st = find_directions(optimizer, call, stream);
    if (st == ST_OK)
        st = optimizer_tensor_norms(optimizer, call->sum, peers, stream, directions);
    for (int i = 0; st == ST_OK && i < tape->param_count; i++) {
        const bool scaled = weights[i] > 0 && directions[i] > 0;
        const double lr = call->step->lr * (scaled ? weights[i] / directions[i] : 1);
        for (uint32_t p = 0; st == ST_OK && p < optimizer->part_count; p++) {
            st = move_tensor(optimizer, &optimizer->parts[p], &tape->params[i], lr, call->sum,
                             stream);
        }
    }
    return st;
}
