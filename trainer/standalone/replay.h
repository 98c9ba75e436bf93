/*
 * Computing an interval of a job once more, here: `cairn-trainer --replay DIR [--from DIR]`, which
 * `cairn audit` runs. What no audit within a job can see (an owner's additions, an error that
 * happened once) shows when another machine comes to other bits.
 *
 * The later checkpoint brings all that it takes: the job file, the skipped steps, the pins. One
 * process computes all lanes, at the lowest priority; nothing is saved.
 */
#pragma once

#include <stdbool.h>

struct replay_options {
    const char *to;   /* folder of the later checkpoint */
    const char *from; /* of the earlier one, of the same job; NULL: from the seed */
    bool quiet, json;
};

/* Prints what came of it. Returns an exit code of those of `cairn`: 0: the bits are equal; 1: they
 * are not; 10: training failed. Refused (4) where this machine would compute other bits anyway: its
 * pins differ. */
int replay_run(const struct replay_options *options);
