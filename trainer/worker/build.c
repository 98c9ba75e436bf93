#include "trainer/worker/build.h"

#include <stdio.h>
#include <string.h>

#include "trainer/models/models.h"

/* Returns the shape of synthetic images: that with which the architecture was published. */
static struct dataset_shape synthetic_shape(const struct jobspec_model *model)
{
    const bool large = model->arch == JOBSPEC_ARCH_RESNET50 ||
                       model->arch == JOBSPEC_ARCH_RESNET152 || jobspec_has_large_patches(model);
    return large ? (struct dataset_shape){ .channels = 3, .height = 224, .width = 224 }
                 : (struct dataset_shape){ .channels = 1, .height = 28, .width = 28 };
}

enum status build_dataset(const struct build_options *options, struct dataset **out,
                          struct reason *reason)
{
    const struct jobspec *job = options->job;
    bool text = jobspec_is_text(&job->model);
    bool train = options->split == DATASET_TRAIN;
    struct dataset_options data = {
        .io = options->io,
        .source = train ? &job->data.train : &job->data.eval,
        .split = options->split,
        .classes = text ? job->model.vocab : job->model.classes,
        .context = text ? job->model.context : 0,
        .mask = job->model.arch == JOBSPEC_ARCH_BERT ? job->model.mask : 0,
        .seed = (uint64_t)job->train.seed,
        .shape = synthetic_shape(&job->model),
        .watched = job->recovery.exactness == JOBSPEC_EXACTNESS_STRICT,
        .sums = options->sums,
        .progress = options->progress,
        .progress_arg = options->progress_arg,
    };
    return dataset_open(&data, out, reason);
}

static void refuse_shape(const struct jobspec *job, const struct dataset *data,
                         struct reason *reason)
{
    const struct jobspec_model *model = &job->model;
    if (jobspec_is_text(model)) {
        reason_set(reason,
                   "model: %s can't have %lld layers of width %lld with %lld heads, context "
                   "%lld and vocab %lld; use fewer layers, or heads that divide the width",
                   jobspec_arch_word(model->arch), (long long)model->layers,
                   (long long)model->width, (long long)model->heads, (long long)model->context,
                   (long long)model->vocab);
        return;
    }
    if (model->arch == JOBSPEC_ARCH_VIT) {
        reason_set(reason,
                   "model.patch: images of %lldx%lldx%lld can't be cut into patches of %lldx%lld; "
                   "use a patch that divides both sides",
                   (long long)data->shape.channels, (long long)data->shape.height,
                   (long long)data->shape.width, (long long)model->patch, (long long)model->patch);
        return;
    }
    reason_set(reason,
               "data.train: images of %lldx%lldx%lld are not what model.arch %s takes; use "
               "other images or another model",
               (long long)data->shape.channels, (long long)data->shape.height,
               (long long)data->shape.width, jobspec_arch_word(model->arch));
}

enum status build_tape(const struct jobspec *job, const struct dataset *data, struct tape **out,
                       struct reason *reason)
{
    const struct jobspec_model *model = &job->model;
    struct model_options options = {
        .arch = jobspec_arch_word(model->arch),
        .label_smoothing = (float)job->train.label_smoothing,
        .channels = data->shape.channels,
        .height = data->shape.height,
        .width = data->shape.width,
        .classes = model->classes,
        .hidden = model->hidden,
        .patch = model->patch,
        .layers = model->layers,
        .heads = model->heads,
        .embed = model->width,
        .context = model->context,
        .vocab = model->vocab,
        .dropout = (float)model->dropout,
        .kv_heads = model->kv_heads,
        .intermediate = model->intermediate,
        .rope_theta = (float)model->rope_theta,
        .norm_eps = (float)model->norm_eps,
        .tied = model->tied,
    };
    enum status st = model_build(&options, out);
    if (st == ST_INVALID) {
        refuse_shape(job, data, reason);
        return ST_CONFIG;
    }
    if (st == ST_NOT_FOUND) {
        reason_set(reason, "model.arch: no model \"%s\" in this version",
                   jobspec_arch_word(model->arch));
        return ST_CONFIG;
    }
    if (st != ST_OK)
        reason_set(reason, "model: %s", status_string(st));
    return st;
}
