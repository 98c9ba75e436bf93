/*
 * The step loop: from the finished step `step` to the job's last one, or to the one that the
 * coordinator says to stop at.
 *
 * Per step: compute and reduce, update, evaluate when due, hand out the row of metrics, save when
 * due. The row goes before the save, so that a coordinator that has the checkpoint of a step has
 * its rows, too. A step of the skip list advances the count and changes nothing else.
 *
 * Own code allocates nothing after the first step. Thread: the step thread.
 *
 * Where a generation ends, the loop ends wherever it is; what was finished goes on in the next one
 * (struct loop_resume_point). k: finished steps.
 *
 *     it ends                              state   left of step k
 *     before step k + 1, or in its         k       nothing. A snapshot of k that is being copied is
 *       forward, backward, reduction               waited for by session_park; its save is given up
 *     in the update of step k + 1,         k       nothing
 *       before anything is written
 *     ... once something is                none    an error of the device; where ranks exchange
 *                                                  what they updated, a peer's end
 *     after a device that nobody waited    –       whoever looks at the state gets its error, and
 *       for has failed in the update               the process ends
 *     in the evaluation after step k       k       evaluation, row, save
 *     after it, before the row is out      k       cannot end there
 *     as the ranks' states are compared    k       save
 *     as ranks agree how often copies are  k       save
 *       taken (session/memory/copy_interval.h)
 *     as the snapshot of k is begun        k       save
 *     while the last save, of k, is        k       save
 *       waited for
 *     after Finished was said              –       the process ends as if nothing had happened
 *
 * Ranks may end at different ones of these for the same k. In the next generation all of them do
 * what any of them lacks: evaluation and row, if a source of the state lacks them (all give the
 * same bits; a row that comes twice is the same but for its times); the save, if step k has one
 * and it isn't committed.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/reason.h"
#include "common/status.h"
#include "session/session.h"
#include "trainer/state/state.h"
#include "trainer/worker/worker.h"

/* The last finished step, and the work that is left of it. Sent to other workers as it is: a note
 * of trainer/state/live_sync.h. */
struct loop_resume_point {
    uint64_t step;     /* finished */
    uint32_t complete; /* the state is that after it */
    uint32_t row;      /* the step's evaluation, if it has one, and its row are left: */
    float loss, lr, grad_norm;
    uint32_t reserved;
    double epoch, samples_per_s, step_ms;
};
/* Merges the notes of workers that have the same step: work is left if any of them lacks it. */
void loop_resume_point_merge(struct loop_resume_point *resume,
                             const struct loop_resume_point *other);

struct loop_options {
    struct worker *worker;
    struct session *session; /* NULL: without a coordinator; then nothing is saved */
    bool adapts_interval;    /* with a session: their cost decides how often copies are taken */
    const struct state_beside *beside; /* with a session; what goes into its saves */
    uint64_t step;                     /* finished already */
    uint64_t stop_at;                  /* finished steps to stop at; 0: the job's end */
    /* In: the work left of `step`, if the loop goes on from an earlier generation (goes_on). Out:
     * what was finished, whatever is returned. May be NULL. */
    struct loop_resume_point *resume;
    bool goes_on;
    uint64_t committed; /* with goes_on: the newest checkpoint's step */
    /* With ST_WRONG: 1 + the rank that computed wrongly. With ST_NUMERIC: 1 + the rank whose lanes
     * alone weren't finite. 0: unknown. */
    uint32_t *wrong;
    uint64_t *good; /* ... and the step up to which nothing was wrong; both or neither */
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
 *         ST_WRONG    ranks computed different bits (audit.h)
 *         ST_NUMERIC  loss or gradient not finite; the step count is that before the step
 *         others
 */
MUST_CHECK enum status loop_run(const struct loop_options *options, enum loop_end *out,
                                struct reason *reason);
