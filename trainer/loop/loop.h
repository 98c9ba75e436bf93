/*
 * The step loop: from the finished step `step` to the job's last one, or to the one that the
 * coordinator says to stop at.
 *
 * Per step: compute and reduce, update, evaluate when due, hand out the row of metrics, save when
 * due. The row goes before the save, so that a coordinator that has the checkpoint of a step has
 * its rows, too. A step of the skip list advances the count and changes nothing else.
 *
 * Own code allocates nothing after the first step. Thread: the step thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/reason.h"
#include "common/status.h"
#include "session/session.h"
#include "trainer/state/state.h"
#include "trainer/worker/worker.h"

struct loop_options {
    struct worker *worker;
    struct session *session;           /* NULL: without a coordinator; then nothing is saved */
    const struct state_beside *beside; /* with a session; what goes into its saves */
    uint64_t step;                     /* finished already */
    uint64_t stop_at;                  /* finished steps to stop at; 0: the job's end */
    /* Gets every row on every rank; may be NULL. */
    void (*row)(void *arg, const struct session_row *row);
    void *row_arg;
};

enum loop_end {
    LOOP_DONE, /* all steps are finished and, with a session, the last save is committed */
    LOOP_LEFT, /* left after a save, as the coordinator wanted */
    LOOP_OVER, /* the generation ended meanwhile */
};

/*
 * Errors: reason says what failed
 *         ST_PEER     communication
 *         ST_NUMERIC  loss or gradient not finite; the step count is that before the step
 *         others
 */
MUST_CHECK enum status loop_run(const struct loop_options *options, enum loop_end *out,
                                struct reason *reason);
