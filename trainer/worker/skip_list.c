/*
 * The skip list of a worker: steps that are not trained on. Of those that are past only how many
 * they are counts, so a list that is full forgets the oldest.
 *
 *     skip[0]                CKPT_SKIPS_OLDER and how many were forgotten; unused while none were
 *     skip[1 .. skip_count]  the others, ascending
 *
 * Behind them a checkpoint's list has the notes of the history (trainer/update/history.h).
 */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/notes.h"
#include "trainer/worker/worker.h"

static enum status make_room(struct worker *w)
{
    if (w->skip_count < w->skip_room)
        return ST_OK;
    const size_t room = w->skip_room == 0 ? 64 : 2 * w->skip_room;
    uint64_t *more = realloc(w->skip, (1 + room) * sizeof(*more));
    if (more == NULL)
        return ST_NO_MEMORY;
    w->skip = more;
    w->skip_room = room;
    return ST_OK;
}

/* Counts the listed steps before `step`. */
static size_t listed_before(const struct worker *w, uint64_t step)
{
    size_t low = 0, high = w->skip_count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (w->skip[1 + middle] < step) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Counts more steps that aren't listed. */
static void note_older(struct worker *w, uint64_t count)
{
    w->skip_older += count;
    w->skip[0] = CKPT_SKIPS_OLDER | w->skip_older;
}

/* Forgets the oldest steps until the list has place for one more. */
static void forget_oldest(struct worker *w)
{
    const size_t most = CKPT_SKIPS_MAX - (w->noted != NULL ? HISTORY_NOTES_MAX : 0);
    while (w->skip_count + (w->skip_older > 0) >= most) {
        w->skip_count--;
        memmove(w->skip + 1, w->skip + 2, w->skip_count * sizeof(*w->skip));
        note_older(w, 1);
    }
}

/* Notes that `count` steps were left out before `next`, the first that is listed with them. */
static void add_older(struct worker *w, uint64_t count, uint64_t next)
{
    const uint64_t known = worker_skip_before(w, next);
    forget_oldest(w);
    if (count > known)
        note_older(w, count - known);
}

static void add_step(struct worker *w, uint64_t step)
{
    if (worker_skip_has(w, step))
        return;
    if (w->skip_older > 0 && w->skip_count > 0 && step < w->skip[1])
        return; /* as old as those that are counted alone */
    forget_oldest(w);
    const size_t at = 1 + listed_before(w, step);
    memmove(w->skip + at + 1, w->skip + at, (1 + w->skip_count - at) * sizeof(*w->skip));
    w->skip[at] = step;
    w->skip_count++;
}

enum status worker_skip_add(struct worker *worker, const uint64_t *steps, size_t count)
{
    struct worker *w = worker;
    for (size_t i = 0; i < count; i++) {
        const enum status st = make_room(w);
        if (st != ST_OK)
            return st;
        if (ckpt_is_note(steps[i])) {
            history_take(&w->history, steps[i]);
        } else if ((steps[i] & CKPT_SKIPS_OLDER) != 0) {
            add_older(w, steps[i] & ~CKPT_SKIPS_OLDER, i + 1 < count ? steps[i + 1] : UINT64_MAX);
        } else {
            add_step(w, steps[i]);
        }
    }
    return ST_OK;
}

void worker_skip_clear(struct worker *worker)
{
    worker->skip_count = 0;
    worker->skip_older = 0;
    worker->history = (struct loss_history){ .losses = 0 };
}

bool worker_skip_has(const struct worker *worker, uint64_t step)
{
    const size_t at = listed_before(worker, step);
    return at < worker->skip_count && worker->skip[1 + at] == step;
}

uint64_t worker_skip_before(const struct worker *worker, uint64_t step)
{
    return worker->skip_older + listed_before(worker, step);
}

const uint64_t *worker_skip_list(const struct worker *worker, uint64_t step, size_t *out_count)
{
    const bool older = worker->skip_older > 0;
    const size_t steps = older + listed_before(worker, step);
    const uint64_t *list = steps > 0 ? worker->skip + (older ? 0 : 1) : NULL;
    *out_count = steps;
    if (worker->noted != NULL) {
        if (list != NULL)
            memcpy(worker->noted, list, steps * sizeof(*list));
        list = worker->noted;
        *out_count +=
            history_notes(&worker->settings.history, &worker->history, worker->noted + steps);
    }
    return *out_count == 0 ? NULL : list;
}
