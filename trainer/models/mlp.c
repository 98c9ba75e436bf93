#include "trainer/models/builders.h"

/* Two layers: pixels → hidden → classes. */
int model_mlp(struct tape *tape, int images, const struct model_options *options)
{
    int x = tape_flatten(tape, images);
    x = tape_linear(tape, "fc1", x, options->hidden, true);
    return tape_linear(tape, "fc2", x, options->classes, false);
}
