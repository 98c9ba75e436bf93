#include "client/preflight/capacity.h"

/* Parameters of a model whose last layer has inputs for each class; of a network on images of
 * other sizes a few more or less. */
static uint64_t parameters_of(const struct jobspec_model *model)
{
    const uint64_t classes = (uint64_t)model->classes, hidden = (uint64_t)model->hidden;
    switch (model->arch) {
    case JOBSPEC_ARCH_MLP:
        return (28 * 28 + 1) * hidden + (hidden + 1) * classes;
    case JOBSPEC_ARCH_LENET:
        return 60856 + 85 * classes;
    case JOBSPEC_ARCH_RESNET18:
        return 11176512 + 513 * classes;
    case JOBSPEC_ARCH_RESNET50:
        return 23508032 + 2049 * classes;
    case JOBSPEC_ARCH_RESNET152:
        return 58143808 + 2049 * classes;
    case JOBSPEC_ARCH_NONE:
    case JOBSPEC_ARCH_GPT2:
        break;
    }
    return 0;
}

uint64_t room_of_checkpoint(const struct jobspec *job)
{
    const uint64_t known = jobspec_state_bytes(job);
    const bool adamw = job->train.optimizer.name == JOBSPEC_OPTIMIZER_ADAMW;
    const uint64_t moments = adamw ? 2 : job->train.optimizer.momentum != 0;
    return known != 0 ? known : parameters_of(&job->model) * (1 + moments) * sizeof(float);
}

uint64_t room_count(const struct jobspec *job)
{
    const bool best = job->checkpoint.keep_best.metric != JOBSPEC_METRIC_NONE;
    return (uint64_t)job->checkpoint.keep_last +
           (best ? (uint64_t)job->checkpoint.keep_best.n : 0) + 1;
}

void room_warn(const struct client *client, const struct jobspec *job, uint64_t free_bytes)
{
    const uint64_t one = room_of_checkpoint(job), count = room_count(job);
    if (one == 0 || one > UINT64_MAX / count || one * count <= free_bytes)
        return;
    client_note(client,
                "warning: %s has %.1f MB free, but %llu checkpoints of about %.1f MB each are %.1f "
                "MB\n  (those that are kept and one that is written): make room there, or set "
                "checkpoint.keep.last lower\n",
                job->checkpoint.store, (double)free_bytes / 1e6, (unsigned long long)count,
                (double)one / 1e6, (double)(one * count) / 1e6);
}
