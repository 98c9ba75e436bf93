/*
 * The record of one recovery: which generation ended and why, what the next one went on from, and
 * where the seconds in between went. A job's state machine keeps the newest one and fills it in;
 * the journal has one for each generation after the first, in that generation's row.
 *
 * States, and who makes each transition:
 *
 *   NONE, DONE, CUT -> ENDING   [recovery_begin]  a generation failed, or ended as planned
 *   ENDING          -> FORMING  [recovery_form]   the next generation is formed
 *   FORMING         -> DONE     [recovery_close]  the high-water mark of finished steps is reached
 *   FORMING         -> CUT      [recovery_close]  that generation ended before
 *
 * A job that ends for good leaves its record ENDING: no generation followed.
 *
 * Pure: no clock, no memory of its own. Units: wall_ms Unix ms, the rest ms.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/limits.h"

#define RECOVERY_ALL_RANKS   UINT32_MAX /* as the blamed rank: none is blamed */
#define RECOVERY_PHASE_BYTES 32

/* The states of a record. Their numbers, and those of the kinds below, are journalled. */
enum recovery_state {
    RECOVERY_NONE, /* there was none yet */
    RECOVERY_ENDING,
    RECOVERY_FORMING, /* also while steps are trained again */
    RECOVERY_DONE,
    RECOVERY_CUT,
};

/* The source of the state that a generation went on from. */
enum recovery_kind {
    RECOVERY_SEED, /* there was nothing else */
    RECOVERY_CHECKPOINT,
    RECOVERY_MEMORY, /* copies in memory */
    RECOVERY_LIVE,   /* workers that went on */
};
#define RECOVERY_KINDS (RECOVERY_LIVE + 1)
const char *recovery_kind_name(enum recovery_kind kind); /* "seed", "checkpoint", ... */

/* The parts of a recovery, in the order in which they pass. */
enum recovery_part {
    RECOVERY_DETECT,  /* from the last progress until the failure was noticed */
    RECOVERY_END,     /* until the old generation was gone */
    RECOVERY_WAIT,    /* for slots, or before trying again */
    RECOVERY_FORM,    /* until all workers had said hello, and had their assignments */
    RECOVERY_RESTORE, /* until they trained */
    RECOVERY_REPLAY,  /* until the steps that had been finished before were finished again */
};
#define RECOVERY_PARTS (RECOVERY_REPLAY + 1)
const char *recovery_part_name(enum recovery_part part);

struct recovery {
    enum recovery_state state;
    enum recovery_kind kind;
    uint32_t ended, generation; /* which ended; which was formed, 0: none yet */
    uint32_t fault;             /* the owner's kinds; 0: it ended as planned */
    uint32_t rank;              /* blamed, or RECOVERY_ALL_RANKS */
    char node[LIMIT_NAME];      /* of that rank; "": none */
    char phase[RECOVERY_PHASE_BYTES];
    char message[LIMIT_REASON];
    uint64_t mark; /* finished steps, when it failed */
    uint64_t step; /* from which the next generation went on */
    int64_t wall_ms;
    int64_t booked_ms; /* wall time: until then the parts are booked */
    int64_t ms[RECOVERY_PARTS];
};

/* Begins the record as a generation ended; wall_ms: when that was noticed. detect_ms: since the
 * last progress. */
void recovery_begin(struct recovery *r, uint32_t ended, uint64_t mark, int64_t detect_ms,
                    int64_t wall_ms);
/* Sets, while ENDING, why the generation ended. Whatever is known later takes the place of what was
 * said before. Texts are cut. */
void recovery_blame(struct recovery *r, uint32_t fault, uint32_t rank, const char *node,
                    const char *phase, const char *message);
void recovery_form(struct recovery *r, uint32_t generation);
/* Sets, while FORMING, what that generation goes on from, and the mark, as far as it is known by
 * now. */
void recovery_restored(struct recovery *r, enum recovery_kind kind, uint64_t step, uint64_t mark);
/* Closes a record that is FORMING: DONE or CUT. late_ms: the part of the replay that was none, but
 * the wait for the next failure to be noticed. */
void recovery_close(struct recovery *r, bool done, int64_t late_ms);
/* Books, while ENDING or FORMING, time of that part that passed, until wall_ms. */
void recovery_book(struct recovery *r, enum recovery_part part, int64_t ms, int64_t wall_ms);
/* True while the recovery is under way: time is booked for it. */
bool recovery_open(const struct recovery *r);

/* Returns how many finished steps are trained again; 0: none, or not known yet. */
uint64_t recovery_steps_lost(const struct recovery *r);
/* Returns the time of all parts together. */
int64_t recovery_total_ms(const struct recovery *r);
