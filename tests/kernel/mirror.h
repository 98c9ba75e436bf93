/*
 * A device backend that looks like one in host memory, so that a test of kernels that reads and
 * writes what alloc gives runs on any device.
 *
 * Each region has a shadow on the device. A call copies all regions there, runs, waits, and copies
 * all back. Parameters, statistics and their gradients lie on the device as in a flat buffer: at
 * addresses that are aligned to 4 bytes and to no more, or to 16.
 *
 * Thread: one.
 */
#pragma once

#include "kernels/backend.h"

struct mirror_options {
    const struct backend_table *device;
    int ordinal;
    bool weak;          /* flat buffers are aligned to 4 bytes only */
    const char *stored; /* backend_options.choices */
};

/* The table; its open takes no heed of its options. */
const struct backend_table *mirror_table(void);

/* Errors: what the device's open returns. */
enum status mirror_open(const struct mirror_options *options, struct backend **out);
