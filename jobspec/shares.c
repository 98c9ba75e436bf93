/* How workers share the model's stages, the lanes, and the training state. */
#include <stdbool.h>
#include <string.h>

#include "common/layout/widths.h"
#include "jobspec/jobspec.h"

enum status jobspec_shares(int64_t lanes, int64_t count, uint32_t *out)
{
    if (count < 1 || count > LIMIT_RANKS || lanes < count || lanes > LIMIT_LANES)
        return ST_INVALID;
    for (int64_t w = 0; w < count; w++)
        out[w] = (uint32_t)(lanes / count + (w < lanes % count));
    return ST_OK;
}

static bool are_even(const uint32_t *shares, int64_t count)
{
    uint32_t least = UINT32_MAX, most = 0;
    for (int64_t w = 0; w < count; w++) {
        least = shares[w] < least ? shares[w] : least;
        most = shares[w] > most ? shares[w] : most;
    }
    return most <= least || most - least == 1;
}

/* ---- layouts ---- */

/* Returns what is spread over workers. A command isn't: each worker counts as a lane of its own,
 * and carries those of the workers that are missing. */
static int64_t lanes_of(const struct jobspec *job)
{
    return jobspec_is_command(job) ? job->workers.count : job->train.lanes;
}

static uint32_t stages_of(const struct jobspec *job)
{
    return jobspec_is_command(job) ? 1 : job->parallel.pipeline.stages;
}

/* Returns the workers of a stage when the job has all of its workers. */
static int64_t requested_workers(const struct jobspec *job, uint32_t stage)
{
    return job->parallel.pipeline.stages > 1 ? job->parallel.stages[stage] : job->workers.count;
}

bool jobspec_shares_even(const struct jobspec *job)
{
    const uint32_t *shares = job->workers.shares;
    bool even = true;
    for (uint32_t s = 0; s < job->parallel.pipeline.stages; s++) {
        const int64_t workers = requested_workers(job, s);
        even = even && are_even(shares, workers);
        shares += workers;
    }
    return even;
}

/* Chooses where the stages begin. With fewer stages than in the file, some of its cuts are taken,
 * spread over all of the model. */
static void choose_cuts(const struct jobspec *job, struct jobspec_layout *out)
{
    const struct jobspec_cuts *cuts = &job->parallel.pipeline;
    for (uint32_t s = 0; s < out->stage_count; s++)
        out->first_node[s] = cuts->first_node[s * cuts->stages / out->stage_count];
}

enum status jobspec_layout_with(const struct jobspec *job, const uint32_t *workers,
                                uint32_t stage_count, struct jobspec_layout *out)
{
    const uint32_t stages = stages_of(job);
    const uint32_t *file = job->workers.shares;
    uint32_t used = 0;
    if (stage_count == 0 || stage_count > stages)
        return ST_INVALID;
    *out = (struct jobspec_layout){ .stage_count = stage_count };
    for (uint32_t s = 0; s < stage_count; s++) {
        const int64_t requested = requested_workers(job, s);
        if (workers[s] == 0 || workers[s] > LIMIT_RANKS - used)
            return ST_INVALID;
        out->workers[s] = workers[s];
        if (stage_count == stages && workers[s] == requested && !jobspec_is_command(job)) {
            memcpy(out->shares + used, file, workers[s] * sizeof(*file));
        } else if (jobspec_shares(lanes_of(job), workers[s], out->shares + used) != ST_OK) {
            return ST_INVALID;
        }
        used += workers[s];
        file += requested;
    }
    choose_cuts(job, out);
    return ST_OK;
}

int64_t jobspec_workers_most(const struct jobspec *job)
{
    const int64_t most = lanes_of(job) * stages_of(job);
    return most < LIMIT_RANKS ? most : LIMIT_RANKS;
}

enum status jobspec_layout_of(const struct jobspec *job, int64_t workers,
                              struct jobspec_layout *out)
{
    const uint32_t count = (uint32_t)job->workers.count, stages = stages_of(job);
    const struct layout_request request = { .stages = stages,
                                            .lanes = (uint32_t)lanes_of(job),
                                            .workers = stages > 1 ? job->parallel.stages : &count };
    uint32_t widths[LIMIT_STAGES];
    if (workers < 1 || workers > jobspec_workers_most(job))
        return ST_INVALID;
    layout_request_widths(&request, (uint32_t)workers, NULL, widths);
    return jobspec_layout_with(job, widths, layout_request_stages(&request, (uint32_t)workers),
                               out);
}

