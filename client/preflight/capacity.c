#include "client/preflight/capacity.h"

uint64_t capacity_count(const struct jobspec *job)
{
    const bool best = job->checkpoint.keep_best.metric != JOBSPEC_METRIC_NONE;
    return (uint64_t)job->checkpoint.keep_last +
           (best ? (uint64_t)job->checkpoint.keep_best.n : 0) + 1;
}

void capacity_warn(const struct client *client, const struct jobspec *job, uint64_t free_bytes)
{
    const uint64_t one = jobspec_state_bytes(job), count = capacity_count(job);
    if (one == 0 || one > UINT64_MAX / count || one * count <= free_bytes)
        return;
    client_note(client,
                "warning: %s has %.1f MB free, but %llu checkpoints of about %.1f MB each are %.1f "
                "MB\n  (those that are kept and one that is written): make room there, or set "
                "checkpoint.keep.last lower\n",
                job->checkpoint.store, (double)free_bytes / 1e6, (unsigned long long)count,
                (double)one / 1e6, (double)(one * count) / 1e6);
}
