/*
 * A trained state for bench/checkpoint: parameters and both moments of Adam, in host memory.
 */
#pragma once

#include <stddef.h>

#include "checkpoint/checkpoint.h"

struct bench_state {
    struct ckpt_state state;
    struct ckpt_buffer buffers[3]; /* parameters, adam.m, adam.v */
    struct ckpt_tensor tensors[3];
    float *data[3]; /* owned */
    size_t count;   /* elements of each */
};

/*
 * dir NULL: a simulation, seeded: weights drawn as at the start of a training, gradients whose
 * scale differs from row to row, and some steps of Adam on them. Else the files w_*.f32, m_*.f32
 * and v_*.f32 of dir. What there is is repeated until each buffer has count elements; a chunk knows
 * nothing of another, so that ratios stay as they are. Returns NULL, or what is wrong.
 */
const char *bench_state_make(struct bench_state *out, const char *dir, size_t count);
void bench_state_release(struct bench_state *state);
