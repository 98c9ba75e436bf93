/*
 * `cairn-trainer --check`: what this machine's devices and the paths between them can do, measured.
 *
 * Per device its name, memory and copy bandwidth; then, between `ranks` of them (threads of this
 * process, a communicator each), all-reduce and all-to-all over a range of sizes. A size is the
 * bytes of one rank's whole buffer. Two bandwidths, as nccl-tests define them (PERFORMANCE.md
 * there); the second compares with the hardware's figure, however many ranks n there are:
 *
 *   algorithm       size / time
 *   bus, all-reduce algorithm · 2(n - 1)/n
 *   bus, all-to-all algorithm · (n - 1)/n
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
