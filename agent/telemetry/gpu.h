/*
 * The node's GPUs and their health, by NVML.
 *
 * A thread of its own asks once a second, since a driver whose GPU fell off the bus may not answer
 * for minutes; gpu_read gives what it saw last. A problem stays until the agent is started again:
 * a GPU that failed once takes no worker before a person looked at it.
 *
 * What counts as a problem: an Xid that means broken hardware or a lost GPU (the table in gpu.c), a
 * new uncorrected ECC error, a driver that gives no answer for GPU_SILENT_MS. Heat and power
 * throttling are reported but are no problem: the job only gets slower.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/limits.h"
#include "common/log.h"
#include "common/status.h"

#define GPU_SILENT_MS INT64_C(15000)

struct gpu_state {
    uint64_t memory_bytes, memory_used_bytes;
    uint64_t ecc_errors;  /* uncorrected, since boot */
    uint32_t capability;  /* 90: 9.0 */
    uint32_t temperature; /* degrees Celsius */
    bool throttled;
    double utilization; /* 0..1; NaN: the driver doesn't tell, as where the GPU is in parts (MIG) */
    double power_watts; /* NaN: likewise */
    char name[64], uuid[64], driver[32];
    char problem[LIMIT_NAME]; /* "" : none */
};

/*
 * Which GPUs: those that CUDA_VISIBLE_DEVICES of the agent's own environment lists, as a cluster's
 * scheduler sets it (numbers, in the order of the bus, or UUIDs); without that variable all. A
 * worker is shown its own by UUID: the numbers of NVML and of CUDA differ where GPUs do.
 */
struct gpu_watch;

/*
 * library: NULL for the system's; `log` is borrowed for life. Without a driver *out is NULL and the
 * node has no GPUs. Errors: ST_NO_MEMORY; a driver that can't be used is logged and counts as none.
 */
MUST_CHECK enum status gpu_watch_open(const char *library, const struct log *log,
                                      struct gpu_watch **out);
/* Waits 2 s at most for the driver; NULL is fine. */
void gpu_watch_close(struct gpu_watch *watch);

/* Fills out with up to `capacity` GPUs, by ordinal, and returns how many there are. */
size_t gpu_read(struct gpu_watch *watch, struct gpu_state *out, size_t capacity);
