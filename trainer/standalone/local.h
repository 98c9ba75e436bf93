/*
 * Training without a coordinator: one process, all lanes. For tests, benches, and for looking at a
 * job: `cairn-trainer --local JOBFILE`.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct local_options {
    const char *job_path;
    const char *const *sets; /* "key=value" */
    size_t set_count;
    uint64_t stop_at;  /* finished steps; 0: the job's end */
    bool digest_only;  /* prints nothing but the digest */
    bool inputs_only;  /* looks whether data and weights fit the job, and prints nothing else */
    bool preview_only; /* prints what would run (preview.h) and trains nothing */
    const char *import_file; /* not NULL: imports weights (import.h) and trains nothing */
    const char *import_dir;
    bool quiet, json; /* of an import */
};

#define LOCAL_FITS_NOT 3
/* Prints a line per step and the digest of the final state. Returns an exit code: 0; 1; 2: the user
 * must act; of inputs that don't fit LOCAL_FITS_NOT. */
int local_run(const struct local_options *options);
