/*
 * What the end of a process of a job's own program means: to the coordinator, and in words.
 */
#pragma once

#include <stdbool.h>

#include "cairn/v1/common.pb-c.h"
#include "common/reason.h"
#include "jobspec/jobspec.h"
#include "trainer/command/output.h"

/* How the program failed. */
struct command_failure {
    Cairn__V1__FaultKind kind;
    bool outside;   /* a signal that nobody here sent */
    bool of_node;   /* another node may have what lacks here */
    bool late;      /* others may know more: it seems to follow from a failure of theirs */
    uint32_t shard; /* a damaged checkpoint: 1 + the file of it that is; 0: not known */
    struct reason why;
};

/* Compiled patterns of `restart.on_output`. */
struct failure_patterns {
    struct pattern *list[JOBSPEC_TEXTS_BYTES / 8];
    size_t count;
};

/* True if wait status `status` is that of success. */
bool failure_is_success(int status);
/*
 * Judges how the process of rank `rank` ended: wait status, and what it wrote. A code that the job
 * doesn't restart on (128 + N for signal N) fails the job (kind USER), unless on_output has one of
 * its last lines, or they say that a peer is gone. Signals by which people and systems end
 * processes are nobody's fault.
 */
struct command_failure failure_of_exit(const struct jobspec *job,
                                       const struct failure_patterns *patterns, uint32_t rank,
                                       int status, const struct output *output);
