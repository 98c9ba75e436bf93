/*
 * The learning rate: a pure function of the step.
 *
 * Warm-up is linear: step s of w warm-up steps has (s + 1)/w of the rate. After it
 *   constant  lr
 *   cosine    from lr to lr·min over the steps that are left: half a period
 *   step      lr·gamma^floor(steps after warm-up / every)
 *
 * In double, with + - * / and a cosine of our own, so that no library version moves its bits.
 * Thread: any.
 */
#pragma once

#include <stdint.h>

enum schedule_kind { SCHEDULE_CONSTANT, SCHEDULE_COSINE, SCHEDULE_STEP };

struct schedule {
    enum schedule_kind kind;
    double lr;
    uint64_t warmup; /* steps */
    uint64_t total;  /* steps of the whole job; cosine */
    double min;      /* cosine: fraction of lr at the end */
    double gamma;    /* step */
    uint64_t every;  /* step: steps, >= 1 */
};

/* Rate of step `step`, counted from 0. */
double schedule_lr(const struct schedule *schedule, uint64_t step);
