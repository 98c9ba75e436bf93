/* Single kernels of a backend, for bench/gpu. */
#pragma once

#include <stdbool.h>

#include "bench/gpu_rows.h"
#include "kernels/backend.h"

struct gpu_ops_options {
    const struct backend_table *table;
    bool small;
};

/*
 * Adds: copy, matmul, adamw, layer_norm_forward, layer_norm_backward, attention_forward,
 * attention_backward; GB/s of what must be read and written, TFLOP/s of what is defined (attention:
 * the lower half of the square), and the fractions of copy and of the product as NAME/of_copy and
 * NAME/of_matmul. On numbers, not on zeros; samples of each result are compared with float64, and
 * one that is wrong ends the program.
 */
void gpu_ops_run(const struct gpu_ops_options *options, struct rows *rows);
