/*
 * What a process of a job's own program writes: into the worker's log line by line, looked through
 * for the finished step, and the last lines kept for the report of a failure.
 *
 * A line ends at '\n' or '\r'. Of lines that end with '\r', which repaint a progress bar, one a
 * second goes to the log. Longer lines than OUTPUT_LINE are cut into several.
 *
 * Thread: one at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/pattern.h"
#include "common/status.h"

#define OUTPUT_LINE      8192
#define OUTPUT_LAST      256 /* lines that are kept: Python's stacks of some threads */
#define OUTPUT_LAST_LINE 320 /* bytes of each, with the NUL */

struct output {
    int log_fd;                     /* borrowed */
    const char *label;              /* each line in the log begins with it; borrowed */
    const struct pattern *progress; /* finds the finished step; NULL: none; borrowed */
    char line[OUTPUT_LINE];
    size_t used; /* of line: not ended yet */
    char last[OUTPUT_LAST][OUTPUT_LAST_LINE];
    uint64_t lines;      /* so many came; the newest is last[(lines - 1) % OUTPUT_LAST] */
    uint64_t matches;    /* lines that had a step other than the one before */
    uint64_t step;       /* the highest; 0: none yet */
    uint64_t step_found; /* the newest */
    int64_t painted_ms;  /* a line that ended with '\r' went to the log */
};

/* Reads what is there, 64 KiB at most, and goes through it. False: the end, fd can be closed. */
bool output_read(struct output *output, int fd, int64_t now_ms);
/* Goes through text as if it had been written. */
void output_add(struct output *output, const char *text, size_t size, int64_t now_ms);
/* Goes through what has no end of line, if there is such. */
void output_flush(struct output *output);
/* Returns the n-th line from the end, 0 the newest; NULL: there is none, or none any more. */
const char *output_last(const struct output *output, size_t n);
/* Returns the newest line that says something: not blank, and no traceback's frame. NULL: none. */
const char *output_last_words(const struct output *output);
/* Where a Python program was, as faulthandler wrote it last. */
struct output_stack {
    char at[OUTPUT_LAST_LINE]; /* "train.py, line 12 in step": the innermost frame that is no
                                * library's, else the innermost; "": there is none */
    bool waits; /* the innermost frame is in torch.distributed: it waits for other ranks */
};
/* Finds the newest stack of the thread that was running. */
struct output_stack output_python_stack(const struct output *output);
