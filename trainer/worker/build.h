/*
 * A job's data and model: from the job file's words to the options of data/ and models/.
 *
 * Thread: any.
 * Errors: ST_CONFIG  reason is one line "place: cause; way out"
 *         others     reason is a cause
 */
#pragma once

#include <stddef.h>

#include "common/io.h"
#include "common/reason.h"
#include "common/status.h"
#include "jobspec/jobspec.h"
#include "trainer/data/dataset.h"
#include "trainer/tape/tape.h"

struct build_options {
    const struct jobspec *job; /* borrowed for the call */
    const struct io *io;       /* borrowed for the data set's life */
    enum dataset_split split;
    const char *sums;            /* folder of the node (trainer/data/sums.h), or NULL; for life */
    void (*progress)(void *arg); /* per MiB read or hashed; may be NULL */
    void *progress_arg;
};

/* Opens one split; the job must have it. The caller owns *out. */
MUST_CHECK enum status build_dataset(const struct build_options *options, struct dataset **out,
                                     struct reason *reason);

/* The model for samples like those of data, without weights. The caller owns *out. */
MUST_CHECK enum status build_tape(const struct jobspec *job, const struct dataset *data,
                                  struct tape **out, struct reason *reason);

#define BUILD_PINS_BYTES 160

struct built_model {
    struct tape *tape;           /* owned by the caller, as the graph */
    struct jobspec_graph *graph; /* of a model of one's own; NULL: of another */
    char pins[BUILD_PINS_BYTES]; /* JSON: what the model is known by; "": by the job alone */
};

/* Like build_tape, with more of the model. progress: as in build_options. */
MUST_CHECK enum status build_model(const struct build_options *options, const struct dataset *data,
                                   struct built_model *out, struct reason *reason);
