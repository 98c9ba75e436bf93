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
