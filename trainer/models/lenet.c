#include "trainer/models/builders.h"

/*
 * LeNet-5 with ReLU and max-pooling; 28×28 images are padded to the original's 32×32.
 *
 * Source: LeCun et al., "Gradient-based learning applied to document recognition", Proc. IEEE 1998.
 */
int model_lenet(struct tape *tape, int images, const struct model_options *options)
{
    struct tape_conv2d first = { .out = 6, .kernel = 5, .stride = 1, .pad = 2, .bias = true };
    struct tape_conv2d second = { .out = 16, .kernel = 5, .stride = 1, .pad = 0, .bias = true };
    struct tape_linear fc1 = { .out = 120, .bias = true, .activation = ACTIVATION_RELU };
    struct tape_linear fc2 = { .out = 84, .bias = true, .activation = ACTIVATION_RELU };
    struct tape_linear fc3 = { .out = options->classes, .bias = true };

    int x = tape_conv2d(tape, "conv1", images, &first);
    x = tape_max_pool(tape, tape_relu(tape, x), 2, 2, 0);
    x = tape_conv2d(tape, "conv2", x, &second);
    x = tape_max_pool(tape, tape_relu(tape, x), 2, 2, 0);
    x = tape_flatten(tape, x);
    x = tape_linear(tape, "fc1", x, &fc1);
    x = tape_linear(tape, "fc2", x, &fc2);
    return tape_linear(tape, "fc3", x, &fc3);
}
