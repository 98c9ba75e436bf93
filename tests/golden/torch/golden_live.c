/*
 * A run of Cairn for tests/golden/torch/make_reference.py --live: prints the losses, and writes the
 * gradient of the first step's mean loss as float32 to FILE.
 *
 *   golden_live FILE fp32|bf16 MODEL OPTIMIZER SEED BATCH BATCHES STEPS LR WEIGHT_DECAY CHANNELS
 *               SIDE LAYERS HEADS EMBED CONTEXT VOCAB NORM_SHIFT PATCH
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/trainer/training.h"

enum { FILE_AT = 1, MATH, MODEL, OPTIMIZER, SEED, BATCH, BATCHES, STEPS, LR, WEIGHT_DECAY };
enum {
    CHANNELS = WEIGHT_DECAY + 1,
    SIDE,
    LAYERS,
    HEADS,
    EMBED,
    CONTEXT,
    VOCAB,
    SHIFT,
    PATCH,
    ARGUMENTS
};

static bool write_gradient(const struct training *t, const char *path)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL)
        return false;
    float targets = t->lane[t->layout.targets_at];
    bool good = true;
    for (size_t i = 0; good && i < t->layout.param_count; i++) {
        float value = t->lane[i] / targets;
        good = fwrite(&value, sizeof(value), 1, file) == 1;
    }
    return fclose(file) == 0 && good;
}

static int64_t whole(const char *text)
{
    return strtoll(text, NULL, 10);
}

int main(int argc, char **argv)
{
    if (argc != ARGUMENTS) {
        (void)fprintf(stderr, "golden_live is run by make_reference.py --live\n");
        return 2;
    }
    bool adamw = strcmp(argv[OPTIMIZER], "adamw") == 0;
    struct training_options options = {
        .arch = argv[MODEL],
        .channels = whole(argv[CHANNELS]),
        .side = whole(argv[SIDE]),
        .layers = whole(argv[LAYERS]),
        .heads = whole(argv[HEADS]),
        .embed = whole(argv[EMBED]),
        .context = whole(argv[CONTEXT]),
        .vocab = whole(argv[VOCAB]),
        .norm_shift = strtof(argv[SHIFT], NULL),
        .patch = whole(argv[PATCH]),
        .micro = whole(argv[BATCH]),
        .seed = (uint64_t)whole(argv[SEED]),
        .math = strcmp(argv[MATH], "bf16") == 0 ? MATH_BF16 : MATH_F32,
        .optimizer = { .kind = adamw ? JOBSPEC_OPTIMIZER_ADAMW : JOBSPEC_OPTIMIZER_SGD,
                       .momentum = adamw ? 0 : 0.9f,
                       .beta1 = 0.9f,
                       .beta2 = 0.999f,
                       .eps = 1e-8f,
                       .weight_decay = strtof(argv[WEIGHT_DECAY], NULL),
                       .no_decay = adamw ? TAPE_BIAS | TAPE_NORM : 0 },
    };
    struct training t;
    training_open(&t, &options);
    for (int64_t step = 0; step < whole(argv[STEPS]); step++) {
        uint32_t first = (uint32_t)(step % whole(argv[BATCHES]) * options.micro);
        struct optimizer_report report =
            training_step(&t, first, 1, 1, strtod(argv[LR], NULL), (uint64_t)step + 1);
        (void)printf("%.9g\n", report.loss);
        (void)fflush(stdout);
        if (step == 0 && !write_gradient(&t, argv[FILE_AT])) {
            (void)fprintf(stderr, "%s: can't be written\n", argv[FILE_AT]);
            return 1;
        }
    }
    training_close(&t);
    return 0;
}
