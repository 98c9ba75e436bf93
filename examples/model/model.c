/* A residual network for small images, as deep as DEPTH says: `make`, then model.library in library.yaml. */
#include <cairn/model.h>
#include <stdio.h>

#define DEPTH 2
#define WIDTH 16

static int conv(struct cairn_model *model, const char *block, int number, int from)
{
    char name[32];
    (void)snprintf(name, sizeof(name), "%s.conv%d", block, number);
    return cairn_add(model, (struct cairn_node){ .op = "conv2d",
                                                 .name = name,
                                                 .from = from,
                                                 .out = WIDTH,
                                                 .kernel = 3,
                                                 .pad = 1,
                                                 .no_bias = 1 });
}

static int norm(struct cairn_model *model, const char *block, int number, int residual)
{
    char name[32];
    (void)snprintf(name, sizeof(name), "%s.bn%d", block, number);
    return cairn_add(
        model,
        (struct cairn_node){ .op = "batch_norm", .name = name, .residual = residual, .relu = 1 });
}

int cairn_model_make(struct cairn_model *model, const struct cairn_sample *sample)
{
    if (sample->is_tokens)
        return cairn_refuse(model, "this model takes images: add model.input to the job");
    conv(model, "stem", 1, CAIRN_INPUT);
    int x = norm(model, "stem", 1, 0);
    for (int i = 0; i < DEPTH; i++) {
        char block[16];
        (void)snprintf(block, sizeof(block), "block%d", i);
        conv(model, block, 1, x);
        norm(model, block, 1, 0);
        conv(model, block, 2, 0);
        x = norm(model, block, 2, x);
    }
    cairn_add(model, (struct cairn_node){ .op = "global_avg_pool" });
    cairn_add(model, (struct cairn_node){ .op = "linear", .name = "fc", .out = sample->classes });
    return 0;
}
