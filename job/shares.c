/* What workers share: the lanes, and the training state. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "job/job.h"

/* Complete subtrees of the tree over lanes that [first, end) falls into. A node whose lanes beyond
 * `lanes` are absent counts as complete. */
static uint32_t subtrees(int64_t first, int64_t end, int64_t lanes)
{
    uint32_t count = 0;
    while (first < end) {
        int64_t size = 1;
        while (first % (2 * size) == 0 &&
               (first + 2 * size <= end || (end == lanes && first + size < end)))
            size *= 2;
        first += size;
        count++;
    }
    return count;
}

/*
 * Evenness first: `more` workers carry base + 1 lanes, the others base. Which ones is chosen so
 * that the shares fall into the fewest subtrees: best[w][m] is that number for the workers from w
 * on when m of the larger shares are given away already.
 */
enum status job_shares(int64_t lanes, int64_t count, uint32_t *out)
{
    if (count < 1 || count > LIMIT_RANKS || lanes < count || lanes > LIMIT_LANES)
        return ST_INVALID;
    int64_t base = lanes / count;
    int64_t more = lanes % count;
    size_t width = (size_t)more + 2;
    uint32_t *best = calloc((size_t)(count + 1) * width, sizeof(*best));
    bool *larger = calloc((size_t)(count + 1) * width, sizeof(*larger));
    if (best == NULL || larger == NULL) {
        free(best);
        free(larger);
        return ST_NO_MEMORY;
    }
    for (int64_t w = count - 1; w >= 0; w--) {
        for (int64_t m = 0; m <= more && m <= w; m++) {
            size_t at = (size_t)w * width + (size_t)m;
            size_t next = (size_t)(w + 1) * width + (size_t)m;
            int64_t first = w * base + m;
            uint32_t with = UINT32_MAX;
            uint32_t without = UINT32_MAX;
            if (m < more)
                with = subtrees(first, first + base + 1, lanes) + best[next + 1];
            if (count - w - 1 >= more - m)
                without = subtrees(first, first + base, lanes) + best[next];
            larger[at] = with <= without && with != UINT32_MAX;
            best[at] = larger[at] ? with : without;
        }
    }
    int64_t given = 0;
    for (int64_t w = 0; w < count; w++) {
        bool large = larger[(size_t)w * width + (size_t)given];
        out[w] = (uint32_t)(base + large);
        given += large;
    }
    free(best);
    free(larger);
    return ST_OK;
}

bool job_shares_even(const struct job *job)
{
    const int64_t count = job->workers.count;
    uint32_t even[LIMIT_RANKS];
    return job_shares(job->train.lanes, count, even) == ST_OK &&
           memcmp(even, job->workers.shares, (size_t)count * sizeof(*even)) == 0;
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
