/*
 * Every op of the CUDA backend against float64 differences: the same cases on a device and on the
 * fakes. As cmocka tests; the state of the group is the module.
 */
#pragma once

#include "kernels/module.h"

/* One of them. */
void cuda_memory_of_parts_is_that_of_their_granules(void **state);

/* Runs the group; returns the number of failures. */
int cuda_cases_run(const struct module *module);
