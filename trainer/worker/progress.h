/*
 * Where the step thread is and where its time went: told to the session (progress), to the flight
 * recorder (what the dead leave behind) and summed per phase (the metric row).
 *
 * Thread: the step thread; marks_tick from any.
 */
#pragma once

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
/* "forming", …; static. */
const char *phase_name(enum phase phase);

struct marks {
    struct session *session; /* NULL: without a coordinator */
    struct flight *flight;   /* or NULL */
    uint32_t rank, generation;
    uint64_t step; /* finished steps */
    enum phase phase;
    int64_t since_ns; /* of this phase */
    int64_t spent_ns[PHASE_COUNT];
    uint64_t collective; /* number of the last one */
};

void marks_init(struct marks *marks, struct session *session, struct flight *flight, uint32_t rank,
                uint32_t generation);
/* The next phase begins; the time since the last call goes to the one before. */
void marks_phase(struct marks *marks, enum phase phase);
/* `step` steps are finished now; also what fault points compare with. */
void marks_step(struct marks *marks, uint64_t step);
/* Forgets the times spent so far. */
void marks_clear(struct marks *marks);
double marks_ms(const struct marks *marks, enum phase phase);
/* One unit of work is done: a node, a chunk, a MiB. marks is a struct marks. */
void marks_tick(void *marks);
/* A collective begins or ended (flight recorder). */
void marks_collective_begin(struct marks *marks, const char *name);
void marks_collective_end(struct marks *marks, const char *name);
