/* The optimizers that update element by element. */
#include "common/check.h"
#include "trainer/update/optimizer_internal.h"

const struct copy_map *optimizer_copies(const struct optimizer *optimizer)
{
    const enum jobspec_optimizer kind = optimizer->options.kind;
    if (optimizer->has_peers || optimizer->copies.count == 0 || kind == JOBSPEC_OPTIMIZER_LAMB ||
        kind == JOBSPEC_OPTIMIZER_MUON)
        return NULL;
    CHECK(optimizer->part_count == 1 && optimizer->parts[0].first == 0); /* as copies count */
    return &optimizer->copies;
}

enum status optimizer_sgd(struct optimizer *optimizer, const struct optimizer_part *part,
                          const struct optimizer_call *call, struct stream *stream)
{
    const struct optimizer_options *options = &optimizer->options;
    struct sgd_args args = { .lr = (float)call->step->lr,
                             .momentum = options->momentum,
                             .weight_decay = options->weight_decay,
                             .grad_scale = call->scale,
                             .nesterov = options->nesterov,
                             .decay = optimizer_decay(optimizer, part),
                             .copies = optimizer_copies(optimizer),
                             .first = call->step->update == 1 };
    float *momentum = options->momentum != 0 ? optimizer_moment(optimizer, 0, part) : NULL;
    return optimizer->table->vector.sgd(optimizer->backend, optimizer->params + part->first,
                                        momentum, call->sum + part->first, part->count, &args,
                                        stream);
}

enum status optimizer_adamw(struct optimizer *optimizer, const struct optimizer_part *part,
                            const struct optimizer_call *call, struct stream *stream)
{
    const struct optimizer_options *options = &optimizer->options;
    struct adamw_args args = { .lr = (float)call->step->lr,
                               .beta1 = options->beta1,
                               .beta2 = options->beta2,
                               .eps = options->eps,
                               .weight_decay = options->weight_decay,
                               .grad_scale = call->scale,
                               .decay = optimizer_decay(optimizer, part),
                               .copies = optimizer_copies(optimizer),
                               .t = call->step->update };
    return optimizer->table->vector.adamw(
        optimizer->backend, optimizer->params + part->first, optimizer_moment(optimizer, 0, part),
        optimizer_moment(optimizer, 1, part), call->sum + part->first, part->count, &args, stream);
}

enum status optimizer_lion(struct optimizer *optimizer, const struct optimizer_part *part,
                           const struct optimizer_call *call, struct stream *stream)
{
    const struct optimizer_options *options = &optimizer->options;
    struct lion_args args = { .lr = (float)call->step->lr,
                              .beta1 = options->beta1,
                              .beta2 = options->beta2,
                              .weight_decay = options->weight_decay,
                              .grad_scale = call->scale,
                              .decay = optimizer_decay(optimizer, part),
                              .copies = optimizer_copies(optimizer) };
    return optimizer->table->vector.lion(optimizer->backend, optimizer->params + part->first,
                                         optimizer_moment(optimizer, 0, part),
                                         call->sum + part->first, part->count, &args, stream);
}
