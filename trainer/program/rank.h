/*
 * One rank of a generation under a coordinator: from the session's hello to the exit code.
 *
 *   start → session_open → session_join (the plan) → forming: data, model, communication, reduction
 *   → restore or seed → session_set_ready → the step loop → finishing
 *
 * What fails is told to the coordinator first, with its kind; then the process waits, 10 s at most,
 * to be told that the generation is over. When it is told so, at any time, it leaves at once from
 * where it is: files of its own that are half written belong to a save that cannot commit any more.
 */
#pragma once

#include <stdint.h>

/* Exit codes; the agent and the coordinator go by the report, these are for people. */
enum rank_exit {
    RANK_DONE = 0,
    RANK_FAILED = 1,        /* a cause of its own */
    RANK_USER = 2,          /* the job can't run as written */
    RANK_COMMUNICATION = 3, /* a peer is gone, or the coordinator */
    RANK_OVER = 4,          /* told that this generation is over */
    RANK_NUMERIC = 5,
    RANK_CHECKPOINT = 6, /* damaged, or the store failed */
};

struct rank_options {
    const char *job;
    uint32_t generation, rank;
    const char *coordinator; /* target of the channel */
    const char *token;
    const char *words_path;
    const char *flight_path; /* NULL: none */
    const char *copies;      /* folder for copies in memory; NULL: none */
};

int rank_run(const struct rank_options *options);
