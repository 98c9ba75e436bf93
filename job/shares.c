/* What workers share: the lanes, and the training state. */
#include <stdbool.h>
#include <string.h>

#include "job/job.h"

enum status job_shares(int64_t lanes, int64_t count, uint32_t *out)
{
    if (count < 1 || count > LIMIT_RANKS || lanes < count || lanes > LIMIT_LANES)
        return ST_INVALID;
    for (int64_t w = 0; w < count; w++)
        out[w] = (uint32_t)(lanes / count + (w < lanes % count));
    return ST_OK;
}

bool job_shares_even(const struct job *job)
{
    const uint32_t *shares = job->workers.shares;
    uint32_t least = UINT32_MAX, most = 0;
    for (int64_t w = 0; w < job->workers.count; w++) {
        least = shares[w] < least ? shares[w] : least;
        most = shares[w] > most ? shares[w] : most;
    }
    return most <= least || most - least == 1;
}

enum status job_shares_of(const struct job *job, int64_t count, uint32_t *out)
{
    if (count != job->workers.count)
        return job_shares(job->train.lanes, count, out);
    memcpy(out, job->workers.shares, (size_t)count * sizeof(*out));
    return ST_OK;
}

uint64_t job_state_bytes(const struct job *job)
{
    const struct job_model *model = &job->model;
    if (!job_is_text(model))
        return 0;
    /* A layer: two norms of a scale and a shift, four matrices of 12 w² with biases of 9 w. */
    const uint64_t w = (uint64_t)model->width;
    const uint64_t layers = (uint64_t)model->layers * (12 * w * w + 13 * w);
    const uint64_t embedding = ((uint64_t)model->vocab + (uint64_t)model->context) * w;
    const bool adamw = job->train.optimizer.name == JOB_OPTIMIZER_ADAMW;
    const uint64_t moments = adamw ? 2 : job->train.optimizer.momentum != 0;
    return (layers + embedding + 2 * w) * (1 + moments) * sizeof(float);
}
