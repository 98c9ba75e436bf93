/* What the processes of a worker are told alike, though they ask at different times. */
#include "trainer/relay/internal.h"

static enum cairn_due due_of(enum session_due due)
{
    switch (due) {
    case SESSION_DUE_COPY:
        return CAIRN_DUE_COPY;
    case SESSION_DUE_SAVE:
        return CAIRN_DUE_SAVE;
    case SESSION_DUE_SAVE_AND_EXIT:
        return CAIRN_DUE_SAVE_AND_EXIT;
    case SESSION_DUE_NOTHING:
        break;
    }
    return CAIRN_DUE_NOTHING;
}

/* Returns what was decided of a step; NULL: nothing. Under turn. */
static const struct relay_decision *find_decision(const struct relay *r, uint64_t step)
{
    for (uint64_t i = 0; i < r->decided && i < RELAY_DECISIONS; i++) {
        const struct relay_decision *it = &r->decisions[(r->decided - 1 - i) % RELAY_DECISIONS];
        if (it->step == step)
            return it;
    }
    return NULL;
}

/* True if another process has finished a later step: nothing can be due any more. Under turn. */
static bool is_passed(const struct relay *r, uint64_t step)
{
    bool passed = r->decided > 0 && r->decisions[(r->decided - 1) % RELAY_DECISIONS].step > step;
    for (uint32_t i = 0; i < r->count; i++)
        passed = passed || atomic_load(&r->processes[i].page->step) > step;
    return passed;
}

/* Notes that a process has asked about a step: what it is owed are later ones. Under turn. */
static void pay(struct relay_process *p, uint64_t step)
{
    const struct relay *r = p->relay;
    uint64_t owed = UINT64_MAX;
    for (uint64_t i = 0; i < r->decided && i < RELAY_DECISIONS; i++) {
        const struct relay_decision *it = &r->decisions[i];
        if (it->step > step && it->step < owed && it->due != CAIRN_DUE_NOTHING)
            owed = it->step;
    }
    atomic_store(&p->owed, owed);
}

/* Has the other processes ask about a step that is about to be decided: the session tells them of
 * later ones then. Under turn. */
static void owe(struct relay_process *p, uint64_t step)
{
    const struct relay *r = p->relay;
    for (uint32_t i = 0; i < r->count; i++) {
        struct relay_process *other = &r->processes[i];
        if (other != p && step < atomic_load(&other->owed))
            atomic_store(&other->owed, step);
    }
}

enum cairn_due relay_due(struct relay_process *process, uint64_t step)
{
    struct relay *r = process->relay;
    (void)pthread_mutex_lock(&r->turn);
    const struct relay_decision *found = r->count > 1 ? find_decision(r, step) : NULL;
    enum cairn_due due = found != NULL ? found->due : CAIRN_DUE_NOTHING;
    pay(process, step);
    if (found == NULL && (r->count == 1 || !is_passed(r, step))) {
        owe(process, step);
        due = due_of(session_due_at(r->options.session, step));
        r->decisions[r->decided++ % RELAY_DECISIONS] = (struct relay_decision){ step, due };
    }
    (void)pthread_mutex_unlock(&r->turn);
    return due;
}

enum status relay_settle(struct relay *relay, uint64_t step, int64_t timeout_ms,
                         uint64_t *out_committed)
{
    struct relay *r = relay;
    (void)pthread_mutex_lock(&r->mutex);
    const bool stayed = r->stayed != 0 && step == r->stayed;
    (void)pthread_mutex_unlock(&r->mutex);
    const enum status st =
        stayed ? ST_REFUSED : session_settle(r->options.session, timeout_ms, out_committed);
    (void)pthread_mutex_lock(&r->mutex);
    if (st == ST_REFUSED && r->count > 1)
        r->stayed = step;
    (void)pthread_mutex_unlock(&r->mutex);
    return st;
}
