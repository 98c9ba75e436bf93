/* What a program says while it trains. */
#include <string.h>

#include "common/clock.h"
#include "library/client/internal.h"

/* Whether a call that needs a ready rank may go on. */
static int check_ready(const struct cairn *c, uint64_t finished)
{
    int status = library_check(c);
    if (status == CAIRN_OK && !atomic_load(&c->ready))
        status = library_say(CAIRN_INVALID, "cairn_ready comes before the first step");
    if (status == CAIRN_OK && finished > c->total_steps) {
        status = library_say(CAIRN_INVALID, "step %llu is beyond the last one, %llu",
                             (unsigned long long)finished, (unsigned long long)c->total_steps);
    }
    if (status == CAIRN_OK && atomic_load(&c->page->over) != 0)
        status = library_say(CAIRN_STALE, "this start of the program is over");
    return status;
}

static int ask_due(struct cairn *c, uint64_t finished)
{
    const struct wire_step said = { finished };
    struct wire_due due = { 0 };
    struct library_answer answer = { .bytes = &due, .size = sizeof(due) };
    int status = check_ready(c, finished);
    if (status == CAIRN_OK)
        status = library_ask(c, WIRE_DUE, &said, sizeof(said), &answer);
    if (status != CAIRN_OK)
        return status;
    if (due.due > CAIRN_DUE_SAVE_AND_EXIT)
        return library_say(CAIRN_CLOSED, "the worker's answer makes no sense");
    return (int)due.due;
}

int cairn_step(struct cairn *c, uint64_t finished)
{
    if (!atomic_load_explicit(&c->ready, memory_order_relaxed) || finished > c->total_steps)
        return ask_due(c, finished);
    /* Stored before the load, both seq_cst: the worker sees the step, or its due step is seen. */
    atomic_store(&c->page->step, finished);
    const uint64_t next_due = atomic_load(&c->page->next_due);
    if (finished < next_due && atomic_load_explicit(&c->page->over, memory_order_relaxed) == 0)
        return CAIRN_DUE_NOTHING;
    return ask_due(c, finished);
}

void cairn_beat(struct cairn *c)
{
    if (!atomic_load_explicit(&c->forked, memory_order_relaxed))
        (void)atomic_fetch_add_explicit(&c->page->beats, 1, memory_order_relaxed);
}

/* One answer about saves that end. */
static int settle_once(struct cairn *c, uint64_t finished, bool *out_decided)
{
    const struct wire_step said = { finished };
    struct wire_step newest = { 0 };
    struct library_answer answer = { .bytes = &newest, .size = sizeof(newest) };
    const int status = library_ask(c, WIRE_SETTLE, &said, sizeof(said), &answer);
    *out_decided = status != CAIRN_AGAIN;
    if (status != CAIRN_OK || newest.step >= finished)
        return status;
    return library_say(CAIRN_AGAIN, "the save of step %llu was dropped; the newest is of %llu",
                       (unsigned long long)finished, (unsigned long long)newest.step);
}

int cairn_finish(struct cairn *c, uint64_t finished)
{
    int status = check_ready(c, finished);
    if (status != CAIRN_OK)
        return status;
    atomic_store(&c->finished, false);
    (void)pthread_mutex_lock(&c->lock);
    library_await(c, SAVE_NONE);
    (void)pthread_mutex_unlock(&c->lock);
    library_flush(c);
    for (bool decided = false; !decided;) {
        status = settle_once(c, finished, &decided);
        if (!decided)
            status = check_ready(c, finished);
        decided = decided || status != CAIRN_OK;
    }
    if (status == CAIRN_OK)
        atomic_store(&c->finished, true);
    return status;
}

int cairn_last(struct cairn *c, uint64_t finished, const char *reason)
{
    struct wire_last last = { .step = finished };
    int status = check_ready(c, finished);
    if (reason != NULL)
        memcpy(last.reason, reason, strnlen(reason, sizeof(last.reason)));
    while (status == CAIRN_OK) {
        status = library_ask(c, WIRE_LAST, &last, sizeof(last), NULL);
        if (status != CAIRN_AGAIN)
            break;
        status = check_ready(c, finished);
    }
    if (status == CAIRN_OK)
        c->total_steps = finished;
    return status;
}

/* ---- any thread ---- */

void cairn_want(struct cairn *c, int leaves, uint64_t grace_ms, const char *reason)
{
    struct wire_want want = { .leaves = leaves != 0, .grace_ms = grace_ms };
    if (reason != NULL)
        memcpy(want.reason, reason, strnlen(reason, sizeof(want.reason) - 1));
    if (library_check(c) != CAIRN_OK)
        return;
    (void)pthread_mutex_lock(&c->lock);
    if (!c->wants || want.leaves) { /* one that leaves is more than one that doesn't */
        c->want = want;
        c->wants = true;
    }
    (void)pthread_mutex_unlock(&c->lock);
    library_wake(c);
}

static int number_of(const char *name)
{
    static const char *const names[WIRE_NUMBERS] = {
        "loss", "lr", "grad_norm", "samples_per_s", "eval_loss", "eval_accuracy"
    };
    for (int i = 0; i < WIRE_NUMBERS; i++) {
        if (strcmp(names[i], name) == 0)
            return i;
    }
    return -1;
}

int cairn_log(struct cairn *c, uint64_t step, const char *const *names, const double *values,
              size_t count)
{
    struct wire_row row = { .step = step };
    int status = library_check(c);
    if (status != CAIRN_OK)
        return status;
    for (size_t i = 0; i < count; i++) {
        const int number = number_of(names[i]);
        if (number < 0) {
            status = library_say(CAIRN_NOT_FOUND, "there is no number named %s", names[i]);
            continue;
        }
        row.known |= 1u << number;
        row.number[number] = values[i];
    }
    if (row.known == 0)
        return status;
    (void)pthread_mutex_lock(&c->lock);
    const bool fits = c->row_count < LIBRARY_ROWS;
    if (fits)
        c->rows[(c->row_first + c->row_count++) % LIBRARY_ROWS] = row;
    (void)pthread_mutex_unlock(&c->lock);
    library_wake(c);
    if (!fits)
        return library_say(CAIRN_AGAIN, "%d rows wait to be sent", LIBRARY_ROWS);
    return status;
}

void cairn_fail(struct cairn *c, const char *message)
{
    const size_t size = message != NULL ? strnlen(message, 4096) : 0;
    library_tell(c, WIRE_FAIL, message, size);
}
