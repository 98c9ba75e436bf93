#include "trainer/models/models.h"

#include <string.h>

#include "trainer/models/builders.h"

/* One row per architecture. */
static const struct {
    const char *arch;
    int (*logits)(struct tape *tape, int images, const struct model_options *options);
} models[] = {
    { "mlp", model_mlp },
    { "lenet", model_lenet },
    { "resnet18", model_resnet18 },
};

enum status model_build(const struct model_options *options, struct tape **out)
{
    size_t i = 0;
    while (i < sizeof models / sizeof models[0] && strcmp(models[i].arch, options->arch) != 0)
        i++;
    if (i == sizeof models / sizeof models[0])
        return ST_NOT_FOUND;
    struct tape *tape;
    enum status st = tape_new(&tape);
    if (st != ST_OK)
        return st;
    int64_t image[4] = { 1, options->channels, options->height, options->width };
    int images = tape_input(tape, DTYPE_F32, 4, image);
    int labels = tape_input(tape, DTYPE_I32, 1, (int64_t[]){ 1 });
    int logits = models[i].logits(tape, images, options);
    (void)tape_loss(tape, logits, labels, options->label_smoothing);
    st = tape_finish(tape);
    if (st != ST_OK) {
        tape_free(tape);
        return st;
    }
    *out = tape;
    return ST_OK;
}
