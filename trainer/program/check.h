/*
 * `cairn-trainer --check`: what this machine's devices and the paths between them can do, measured.
 *
 * Per device its name, memory and copy bandwidth; then, between `ranks` of them (threads of this
 * process, a communicator each), all-reduce and all-to-all over a range of sizes. Algorithm
 * bandwidth is size over time; bus bandwidth is what nccl-tests define (PERFORMANCE.md there):
 * all-reduce algbw · 2(n - 1)/n, all-to-all algbw · (n - 1)/n, comparable with the hardware's
 * figure whatever n is. Sizes count the bytes of one rank's whole buffer.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/status.h"

struct check_options {
    const char *device; /* "cpu", "cuda" */
    int ranks;          /* 0: every GPU; 2 on CPU */
    bool json;          /* one object instead of tables */
};

/* Prints to standard output. Returns an exit code: 0; 1 something failed; 2 usage; 4 the device
 * can't be used here (the reason is on standard error). */
int check_run(const struct check_options *options);
