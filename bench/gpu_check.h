/*
 * Numbers for bench/gpu's kernels, and whether what these gave is what float64 gives: a kernel that
 * computes nothing is fast, and so is one on zeros, for which a GPU needs less power. What is wrong
 * ends the program.
 */
#pragma once

#include <stdint.h>

#include "kernels/backend.h"

struct gpu_check {
    const struct backend_table *table;
    struct backend *backend;
    struct stream *stream;
};

/* Fills memory of the device with the numbers of a seed (tests/kernel/numbers.h); dtype: float32
 * or bfloat16. */
void gpu_fill(const struct gpu_check *check, void *memory, int64_t count, enum dtype dtype,
              unsigned seed);

/* Fails unless element `at` is `wanted`, to the last place of dtype and `slack` besides. */
void gpu_expect(const struct gpu_check *check, const char *what, const void *memory,
                enum dtype dtype, int64_t at, double wanted, double slack);

/*
 * One row of one head's causal attention: out, and the gradients that one row decides alone.
 * qkv [T, 3·C] and dout [T, C] are those of the sample, whose first elements have the numbers
 * qkv_first and dout_first of seeds.
 */
struct attention_row {
    int64_t length, width, head, depth, row; /* T, C, the head's number and size, the row */
    unsigned qkv_seed, dout_seed;
    int64_t qkv_first, dout_first;
};
/* out, dq: [depth] of that row; dk, dv: [depth] of it as a key, right for the last row only, which
 * no other one sees. */
void attention_row_reference(const struct attention_row *at, double *out, double *dq, double *dk,
                             double *dv);
