/*
 * A library that makes a graph (library/model.h). It is code of a user's: a process of its own
 * loads it, `cairn-trainer --model`, and prints the graph as text, which is read like that of a job
 * file. So what the library breaks, or how it ends, is that process's alone.
 *
 * Thread: any.
 */
#pragma once

#include <stdint.h>

#include "checkpoint/checkpoint.h"
#include "common/reason.h"
#include "common/status.h"
#include "jobspec/graph/graph.h"

/* What the model reads: as struct cairn_sample. */
struct library_sample {
    int64_t input[3]; /* channels, height, width; 0: tokens */
    int64_t classes, context, vocab;
};

struct library_options {
    const char *path;
    const char *program; /* cairn-trainer; NULL: this process's own */
    struct library_sample sample;
    bool half;                   /* graph_check_half is asked */
    void (*progress)(void *arg); /* called every now and then; NULL: nobody */
    void *progress_arg;
};

struct library_made {
    struct ckpt_hash library; /* of the file's bytes */
    struct ckpt_hash graph;   /* of the graph as text */
};

/*
 * Has a library make its graph, and checks it.
 * Errors: ST_CONFIG  the library can't be read or used, or what it makes can't; reason says why
 *         others     no process can be started; reason says so
 */
MUST_CHECK enum status library_graph(const struct library_options *options,
                                     struct jobspec_graph *out, struct library_made *made,
                                     struct reason *reason);

/*
 * `cairn-trainer --model FILE --sample NUMBERS`: loads the library in this process, and prints its
 * graph to standard output; what the library prints goes to standard error. sample:
 * "CHANNELS,HEIGHT,WIDTH,CLASSES" or "CONTEXT,VOCAB".
 * Returns an exit code: 0; 2 usage; 3 refused, and the reason is printed in place of the graph.
 */
int library_run(const char *path, const char *sample);
