/*
 * One rank of a generation under a coordinator: from the session's hello to the exit code.
 *
 *   join      a link, a session; session_join waits for the assignment
 *   form      job file, data, model, communicator, reduction
 *   state     from copies, a checkpoint or the seed
 *   ready     session_set_ready; copies to other nodes begin
 *   train     the step loop, until it is done, left or over
 *
 * A spare: join, form without a communicator, warm (the data are loaded, the model is prepared);
 * then it waits, as one that has parked, for the generation in which it gets a seat.
 *
 * A failure is reported to the coordinator first, with its kind; then the process waits, 10 s at
 * most, to be told that the generation is over. Whenever it is told so, it leaves at once from
 * where it is: files of its own that are half written belong to a save that cannot commit any more.
 */
#pragma once

#include <stdint.h>

/* Exit codes, for people: the agent and the coordinator go by what was reported. */
enum rank_exit {
    RANK_DONE = 0,
    RANK_FAILED = 1,        /* a cause of its own */
    RANK_USER = 2,          /* the job can't run as written */
    RANK_COMMUNICATION = 3, /* a peer is gone, or the coordinator */
    RANK_OVER = 4,          /* the coordinator said that this generation is over */
    RANK_NUMERIC = 5,
    RANK_CHECKPOINT = 6, /* damaged, or the store failed */
};

struct rank_options {
    const char *job;
    uint32_t generation;
    uint32_t number;         /* of the worker: flag --rank; the generation gives it a rank */
    const char *coordinator; /* target of the channel */
    const char *token;       /* the generation's: for the coordinator, and among workers */
    const char *tls_ca;      /* authorities of the coordinator's certificate; NULL: plaintext */
    const char *words_path;  /* file for the last words */
    const char *flight_path; /* flight recorder; NULL: none */
    const char *copies;      /* folder for copy files; NULL: none */
    const char *sums;        /* folder for hashes of data (trainer/data/sums.h); NULL: none */
    const char *peaks;       /* folder for measured peaks (trainer/peak/peak_cache.h); NULL: none */
};

/* Returns an exit code. */
int rank_run(const struct rank_options *options);
