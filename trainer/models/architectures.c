#include <string.h>

#include "trainer/models/builders.h"
#include "trainer/models/models.h"

struct architecture {
    const char *arch;
    enum model_input input;
    int (*logits)(struct tape *tape, int x, const struct model_options *options);
};

/* Each row is an architecture. */
static const struct architecture architectures[] = {
    { "mlp", MODEL_IMAGES, model_mlp },
    { "lenet", MODEL_IMAGES, model_lenet },
    { "resnet18", MODEL_IMAGES, model_resnet18 },
    { "resnet50", MODEL_IMAGES, model_resnet50 },
    { "resnet152", MODEL_IMAGES, model_resnet152 },
    { "gpt2", MODEL_TOKENS, model_gpt2 },
    { "vit", MODEL_IMAGES, model_vit },
    { "bert", MODEL_TOKENS, model_bert },
    { "llama", MODEL_TOKENS, model_llama },
};

static const struct architecture *find_architecture(const char *arch)
{
    for (size_t i = 0; i < sizeof(architectures) / sizeof(architectures[0]); i++) {
        if (strcmp(architectures[i].arch, arch) == 0)
            return &architectures[i];
    }
    return NULL;
}

enum status model_input(const char *arch, enum model_input *out)
{
    const struct architecture *model = find_architecture(arch);
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

void model_text_defaults(struct model_options *options)
{
    default_to(&options->layers, 12);
    default_to(&options->heads, 12);
    default_to(&options->embed, 768);
    default_to(&options->patch, 16);
    default_to(&options->context, 1024);
    default_to(&options->vocab, 50257);
    default_to(&options->kv_heads, options->heads);
    default_to(&options->intermediate, 2048);
    if (options->rope_theta == 0)
        options->rope_theta = 10000;
    if (options->norm_eps == 0)
        options->norm_eps = 1e-5f;
}

static void append_model(const struct architecture *model, const struct model_options *options,
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
    const struct architecture *model = find_architecture(options->arch);
    struct model_options filled = *options;
    if (model == NULL)
        return ST_NOT_FOUND;
    model_text_defaults(&filled);
    struct tape *tape;
    enum status st = tape_new(&tape);
    if (st != ST_OK)
        return st;
    append_model(model, &filled, tape);
    st = tape_finish(tape);
    if (st != ST_OK) {
        tape_free(tape);
        return st;
    }
    *out = tape;
    return ST_OK;
}
