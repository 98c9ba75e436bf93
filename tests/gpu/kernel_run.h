/*
 * Runs a kernel on a device several times and looks at every byte that it left.
 *
 * A test is a body that allocates arrays, launches, and says what it expects, in float64. It runs
 * under several seeds: other initial bytes, another order of blocks and threads, flat buffers that
 * are aligned to a vector or not. All arrays but scratch must then hold the same bits, and inputs
 * what was put there.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/tensor.h"

struct run;

void run_seeds(void (*body)(struct run *run, const void *arg), const void *arg);

/* Memory of the host, until the body ends; numbers are the same under every seed. */
void *run_host(struct run *run, size_t bytes);
/* n numbers in [low, high), as `dtype` holds them. */
double *run_random(struct run *run, enum dtype dtype, int64_t n, double low, double high);
/* Integers in [0, below). */
int32_t *run_integers(struct run *run, int64_t n, int32_t below);
double run_round(enum dtype dtype, double x);

/* Arrays of the device. Tensors are aligned to 16 bytes; flat ones are float32. */
void *run_in(struct run *run, enum dtype dtype, const double *values, int64_t n);
float *run_in_flat(struct run *run, const double *values, int64_t n);
void *run_in_bytes(struct run *run, const void *bytes, size_t size);
void *run_out(struct run *run, enum dtype dtype, int64_t n);
float *run_out_flat(struct run *run, int64_t n);
void *run_scratch(struct run *run, size_t bytes);
void run_changes(struct run *run, const void *array); /* an input that the kernel writes */

/*
 * Fails unless each of n elements is want's, as `dtype` rounds it, within tolerance · (the greatest
 * of |want|).
 */
void run_expect(struct run *run, const void *array, enum dtype dtype, const double *want, int64_t n,
                double tolerance);
/* run_expect in parts. */
void run_values(struct run *run, const void *array, enum dtype dtype, double *out, int64_t n);
void run_expect_values(struct run *run, enum dtype dtype, const double *got, const double *want,
                       int64_t n, double tolerance);
/* The bytes of an array now. */
void run_get(struct run *run, const void *array, void *to, size_t bytes);
