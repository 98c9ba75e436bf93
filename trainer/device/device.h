/*
 * The device that a rank computes on: the backend that the job asks for, opened, its streams, and
 * what carries messages between ranks of that kind.
 *
 * A device whose memory is not the host's has streams of its own for inputs, staging, communication
 * and pipelines, which run beside computing. On the CPU there is one stream, and all calls are done
 * on return.
 *
 * Thread: one.
 * Errors: ST_CONFIG  the device can't be used here: reason is the loader's line
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "comm/comm.h"
#include "common/reason.h"
#include "common/status.h"
#include "jobspec/jobspec.h"
#include "kernels/backend.h"

struct device {
    const struct backend_table *table;
    const struct comm_table *comm;
    struct backend *backend;
    struct stream *compute;
    struct stream *input, *staging, *communication; /* NULL on host memory */
    struct stream *pipe; /* a pipeline's messages: they wait for none of the reduction; likewise */
    int ordinal;         /* -1: host */
};

struct device_options {
    const struct jobspec *job;
    /* Backend and communication for tests; NULL: those that workers.device names. */
    const struct backend_table *table;
    const struct comm_table *comm;
    const char *choices; /* struct backend_options */
};

MUST_CHECK enum status device_open(const struct device_options *options, struct device *out,
                                   struct reason *reason);
/* Zeroed is fine. */
void device_close(struct device *device);

/* Waits until the event has happened, without blocking in the driver. Errors: the backend's. */
MUST_CHECK enum status device_wait(const struct device *device, struct event *event);

/* Describes the device in a line: its make and what it runs with, but not what was chosen for a
 * job. ST_FULL, ST_NOT_FOUND: it can't tell. */
MUST_CHECK enum status device_text(const struct device *device, char *out, size_t capacity);

/* Returns the bytes that the device has free now. ST_NOT_FOUND: it can't tell. */
MUST_CHECK enum status device_free_bytes(const struct device *device, uint64_t *out);
/* Returns the bytes that the device has in all: as many on all devices of its kind. ST_NOT_FOUND:
 * it can't tell. */
MUST_CHECK enum status device_total_bytes(const struct device *device, uint64_t *out);
