/*
 * The learning rate: a pure function of the step.
 *
 * Warm-up is linear: step s of w warm-up steps has (s + 1)/w of the rate. After it, with p the part
 * of the steps behind it that are done, 0 at first:
 *   constant      lr
 *   cosine        from lr to lr·min over the steps that are left: half a period
 *   step          lr·gamma^floor(steps after warm-up / every)
 *   linear        lr·(min + (1 - min)·(1 - p))
 *   polynomial    lr·(min + (1 - min)·(1 - p)^power)
 *   inverse_sqrt  lr·√(w / s), from step w on; without warm-up lr·√(10000 / (s + 10000))
 *   wsd           lr; over the last `decay` steps linearly down to lr·min
 *
 * one_cycle is the exception: over the warm-up steps half a period of the cosine from lr·start up
 * to lr, at the last of them; then half a period down to lr·min, at the last step.
 *
 * In double, with + - * / √ and a cosine of our own, so that no library version moves its bits.
 * Thread: any.
 *
 * Source: cosine: Loshchilov, Hutter, arXiv 1608.03983, equation 5; inverse_sqrt: Vaswani et al.,
 *         arXiv 1706.03762, equation 3, scaled so that its greatest rate is lr; one_cycle: Smith,
 *         Topin, arXiv 1708.07120, as torch.optim.lr_scheduler.OneCycleLR in two phases; wsd: Hu et
 *         al., arXiv 2404.06395, section 4, with the linear decay of Haegele et al., arXiv
 *         2405.18392; linear and polynomial as in transformers.optimization.
 */
#pragma once

#include <stdint.h>

enum schedule_kind {
    SCHEDULE_CONSTANT,
    SCHEDULE_COSINE,
    SCHEDULE_STEP,
    SCHEDULE_LINEAR,
    SCHEDULE_POLYNOMIAL,
    SCHEDULE_INVERSE_SQRT,
    SCHEDULE_ONE_CYCLE,
    SCHEDULE_WSD,
};

struct schedule {
    enum schedule_kind kind;
    double lr;
    uint64_t warmup; /* steps */
    uint64_t total;  /* steps of the whole job */
    double min;      /* fraction of lr at the end; where there is one above */
    double gamma;    /* step */
    uint64_t every;  /* step: steps, >= 1 */
    double power;    /* polynomial: > 0 */
    double start;    /* one_cycle: fraction of lr at step 0 */
    uint64_t decay;  /* wsd: steps */
};

/* Rate of step `step`, counted from 0. */
double schedule_lr(const struct schedule *schedule, uint64_t step);
