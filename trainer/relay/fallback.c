/*
 * A program that doesn't come to the step after which it was asked to end: it is in an evaluation,
 * compiles, or waits for a rank that does. Once half of checkpoint.grace has passed all ranks bring
 * the steps that they have complete copies of. A copy that the program fills in just then has a
 * quarter of it to be complete; then it is given up: the program is stopped in the middle. The
 * newest step that all have is saved in the place of the announced one, and the program is ended.
 * Ranks that have come to that step have saved it by then; it can't be committed without the
 * others, and goes with the generation.
 */
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "trainer/relay/internal.h"

#define LOOK_MS   200
#define FILLED_MS 20

/* What a rank brings to the round "newest". */
struct offer {
    uint64_t count;
    uint64_t steps[SESSION_FILES_MAX];
};

static void set_falls_back(struct relay *r, bool falls_back, uint64_t committed)
{
    (void)pthread_mutex_lock(&r->mutex);
    r->falls_back = falls_back;
    r->fallen_back = committed;
    for (uint32_t i = 0; i < r->count; i++)
        r->processes[i].done = r->processes[i].done || committed > 0;
    (void)pthread_mutex_unlock(&r->mutex);
}

static bool has_step(const struct offer *offer, uint64_t step)
{
    bool found = false;
    for (uint64_t i = 0; i < offer->count && i < SESSION_FILES_MAX; i++)
        found = found || offer->steps[i] == step;
    return found;
}

/* Returns the newest step that all ranks have a copy of; 0: none. */
static uint64_t find_newest(const struct rendezvous_got *got, uint32_t ranks)
{
    struct offer first;
    uint64_t newest = 0;
    memcpy(&first, got[0].common, sizeof(first));
    for (uint64_t i = 0; i < first.count && i < SESSION_FILES_MAX; i++) {
        bool all = true;
        for (uint32_t r = 0; r < ranks; r++) {
            struct offer other;
            memcpy(&other, got[r].common, sizeof(other));
            all = all && has_step(&other, first.steps[i]);
        }
        if (all && first.steps[i] > newest)
            newest = first.steps[i];
    }
    return newest;
}

/* Saves the copy of that step and waits for the commit; where the save is dropped it is made again.
 * out_committed: that step, or a later one that was committed meanwhile. */
static enum status save_copy(struct relay *r, uint64_t step, uint64_t *out_committed)
{
    struct session *session = r->options.session;
    enum status st = ST_AGAIN;
    *out_committed = session_committed(session);
    while (*out_committed < step && !relay_is_closing(r)) {
        st = session_save_copy(session, step);
        if (st != ST_OK && st != ST_EXISTS && st != ST_AGAIN)
            return st;
        relay_pause(r, LOOK_MS);
        *out_committed = session_committed(session);
    }
    return *out_committed >= step ? ST_OK : ST_STALE;
}

static bool is_unfilled(struct relay *r, enum relay_filling *out)
{
    (void)pthread_mutex_lock(&r->mutex);
    *out = r->filling;
    const bool closing = r->closing;
    (void)pthread_mutex_unlock(&r->mutex);
    return *out != RELAY_FILLS_NOTHING && !closing;
}

/* Waits until nothing is being filled in. No copy is saved meanwhile; so one that takes too long is
 * given up. */
static void await_filled(struct relay *r)
{
    const int64_t until = relay_now_ms() + r->options.job->checkpoint.grace_ms / 4;
    enum relay_filling filling;
    while (is_unfilled(r, &filling)) {
        if (filling == RELAY_FILLS && relay_now_ms() >= until && relay_give_up(r)) {
            LOG_WARN(r->options.log,
                     "the program doesn't finish a copy that it has begun: it is given up");
        } else {
            relay_pause(r, FILLED_MS);
        }
    }
}

/* Agrees with all ranks and saves. Nothing is due meanwhile: the copies stay. */
static void fall_back(struct relay *r, const struct session_exit *exit)
{
    const uint32_t size = r->options.assignment->size;
    struct offer mine = { .count = 0 };
    auto_free struct rendezvous_got *got = calloc(size, sizeof(*got));
    if (got == NULL)
        return;
    set_falls_back(r, true, 0);
    await_filled(r);
    mine.count = session_complete_steps(r->options.session, mine.steps);
    enum status st = relay_meet(r, "newest", &mine, sizeof(mine), got);
    const uint64_t newest = st == ST_OK ? find_newest(got, size) : 0;
    uint64_t committed = 0;
    if (newest > 0)
        st = save_copy(r, newest, &committed);
    const bool saved = newest > 0 && st == ST_OK;
    set_falls_back(r, false, saved ? committed : 0);
    if (saved) {
        LOG_WARN(r->options.log,
                 "the program doesn't come to step %llu, after which it is to end: its copy of "
                 "step %llu is saved instead",
                 (unsigned long long)exit->step, (unsigned long long)committed);
    } else if (newest > 0) {
        LOG_WARN(r->options.log, "the copy of step %llu can't be saved: %s",
                 (unsigned long long)newest, status_string(st));
    }
}

void relay_watch_exits(struct relay *relay)
{
    struct relay *r = relay;
    const int64_t patience_ms = r->options.job->checkpoint.grace_ms / 2;
    struct session_exit exit;
    while (!relay_is_closing(r) && !session_is_over(r->options.session)) {
        if (session_exit(r->options.session, &exit) && exit.waited_ms >= patience_ms) {
            fall_back(r, &exit); /* once in a generation */
            return;
        }
        relay_pause(r, LOOK_MS);
    }
}