int jobspec_moments(enum jobspec_optimizer name, double momentum)
{
    switch (name) {
    case JOBSPEC_OPTIMIZER_SGD:
        return momentum != 0;
    case JOBSPEC_OPTIMIZER_LION:
        return 1;
    case JOBSPEC_OPTIMIZER_ADAMW:
    case JOBSPEC_OPTIMIZER_LAMB:
    case JOBSPEC_OPTIMIZER_MUON: /* matrices use the first alone */
        return 2;
    case JOBSPEC_OPTIMIZER_NONE:
        break;
    }
    return 0;
}

/* A layer: two norms of a scale and a shift, four matrices of 12 w² with biases of 9 w. Around the
 * layers: the tables of tokens and of positions, and a norm. */
static uint64_t gpt2_parameters(const struct jobspec_model *model)
{
    const uint64_t w = (uint64_t)model->width;
    const uint64_t layers = (uint64_t)model->layers * (12 * w * w + 13 * w);
    return layers + ((uint64_t)model->vocab + (uint64_t)model->context) * w + 2 * w;
}

bool jobspec_has_large_patches(const struct jobspec_model *model)
{
    return model->arch == JOBSPEC_ARCH_VIT && model->patch >= 8;
}

/* Layers like GPT-2's. Before them the patches' matrix, the class token and the positions, behind
 * them a norm and the classes. */
static uint64_t vit_parameters(const struct jobspec_model *model)
{
    const uint64_t w = (uint64_t)model->width, patch = (uint64_t)model->patch;
    const bool large = jobspec_has_large_patches(model);
    const uint64_t along = (large ? 224 : 28) / patch, pixels = (large ? 3 : 1) * patch * patch;
    const uint64_t layers = (uint64_t)model->layers * (12 * w * w + 13 * w);
    const uint64_t tokens = 1 + along * along;
    return layers + (pixels + 1) * w + w + tokens * w + 2 * w + (w + 1) * (uint64_t)model->classes;
}

/* A layer: two scales, the matrices of q and of the output, those of k and v, and three of the
 * gated part. Around the layers: the table of tokens, the output's unless it is the same, and a
 * scale. */
static uint64_t llama_parameters(const struct jobspec_model *model)
{
    const uint64_t w = (uint64_t)model->width;
    const uint64_t kv = w / (uint64_t)model->heads * (uint64_t)model->kv_heads;
    const uint64_t layer = 2 * w + 2 * w * w + 2 * w * kv + 3 * w * (uint64_t)model->intermediate;
    return (uint64_t)model->layers * layer + (uint64_t)model->vocab * w * (model->tied ? 1 : 2) + w;
}

/* Layers like GPT-2's. Before them the tables of tokens, positions and kinds, and a norm; behind
 * them a matrix with its bias, a norm, and a bias of each token. */
static uint64_t bert_parameters(const struct jobspec_model *model)
{
    const uint64_t w = (uint64_t)model->width, vocab = (uint64_t)model->vocab;
    const uint64_t layers = (uint64_t)model->layers * (12 * w * w + 13 * w);
    return layers + (vocab + (uint64_t)model->context + 2) * w + 2 * w + w * w + 3 * w + vocab;
}

/* The last layer of an image model has inputs and a bias for each class. */
uint64_t jobspec_parameters(const struct jobspec_model *model)
{
    const uint64_t classes = (uint64_t)model->classes, hidden = (uint64_t)model->hidden;
    switch (model->arch) {
    case JOBSPEC_ARCH_MLP:
        return (28 * 28 + 1) * hidden + (hidden + 1) * classes;
    case JOBSPEC_ARCH_LENET:
        return 60856 + 85 * classes;
    case JOBSPEC_ARCH_RESNET18:
        return 11168832 + 513 * classes;
    case JOBSPEC_ARCH_RESNET50:
        return 23508032 + 2049 * classes;
    case JOBSPEC_ARCH_RESNET152:
        return 58143808 + 2049 * classes;
    case JOBSPEC_ARCH_GPT2:
        return gpt2_parameters(model);
    case JOBSPEC_ARCH_VIT:
        return vit_parameters(model);
    case JOBSPEC_ARCH_BERT:
        return bert_parameters(model);
    case JOBSPEC_ARCH_LLAMA:
        return llama_parameters(model);
    case JOBSPEC_ARCH_GRAPH:
        return model->parameters;
    case JOBSPEC_ARCH_LIBRARY:
    case JOBSPEC_ARCH_NONE:
        break;
    }
    return 0;
}

uint64_t jobspec_state_bytes(const struct jobspec *job)
{
    const int moments = jobspec_moments(job->train.optimizer.name, job->train.optimizer.momentum) +
                        (job->train.ema > 0);
    return jobspec_parameters(&job->model) * (1 + (uint64_t)moments) * sizeof(float);
}
