/*
 * A checkpoint's folder with the weights of a safetensors file: `cairn-trainer --import FILE
 * --job-file JOBFILE --to DIR`, which `cairn ckpt import` runs.
 *
 * The folder holds the state of step 0 of a job with model.weights: FILE: parameters and statistics
 * from the file, moments zero. A job that has model.weights itself starts from the same bits.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "jobspec/jobspec.h"

struct import_options {
    struct jobspec *job; /* import sets model.weights to file */
    const char *file;    /* safetensors */
    const char *dir;     /* of the checkpoint, which must not be there yet */
    bool quiet;
    bool json;
};

/* Prints what it did. Returns an exit code of those of `cairn`. */
int import_run(const struct import_options *options);
