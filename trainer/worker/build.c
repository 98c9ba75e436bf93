#include "trainer/worker/build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/graph/graph_tape.h"
#include "trainer/graph/library.h"
#include "trainer/models/models.h"

/* Returns the shape of synthetic images: that with which the architecture was published, or that
 * which the job says. */
static struct dataset_shape synthetic_shape(const struct jobspec_model *model)
{
    if (model->input[0] > 0) {
        return (struct dataset_shape){ .channels = model->input[0],
                                       .height = model->input[1],
                                       .width = model->input[2] };
    }
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

/* Checks that the data's images are those that a model of one's own says that it takes. */
static enum status check_input(const struct jobspec_model *model, const struct dataset *data,
                               struct reason *reason)
{
    const struct dataset_shape *is = &data->shape;
    const int64_t *said = model->input;
    if (jobspec_is_text(model) ||
        (is->channels == said[0] && is->height == said[1] && is->width == said[2]))
        return ST_OK;
    reason_set(reason,
               "data.train: images of %lldx%lldx%lld, but model.input is [%lld, %lld, %lld]; use "
               "other images, or set model.input to [%lld, %lld, %lld]",
               (long long)is->channels, (long long)is->height, (long long)is->width,
               (long long)said[0], (long long)said[1], (long long)said[2], (long long)is->channels,
               (long long)is->height, (long long)is->width);
    return ST_CONFIG;
}

/* One of the models of this version. */
static enum status build_named(const struct jobspec *job, const struct dataset *data,
                               struct tape **out, struct reason *reason)
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

static enum status build_graph(const struct jobspec *job, const struct jobspec_graph *graph,
                               struct tape **out, struct reason *reason)
{
    const struct jobspec_model *model = &job->model;
    const struct graph_tape_options options = {
        .input = { model->input[0], model->input[1], model->input[2] },
        .context = model->context,
        .label_smoothing = (float)job->train.label_smoothing
    };
    enum status st = graph_tape(graph, &options, out);
    if (st == ST_INVALID) {
        reason_set(reason, "model: its graph has no room on a tape; use fewer nodes");
        return ST_CONFIG;
    }
    if (st != ST_OK)
        reason_set(reason, "model: %s", status_string(st));
    return st;
}

/* Has the job's library make a graph. */
static enum status make_graph(const struct build_options *options, struct built_model *out,
                              struct reason *reason)
{
    const struct jobspec_model *model = &options->job->model;
    const struct library_options library = {
        .path = model->library,
        .sample = { .input = { model->input[0], model->input[1], model->input[2] },
                    .classes = model->classes,
                    .context = model->context,
                    .vocab = model->vocab },
        .half = options->job->train.amp == JOBSPEC_AMP_O1,
        .progress = options->progress,
        .progress_arg = options->progress_arg,
    };
    struct library_made made;
    char file[33], graph[33];
    const enum status st = library_graph(&library, out->graph, &made, reason);
    if (st != ST_OK)
        return st;
    ckpt_hash_text(&made.library, file);
    ckpt_hash_text(&made.graph, graph);
    (void)snprintf(out->pins, sizeof(out->pins), "{\"library\":\"%s\",\"graph\":\"%s\"}", file,
                   graph);
    return ST_OK;
}

/* The job's own graph, or that which its library makes. */
static enum status find_graph(const struct build_options *options, struct built_model *out,
                              struct reason *reason)
{
    const struct jobspec *job = options->job;
    out->graph = calloc(1, sizeof(*out->graph));
    if (out->graph == NULL) {
        reason_set(reason, "model: %s", status_string(ST_NO_MEMORY));
        return ST_NO_MEMORY;
    }
    if (job->model.arch == JOBSPEC_ARCH_LIBRARY)
        return make_graph(options, out, reason);
    memcpy(out->graph, &job->graph, sizeof(job->graph));
    return ST_OK;
}

enum status build_model(const struct build_options *options, const struct dataset *data,
                        struct built_model *out, struct reason *reason)
{
    const struct jobspec *job = options->job;
    *out = (struct built_model){ NULL };
    if (job->model.arch != JOBSPEC_ARCH_GRAPH && job->model.arch != JOBSPEC_ARCH_LIBRARY)
        return build_named(job, data, &out->tape, reason);
    enum status st = check_input(&job->model, data, reason);
    if (st == ST_OK)
        st = find_graph(options, out, reason);
    if (st == ST_OK)
        st = build_graph(job, out->graph, &out->tape, reason);
    if (st != ST_OK) {
        free(out->graph);
        out->graph = NULL;
    }
    return st;
}

enum status build_tape(const struct jobspec *job, const struct dataset *data, struct tape **out,
                       struct reason *reason)
{
    const struct build_options options = { .job = job };
    struct built_model model;
    const enum status st = build_model(&options, data, &model, reason);
    free(model.graph);
    if (st == ST_OK)
        *out = model.tape;
    return st;
}
