/*
 * What processes and the machine use, sampled from /proc.
 *
 * A sample keeps what the next one needs to tell rates. It costs a few reads of small files: some
 * ten microseconds for a process, some more for the machine; nothing waits for a disk or a network.
 *
 * Which network interfaces count: those that have a device behind them (a card, one of a virtual
 * machine); where there are none, as in a container, all but the loopback. So nothing that goes
 * through a bridge, a bond or a tunnel is counted twice. Of one process the kernel doesn't tell.
 *
 * Thread: one at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/status.h"

#define USAGE_EVERY_MS 2000 /* between two samples, at least: ticks of /proc are of 10 ms */

/* A process; starts zeroed. */
struct usage_process {
    uint64_t samples;            /* so far; 0: nothing below is known */
    int64_t at_ns;               /* the newest, monotonic */
    double cpu_seconds;          /* since it began */
    double cores;                /* kept busy since the sample before; NaN: this is the first */
    uint64_t memory_bytes;       /* resident */
    uint64_t memory_limit_bytes; /* of its control group, or of one above; 0: none */
    uint32_t threads;
};

/* start_time: as of struct proc_stat, which tells it from a later process of that number.
 * Errors: ST_NOT_FOUND: it is gone, or ended; ST_INVALID: no such file as was expected. Then
 *         nothing is known of it any more. */
MUST_CHECK enum status usage_process_sample(struct usage_process *usage, pid_t pid,
                                            uint64_t start_time, int64_t now_ns);

/* The machine; starts zeroed. */
struct usage_machine {
    uint64_t samples;
    int64_t at_ns;
    double
        cpu_seconds; /* of all processors, since boot: not idle, not waiting for a disk, not taken
                           by the host of a virtual machine */
    double cores;
    uint32_t cores_count; /* processors on line */
    uint64_t memory_bytes, memory_available_bytes;
    uint64_t received_bytes, sent_bytes; /* since boot */
    double received_bytes_per_s, sent_bytes_per_s;
};

/* Errors: as above */
MUST_CHECK enum status usage_machine_sample(struct usage_machine *usage, int64_t now_ns);

/* ---- what files say ---- */

/* Clock ticks that processors were busy, by the text of /proc/stat. false: it isn't there. */
bool usage_busy_ticks(const char *text, uint64_t *out);

/* Sums over the interfaces that `counts` has, by the text of /proc/net/dev; returns how many these
 * are. What isn't a line of an interface is skipped. */
size_t usage_network(const char *text, bool (*counts)(const char *name), uint64_t *out_received,
                     uint64_t *out_sent);
