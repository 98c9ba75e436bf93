#include <stdio.h>

#include "trainer/models/builders.h"

struct block_name {
    char text[64];
};

static struct block_name join(const char *prefix, const char *name)
{
    struct block_name out;
    (void)snprintf(out.text, sizeof out.text, "%s.%s", prefix, name);
    return out;
}

static int conv(struct tape *tape, const char *prefix, const char *name, int x,
                const struct tape_conv2d *shape)
{
    return tape_conv2d(tape, join(prefix, name).text, x, shape);
}

static int norm(struct tape *tape, const char *prefix, const char *name, int x, int residual,
                bool relu)
{
    return tape_batch_norm(tape, join(prefix, name).text, x, residual, relu);
}

/* relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x)); the shortcut is x where shapes agree, else a
 * 1×1 convolution with its norm. */
static int basic_block(struct tape *tape, const char *prefix, int x, int64_t out, int stride,
                       bool same_shape)
{
    struct tape_conv2d first = { .out = out, .kernel = 3, .stride = stride, .pad = 1 };
    struct tape_conv2d second = { .out = out, .kernel = 3, .stride = 1, .pad = 1 };
    struct tape_conv2d down = { .out = out, .kernel = 1, .stride = stride, .pad = 0 };

    int y = conv(tape, prefix, "conv1", x, &first);
    y = norm(tape, prefix, "bn1", y, -1, true);
    y = conv(tape, prefix, "conv2", y, &second);
    int shortcut = x;
    if (!same_shape) {
        shortcut = conv(tape, prefix, "downsample.0", x, &down);
        shortcut = norm(tape, prefix, "downsample.1", shortcut, -1, false);
    }
    return norm(tape, prefix, "bn2", y, shortcut, true);
}

/*
 * ResNet-18 for small images: a 3×3 stem of stride 1, no max-pool.
 *
 * Source: He et al., "Deep residual learning for image recognition", CVPR 2016; names as
 * torchvision's.
 */
int model_resnet18(struct tape *tape, int images, const struct model_options *options)
{
    struct tape_conv2d stem = { .out = 64, .kernel = 3, .stride = 1, .pad = 1 };

    int x = tape_conv2d(tape, "conv1", images, &stem);
    x = tape_batch_norm(tape, "bn1", x, -1, true);
    for (int stage = 0; stage < 4; stage++) {
        int64_t out = INT64_C(64) << stage;
        for (int block = 0; block < 2; block++) {
            bool shrinks = stage > 0 && block == 0;
            char prefix[32];
            (void)snprintf(prefix, sizeof prefix, "layer%d.%d", stage + 1, block);
            x = basic_block(tape, prefix, x, out, shrinks ? 2 : 1, !shrinks);
        }
    }
    x = tape_global_avg_pool(tape, x);
    return tape_linear(tape, "fc", x, options->classes, false);
}
