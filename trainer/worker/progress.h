/*
 * Where the step thread is, and where its time went. The session hears of it (is it alive?), the
 * flight recorder keeps it (what the dead leave behind), the metric row has times per phase.
 *
 * Thread: the step thread; progress_tick from any, progress_exchange from the reduction's.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/flight.h"
#include "session/session.h"

enum phase {
    PHASE_FORMING, /* data, model, communication */
    PHASE_RESTORE,
    PHASE_DATA, /* of a step: waiting for the prefetch thread */
    PHASE_FORWARD,
    PHASE_BACKWARD,
    PHASE_REDUCE, /* exposed communication */
    PHASE_UPDATE, /* optimizer */
    PHASE_SAVE,   /* snapshot stall */
    PHASE_EVALUATION,
    PHASE_FINISHING,
    PHASE_COUNT,
};
struct progress {
    struct session *session; /* NULL: without a coordinator */
    struct flight *flight;   /* or NULL */
    uint32_t rank, generation;
    uint64_t step; /* finished steps */
    enum phase phase;
    int64_t since_ns; /* of this phase */
    int64_t spent_ns[PHASE_COUNT];
    uint64_t collective; /* number of the last one; from 1 on */
};

void progress_init(struct progress *progress, struct session *session, struct flight *flight,
                   uint32_t rank, uint32_t generation);
/* The next phase begins; the time since the last call counts for the one before. */
void progress_phase(struct progress *progress, enum phase phase);
/* `step` steps are finished now. Fault points compare with it, too. */
void progress_step(struct progress *progress, uint64_t step);
/* Forgets the times spent so far. */
void progress_clear(struct progress *progress);
double progress_ms(const struct progress *progress, enum phase phase);
/* One unit of work is done: a node, a chunk, a MiB. progress: a struct progress. */
void progress_tick(void *progress);
/* A collective begins or ended (flight recorder, session). name is static text. */
void progress_collective_begin(struct progress *progress, const char *name);
void progress_collective_end(struct progress *progress, const char *name);
/* An exchange of the reduction begins or ended; progress: a struct progress. From the reduction's
 * thread only. */
void progress_exchange(void *progress, bool inside);
