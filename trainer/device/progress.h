/*
 * Position of the step thread, and the time it spent in each phase. The session hears of it (is it
 * alive?), the flight recorder keeps it for after a crash, the metric row has times per phase.
 *
 * It lives as long as the process, so that threads that outlive a generation, such as those that
 * load the data, can tick at any time; the session of a generation doesn't.
 *
 * Thread: the step thread; progress_tick and progress_stop from any, progress_exchange from the
 *         reduction's.
 */
#pragma once

#include <stdatomic.h>
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
    PHASE_AUDIT,
    PHASE_SPARE, /* of a spare, instead of forming */
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

    /* Members of all generations, which may change at any time. */
    _Atomic uint64_t ticks;
    atomic_bool stopped; /* this generation is over */
};

/* Begins the process, with *progress all zero, or another generation; ticks go on. rank: for fault
 * points, until progress_rank sets another. */
void progress_init(struct progress *progress, struct session *session, struct flight *flight,
                   uint32_t rank, uint32_t generation);
void progress_rank(struct progress *progress, uint32_t rank);
/* Begins the next phase; the time since the last call counts for the phase before. */
void progress_phase(struct progress *progress, enum phase phase);
/* Notes that the step thread begins to wait for another stage of a pipeline, or no longer does. It
 * is reported instead of the phase; its time counts for the phase. */
void progress_pipe(struct progress *progress, bool inside);
/* Sets the number of finished steps. Fault points compare with it, too. */
void progress_step(struct progress *progress, uint64_t step);
/* Forgets the times spent so far. */
void progress_clear(struct progress *progress);
double progress_ms(const struct progress *progress, enum phase phase);
/* Returns the time in all phases of a share of lanes (data, forward, backward) since
 * progress_clear. */
int64_t progress_lanes_us(const struct progress *progress);
/* Counts one more unit of work: a node, a chunk, a MiB. progress: a struct progress. Thread: any;
 * the session hears of it by its option `ticks`. */
void progress_tick(void *progress);
/* Marks the generation as over, until progress_init: the step thread's work for it is worthless.
 * Thread: any */
void progress_stop(struct progress *progress);
bool progress_stopped(const struct progress *progress);
/* Note that a collective begins or ended (flight recorder, session). name is static text. */
void progress_collective_begin(struct progress *progress, const char *name);
void progress_collective_end(struct progress *progress, const char *name);
/* Notes that an exchange of the reduction begins or ended; progress: a struct progress. From the
 * reduction's thread only. */
void progress_exchange(void *progress, bool inside);
