/*
 * A journal that is lost, or can't be read: seen before anything is done with it, and made anew
 * from the jobs' checkpoints (`cairnd --recover`).
 *
 * A journal made anew has what checkpoints know: for each job its file, pins and checkpoints. Of
 * these the manifest is complete and every file there with its size; they are read back later, as
 * all are. A job whose last step is among them has SUCCEEDED; any other is PAUSED, for it may have
 * been stopped on purpose. Events, metrics, attempts, drains and what was asked for are gone.
 *
 * Generations: the job goes on FSM_RESTORE_GAP above the highest of which its folder speaks,
 * and the folder says so before the journal does (ckpt_used_generation_write). So no number is used
 * twice, however often a journal is lost: workers of before are ended as of an old generation.
 *
 * Thread: one at a time per state folder; other processes are kept out by the journal's lock.
 */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "common/io.h"
#include "common/reason.h"
#include "common/status.h"
#include "server/journal/journal.h"

#define REBUILD_JOURNAL "cairnd.db" /* in the state folder */

/*
 * Whether cairnd may open the journal of a state folder (HOME/state). Changes nothing.
 * Errors: as journal_look, one being known to have been there where the folder holds anything else,
 *         or HOME/jobs does; reason begins with "it", too
 */
MUST_CHECK enum status rebuild_look(const char *state, const struct journal_watch *watch,
                                    struct reason *reason);

struct rebuild_options {
    const struct io *io; /* of the stores */
    const char *state;   /* the state folder; it is made where it is missing */
    const char *const *stores;
    size_t store_count; /* at least 1 */
    int64_t wall_ms;    /* now */
    FILE *out;          /* what was made anew, and what wasn't and why */
};

/*
 * Makes the journal anew and puts it in its place; what lies there gets another name. May be
 * repeated after it was cut off.
 * Errors: ST_EXISTS     a cairnd holds the state folder
 *         ST_REFUSED    the journal that is there is good
 *         ST_NOT_FOUND  no job could be made anew, or there is no such store
 *         others        a store, or the state folder, can't be read or written now
 *         The journal's place is then as it was, and reason says why; stores may have got the
 *         note of a used generation
 */
MUST_CHECK enum status rebuild_run(const struct rebuild_options *options, struct reason *reason);
