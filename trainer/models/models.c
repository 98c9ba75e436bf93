#include "trainer/models/models.h"

#include <string.h>

#include "trainer/models/builders.h"

struct model {
    const char *arch;
    enum model_input input;
    int (*logits)(struct tape *tape, int x, const struct model_options *options);
};

/* One row per architecture. */
static const struct model models[] = {
    { "mlp", MODEL_IMAGES, model_mlp },
    { "lenet", MODEL_IMAGES, model_lenet },
    { "resnet18", MODEL_IMAGES, model_resnet18 },
    { "resnet50", MODEL_IMAGES, model_resnet50 },
    { "resnet152", MODEL_IMAGES, model_resnet152 },
    { "gpt2", MODEL_TOKENS, model_gpt2 },
};

static const struct model *find(const char *arch)
{
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        if (strcmp(models[i].arch, arch) == 0)
            return &models[i];
    }
    return NULL;
}

enum status model_input(const char *arch, enum model_input *out)
{
    const struct model *model = find(arch);
    if (model == NULL)
        return ST_NOT_FOUND;
    *out = model->input;
    return ST_OK;
}

static void default_to(int64_t *value, int64_t other)
{
    if (*value == 0)
        *value = other;
}

enum status model_size(struct model_options *options)
{
    /* Radford et al., "Language models are unsupervised multitask learners", 2019, table 2; the
     * counts that people call them by are those of the released weights. */
    static const struct {
        const char *size;
        int64_t layers, heads, embed;
    } sizes[] = {
        { "124M", 12, 12, 768 },
        { "355M", 24, 16, 1024 },
        { "774M", 36, 20, 1280 },
        { "1558M", 48, 25, 1600 },
    };
    const char *size = options->size == NULL || options->size[0] == '\0' ? "124M" : options->size;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (strcmp(sizes[i].size, size) != 0)
            continue;
        default_to(&options->layers, sizes[i].layers);
        default_to(&options->heads, sizes[i].heads);
        default_to(&options->embed, sizes[i].embed);
        default_to(&options->context, 1024);
        default_to(&options->vocab, 50257);
        return ST_OK;
    }
    return ST_NOT_FOUND;
}

static void append(const struct model *model, const struct model_options *options,
                   struct tape *tape)
{
    int64_t image[4] = { 1, options->channels, options->height, options->width };
    int64_t window[2] = { 1, options->context };
    bool text = model->input == MODEL_TOKENS;
    int x = text ? tape_input(tape, DTYPE_I32, 2, window) : tape_input(tape, DTYPE_F32, 4, image);
    int labels = tape_input(tape, DTYPE_I32, text ? 2 : 1, window);
    int logits = model->logits(tape, x, options);
    (void)tape_loss(tape, logits, labels, options->label_smoothing);
}

enum status model_build(const struct model_options *options, struct tape **out)
{
    const struct model *model = find(options->arch);
    struct model_options filled = *options;
    if (model == NULL)
        return ST_NOT_FOUND;
    enum status st = model->input == MODEL_TOKENS ? model_size(&filled) : ST_OK;
    if (st != ST_OK)
        return st;
    struct tape *tape;
    st = tape_new(&tape);
    if (st != ST_OK)
        return st;
    append(model, &filled, tape);
    st = tape_finish(tape);
    if (st != ST_OK) {
        tape_free(tape);
        return st;
    }
    *out = tape;
    return ST_OK;
}
