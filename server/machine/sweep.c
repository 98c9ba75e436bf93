/*
 * What dropped saves left in the store: a removal that failed when nobody was left to repeat it,
 * files that a rank held on to, a folder that was made while the coordinator died.
 *
 * Only folders of generations that are over are looked at: once in each generation, with its first
 * commit, and at the job's end. The store's task gets the catalog along and takes away what has no
 * manifest and is not in it. That is safe, however late the task runs (the store may be slow, the
 * thread given up):
 *   - a save commits only in the current generation or, decided, in one before; of those before
 *     none is open when the sweep is asked for, and none is ever opened again (invariants 1 to 4);
 *   - a checkpoint that lost its manifest is in the catalog: that is damage, and kept as evidence;
 *   - bad-… and whatever we didn't name stay;
 *   - a worker of a generation that is over may still write, cut off somewhere: nothing of it
 *     counts.
 */
#include "server/machine/internal.h"

/* Generations before it are over; 0: not now. */
static uint32_t over_before(const struct job_machine *m)
{
    if (job_state_final(m->state))
        return jm_saves_busy(m) ? 0 : m->generation + 1;
    return m->state == JOB_RUNNING && m->committed ? m->generation : 0;
}

static bool is_open_before(const struct job_machine *m, uint32_t generation)
{
    for (int i = 0; i < JM_SAVES_MAX; i++) {
        const struct jm_save *save = &m->saves[i];
        bool open = save->state != SAVE_FREE && save->state != SAVE_COMMITTED &&
                    save->state != SAVE_DROPPED;
        if (open && save->generation < generation)
            return true;
    }
    return false;
}

void jm_sweep(struct jm_step *s)
{
    struct job_machine *m = s->m;
    uint32_t before = over_before(m);
    if (before < 2 || before <= m->swept || before <= m->sweep_asked || is_open_before(m, before))
        return;
    m->sweep_asked = before;
    jm_act_on(s, ACT_SWEEP, 0, before);
}

void jm_sweep_again(struct jm_step *s)
{
    if (s->m->sweep_failed)
        s->m->sweep_asked = s->m->swept;
    s->m->sweep_failed = false;
}

/* What is left, by a failure or for being too much, goes with the next commit; of a job that ended,
 * with the coordinator's next start. */
void jm_on_swept(struct jm_step *s)
{
    struct job_machine *m = s->m;
    if (s->ev->counter > 0) {
        jm_event(s, "swept", "%llu folders of saves that were never committed were removed",
                 (unsigned long long)s->ev->counter);
    }
    m->sweep_failed = s->ev->status != ST_OK;
    if (m->sweep_failed || s->ev->of_generation <= m->swept)
        return;
    m->swept = s->ev->of_generation;
    m->dirty = true;
}
