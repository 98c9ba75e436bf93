/*
 * The copy that the program fills in, each process its part of it. Whoever ends it first does so:
 * the last process, by COPIED; a process's thread, as a connection has ended; the forming one, as
 * an older copy is to be saved.
 *
 *     NOTHING ─BEGIN─▶ BEGINS ─the session has a file─▶ FILLS ─COPIED, by all─▶ FILLED ─▶ NOTHING
 *                                                         └─▶ GAVE_UP ───────────────────▲
 *
 * A process that is ahead of others waits before it begins the next copy. The n-th BEGIN of a step,
 * by whatever process, is for the n-th attempt to copy it: who comes late to one that has failed is
 * refused, and who finds that its save was dropped begins the next. So does one that was refused as
 * the ranks hadn't met, and then waits for what others fill in.
 */
#include "common/clock.h"
#include "trainer/relay/internal.h"

#define BEGIN_MS INT64_C(10000)    /* for others' copies, and for a file: below WIRE_ANSWER_MS */
#define LOOK_NS  INT64_C(20000000) /* one look whether a process has passed the step */

enum status relay_fill(void *relay, uint64_t *out_stall_us)
{
    struct relay *r = relay;
    (void)pthread_mutex_lock(&r->mutex);
    while (r->filling == RELAY_BEGINS || (r->filling == RELAY_FILLS && !r->closing))
        (void)pthread_cond_wait(&r->changed, &r->mutex);
    const bool filled = r->filling == RELAY_FILLED;
    *out_stall_us = r->stall_us;
    (void)pthread_mutex_unlock(&r->mutex);
    return filled ? ST_OK : ST_CLOSED;
}

/* ---- the begin ---- */

/* Waits, no longer than `until`, while others fill in the copy of an earlier step. */
static void await_others(struct relay_process *p, int64_t until)
{
    struct relay *r = p->relay;
    for (bool waits = true; waits;) {
        (void)pthread_mutex_lock(&r->mutex);
        waits = r->filling != RELAY_FILLS_NOTHING && r->filling_step < p->saving_step &&
                !r->closing && relay_now_ms() < until;
        if (waits)
            (void)clock_cond_wait(&r->changed, &r->mutex, clock_mono_ns() + LOOK_NS);
        (void)pthread_mutex_unlock(&r->mutex);
        if (waits)
            relay_give_up_passed(r);
    }
}

/* Joins an attempt that was begun; ST_NOT_FOUND: the next one is this process's to begin. Under
 * turn and mutex. */
static enum status join(struct relay_process *p)
{
    struct relay *r = p->relay;
    if (p->saving_step < r->filling_step)
        return ST_EXISTS;
    if (p->saving_step > r->filling_step)
        p->begins = r->attempts = 0;
    if (p->begins++ == r->attempts)
        return ST_NOT_FOUND;
    p->joined = p->begins == r->attempts && r->filling == RELAY_FILLS;
    return p->joined ? ST_OK : r->refused != ST_OK ? r->refused : ST_EXISTS;
}

/* Notes an attempt, which can't be given up until it is begun. Under mutex. */
static void note_attempt(struct relay_process *p)
{
    struct relay *r = p->relay;
    r->filling = RELAY_BEGINS;
    r->filling_step = p->saving_step;
    r->attempts++;
    r->dropped = false;
    r->stall_us = 0;
    for (uint32_t i = 0; i < r->count; i++)
        r->processes[i].joined = r->processes[i].filled = false;
    p->joined = true;
}

static void end_attempt(struct relay *r, enum status st)
{
    (void)pthread_mutex_lock(&r->mutex);
    r->refused = st;
    r->filling = st == ST_OK ? RELAY_FILLS : RELAY_FILLS_NOTHING;
    (void)pthread_cond_broadcast(&r->changed);
    (void)pthread_mutex_unlock(&r->mutex);
}

enum status relay_begin_filling(struct relay_process *process,
                                const struct session_snapshot *snapshot)
{
    struct relay_process *p = process;
    struct relay *r = p->relay;
    const int64_t until = relay_now_ms() + BEGIN_MS;
    await_others(p, until);
    struct session_snapshot mine = *snapshot;
    (void)pthread_mutex_lock(&r->turn);
    (void)pthread_mutex_lock(&r->mutex);
    const bool idle = r->filling == RELAY_FILLS_NOTHING;
    enum status st = join(p);
    const bool begins = st == ST_NOT_FOUND;
    if (begins && idle)
        note_attempt(p);
    (void)pthread_mutex_unlock(&r->mutex);
    if (begins) {
        const int64_t left = until - relay_now_ms();
        mine.patience_ms = left > 1 ? left : 1;
        st = session_snapshot_begin(r->options.session, &mine);
        if (st == ST_OK && idle)
            r->file = session_snapshot_file(r->options.session, &r->file_number);
        if (idle) {
            end_attempt(r, st); /* from here on it may be given up */
        } else if (st == ST_OK) {
            st = ST_STALE; /* the relay closes */
        }
    }
    if (st == ST_OK) {
        p->answered_file = (struct wire_file){ .file = r->file_number, .bytes = r->file->size };
        p->file_fd = r->file->fd;
    }
    (void)pthread_mutex_unlock(&r->turn);
    return st;
}

