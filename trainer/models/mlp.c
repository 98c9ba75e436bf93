#include "trainer/models/builders.h"

/* Two layers: pixels → hidden → classes. */
int model_mlp(struct tape *tape, int images, const struct model_options *options)
{
    struct tape_linear hidden = { .out = options->hidden,
                                  .bias = true,
                                  .activation = ACTIVATION_RELU };
    struct tape_linear last = { .out = options->classes, .bias = true };

    int x = tape_flatten(tape, images);
    x = tape_linear(tape, "fc1", x, &hidden);
    return tape_linear(tape, "fc2", x, &last);
}
