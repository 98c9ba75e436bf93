/*
 * What runs a program, for the sources of this folder: command.c starts, watches and ends it,
 * hang.c finds one that hangs. Here is what both wait in.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "trainer/command/failure.h"
#include "trainer/command/launch.h"
#include "trainer/command/options.h"
#include "trainer/command/output.h"
#include "trainer/command/preload.h"
#include "trainer/command/process.h"
#include "trainer/command/relayed.h"

#define WORKER_LOOK_MS 100 /* between two looks at what gives no descriptor */

/* A process of the program and what it writes. */
struct command_member {
    struct output output;
    char label[24];
    int64_t moved_ms; /* it got on, as far as can be seen */
    uint64_t seen;    /* matches or lines then */
};

struct command_worker {
    int wake_fd;
    _Atomic int stop;        /* enum command_stop */
    bool adopts;             /* orphans come to this process */
    struct preload *preload; /* of all runs; NULL: processes are started cold */
    bool cold;               /* the interpreter was given up */
    struct launch_listening listening;

    /* Members of one run. */
    const struct command_options *options;
    uint32_t count; /* processes */
    struct process processes[COMMAND_PROCESSES_MAX];
    struct command_member *members; /* [count] */
    struct pattern *progress;
    struct failure_patterns patterns;
    struct launch_place place;
    int64_t first_ms;    /* when rank 0 was started, which is looked at; 0: not */
    struct relay *relay; /* NULL: the job saves nothing */
    struct relay_news news;
    uint64_t step;
    int64_t began_wall_ms;
};

int64_t worker_now_ms(void);
/* Waits until something happens, timeout_ms at most; then reads what was written, and reaps. */
void worker_turn(struct command_worker *c, int timeout_ms);
/* Adds what PyTorch's flight recorder says to a failure of a process (trace.h). */
void worker_add_trace(const struct command_worker *c, uint32_t i, struct command_failure *failure);
/* Closes what a process of the program wrote to, after its last line. */
void worker_close_said(struct command_worker *c, uint32_t i);