/* ---- the end ---- */

bool relay_fills(struct relay_process *process)
{
    struct relay_process *p = process;
    (void)pthread_mutex_lock(&p->relay->mutex);
    const bool fills = p->relay->filling == RELAY_FILLS && p->joined && !p->filled;
    (void)pthread_mutex_unlock(&p->relay->mutex);
    return fills;
}

bool relay_lacks(struct relay_process *process, uint64_t step)
{
    const struct relay *r = process->relay;
    (void)pthread_mutex_lock(&process->relay->mutex);
    const bool lacks = r->filling == RELAY_FILLS && r->filling_step == step && !process->joined;
    (void)pthread_mutex_unlock(&process->relay->mutex);
    return lacks;
}

static bool have_all_filled(const struct relay *r)
{
    bool all = true;
    for (uint32_t i = 0; i < r->count; i++)
        all = all && r->processes[i].filled;
    return all;
}

/* Waits until the session has the end of the copy; what was given up has failed. Under turn. */
static enum status end_copy(struct relay *r, bool dropped)
{
    const enum status st = session_snapshot_wait(r->options.session);
    (void)pthread_mutex_lock(&r->mutex);
    r->filling = RELAY_FILLS_NOTHING;
    r->dropped = dropped;
    (void)pthread_cond_broadcast(&r->changed);
    (void)pthread_mutex_unlock(&r->mutex);
    return st;
}

bool relay_end_filling(struct relay_process *process, bool complete, uint64_t stall_us,
                       enum status *out_st)
{
    struct relay_process *p = process;
    struct relay *r = p->relay;
    *out_st = ST_OK;
    (void)pthread_mutex_lock(&r->turn);
    (void)pthread_mutex_lock(&r->mutex);
    const bool fills =
        r->filling == RELAY_FILLS && r->filling_step == p->saving_step && p->joined && !p->filled;
    if (fills) {
        p->filled = true;
        r->stall_us = stall_us > r->stall_us ? stall_us : r->stall_us;
        if (!complete || have_all_filled(r))
            r->filling = complete ? RELAY_FILLED : RELAY_GAVE_UP;
        (void)pthread_cond_broadcast(&r->changed);
    }
    const bool ends = fills && r->filling != RELAY_FILLS;
    (void)pthread_mutex_unlock(&r->mutex);
    if (ends)
        *out_st = end_copy(r, !complete && r->count > 1);
    (void)pthread_mutex_unlock(&r->turn);
    return fills;
}

bool relay_was_dropped(struct relay_process *process)
{
    struct relay *r = process->relay;
    (void)pthread_mutex_lock(&r->mutex);
    const bool dropped = r->dropped || r->filling_step > process->saving_step;
    (void)pthread_mutex_unlock(&r->mutex);
    return dropped;
}

/* Gives up the copy of that step; 0: of any. */
static bool give_up(struct relay *r, uint64_t step)
{
    (void)pthread_mutex_lock(&r->turn);
    (void)pthread_mutex_lock(&r->mutex);
    const bool fills = r->filling == RELAY_FILLS && (step == 0 || r->filling_step == step);
    if (fills)
        r->filling = RELAY_GAVE_UP;
    (void)pthread_cond_broadcast(&r->changed);
    (void)pthread_mutex_unlock(&r->mutex);
    if (fills)
        (void)end_copy(r, true);
    (void)pthread_mutex_unlock(&r->turn);
    return fills;
}

bool relay_give_up(struct relay *relay)
{
    return give_up(relay, 0);
}

void relay_give_up_passed(struct relay *relay)
{
    struct relay *r = relay;
    bool passed = false;
    (void)pthread_mutex_lock(&r->mutex);
    const uint64_t step = r->filling_step;
    for (uint32_t i = 0; i < r->count && r->filling == RELAY_FILLS; i++) {
        const struct relay_process *p = &r->processes[i];
        passed = passed || (!p->joined && atomic_load(&p->page->step) > step);
    }
    (void)pthread_mutex_unlock(&r->mutex);
    if (passed && give_up(r, step)) {
        LOG_WARN(r->options.log, "a process didn't save step %llu, and trains on: it is given up",
                 (unsigned long long)step);
    }
}
