/*
 * ResNet-18 for small images only (a 3×3 stem of stride 1, no max-pool); ResNet-50 and -152 for
 * large and small ones. Nothing is initialised to zero that PyTorch doesn't.
 *
 * Source: He et al., "Deep residual learning for image recognition", CVPR 2016; names as
 * torchvision's.
 */
#include <stdio.h>

#include "trainer/models/builders.h"

#define SMALL_SIDE 64

struct block_name {
    char text[64];
};

static struct block_name block_name(const char *prefix, const char *name)
{
    struct block_name out;
    (void)snprintf(out.text, sizeof(out.text), "%s.%s", prefix, name);
    return out;
}

static int conv(struct tape *tape, const char *prefix, const char *name, int x,
                const struct tape_conv2d *shape)
{
    return tape_conv2d(tape, block_name(prefix, name).text, x, shape);
}

static int norm(struct tape *tape, const char *prefix, const char *name, int x, int residual,
                bool relu)
{
    return tape_batch_norm(tape, block_name(prefix, name).text, x, residual, relu);
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
    y = norm(tape, prefix, "bn1", y, TAPE_NO_RESIDUAL, true);
    y = conv(tape, prefix, "conv2", y, &second);
    int shortcut = x;
    if (!same_shape) {
        shortcut = conv(tape, prefix, "downsample.0", x, &down);
        shortcut = norm(tape, prefix, "downsample.1", shortcut, TAPE_NO_RESIDUAL, false);
    }
    return norm(tape, prefix, "bn2", y, shortcut, true);
}

/* relu(bn3(conv3(relu(bn2(conv2(relu(bn1(conv1(x)))))))) + shortcut(x)), where the 3×3 in the
 * middle has the stride (torchvision's and NVIDIA's "v1.5"). */
static int bottleneck(struct tape *tape, const char *prefix, int x, int64_t mid, int stride,
                      bool same_shape)
{
    struct tape_conv2d first = { .out = mid, .kernel = 1, .stride = 1, .pad = 0 };
    struct tape_conv2d second = { .out = mid, .kernel = 3, .stride = stride, .pad = 1 };
    struct tape_conv2d third = { .out = 4 * mid, .kernel = 1, .stride = 1, .pad = 0 };
    struct tape_conv2d down = { .out = 4 * mid, .kernel = 1, .stride = stride, .pad = 0 };

    int y = conv(tape, prefix, "conv1", x, &first);
    y = norm(tape, prefix, "bn1", y, TAPE_NO_RESIDUAL, true);
    y = conv(tape, prefix, "conv2", y, &second);
    y = norm(tape, prefix, "bn2", y, TAPE_NO_RESIDUAL, true);
    y = conv(tape, prefix, "conv3", y, &third);
    int shortcut = x;
    if (!same_shape) {
        shortcut = conv(tape, prefix, "downsample.0", x, &down);
        shortcut = norm(tape, prefix, "downsample.1", shortcut, TAPE_NO_RESIDUAL, false);
    }
    return norm(tape, prefix, "bn3", y, shortcut, true);
}

/* 7×7 of stride 2 and max-pool for images over 64; 3×3 of stride 1 for small ones. */
static int stem(struct tape *tape, int images, const struct model_options *options)
{
    struct tape_conv2d large = { .out = 64, .kernel = 7, .stride = 2, .pad = 3 };
    struct tape_conv2d small = { .out = 64, .kernel = 3, .stride = 1, .pad = 1 };
    bool is_large = options->height > SMALL_SIDE || options->width > SMALL_SIDE;

    int x = tape_conv2d(tape, "conv1", images, is_large ? &large : &small);
    x = tape_batch_norm(tape, "bn1", x, TAPE_NO_RESIDUAL, true);
    return is_large ? tape_max_pool(tape, x, 3, 2, 1) : x;
}

struct stages {
    int blocks[4];
    bool bottlenecks;
};

static int resnet(struct tape *tape, int x, const struct stages *stages, int64_t classes)
{
    struct tape_linear fc = { .out = classes, .bias = true };
    for (int stage = 0; stage < 4; stage++) {
        int64_t out = INT64_C(64) << stage;
        for (int block = 0; block < stages->blocks[stage]; block++) {
            int stride = stage > 0 && block == 0 ? 2 : 1;
            bool same_shape = block > 0 || (stage == 0 && !stages->bottlenecks);
            char prefix[32];
            (void)snprintf(prefix, sizeof(prefix), "layer%d.%d", stage + 1, block);
            x = stages->bottlenecks ? bottleneck(tape, prefix, x, out, stride, same_shape)
                                    : basic_block(tape, prefix, x, out, stride, same_shape);
        }
    }
    return tape_linear(tape, "fc", tape_global_avg_pool(tape, x), &fc);
}

int model_resnet18(struct tape *tape, int images, const struct model_options *options)
{
    struct tape_conv2d first = { .out = 64, .kernel = 3, .stride = 1, .pad = 1 };
    struct stages stages = { .blocks = { 2, 2, 2, 2 } };
    int x = tape_conv2d(tape, "conv1", images, &first);
    x = tape_batch_norm(tape, "bn1", x, TAPE_NO_RESIDUAL, true);
    return resnet(tape, x, &stages, options->classes);
}

int model_resnet50(struct tape *tape, int images, const struct model_options *options)
{
    struct stages stages = { .blocks = { 3, 4, 6, 3 }, .bottlenecks = true };
    return resnet(tape, stem(tape, images, options), &stages, options->classes);
}

int model_resnet152(struct tape *tape, int images, const struct model_options *options)
{
    struct stages stages = { .blocks = { 3, 8, 36, 3 }, .bottlenecks = true };
    return resnet(tape, stem(tape, images, options), &stages, options->classes);
}
