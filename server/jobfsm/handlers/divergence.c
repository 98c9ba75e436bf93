/*
 * Audits: two workers computed the same bits, or one of them was wrong.
 *
 * Within config.audited steps of one generation an error shows. So the state of a step is beyond
 * doubt once a generation has trained for so long after it (sure). Several generations that were
 * too short for that leave it in doubt.
 *
 * If they differ, the generation fails (server/jobfsm/failure_policy.c). What was trained after the
 * newest step that is beyond doubt goes, in as many turns as it takes: saves under way, then
 * checkpoints. Until they are set aside no generation forms.
 */
#include "server/jobfsm/handlers/divergence.h"

#include "common/check.h"
#include "server/jobfsm/catalog.h"
#include "server/jobfsm/retention.h"
#include "server/jobfsm/save_abort.h"
#include "server/jobfsm/state.h"

#define TELL_MS 600000 /* between two events that say that audits passed */
#define STEPS   8      /* sure grows by so many parts of what audits need: each is journalled */

/* Returns the lanes of the worker that has the most. */
static uint64_t largest_share(const struct fsm *m)
{
    CHECK(m->size > 0);
    uint64_t most = (m->config.lanes + m->size - 1) / m->size;
    for (uint32_t i = 0; m->balance.by_speed && i < m->size; i++)
        most = m->ranks[i].lanes > most ? m->ranks[i].lanes : most;
    return m->config.shares == FSM_SHARES_FILE ? m->config.lanes : most; /* as the file says */
}

/* Returns within how many steps an error shows: a round of audits takes a step for each lane of a
 * worker, at least. */
static uint64_t audited_within(const struct fsm *m)
{
    const uint64_t rounds = m->config.lanes_audited > 0 ? 2 * largest_share(m) : 0;
    return m->config.audited == 0 || m->config.audited > rounds ? m->config.audited : rounds;
}

/* Notes that each lane of each worker was audited in this generation after that step. A generation
 * that ended before that leaves its steps in doubt, whoever goes on with them. */
static void note_sure(struct fsm *m, uint64_t step)
{
    const uint64_t within = audited_within(m);
    if (within == 0 || step < m->restore.step + within ||
        step - within < m->audit.sure + within / STEPS)
        return;
    m->audit.sure = step - within;
    m->dirty = true;
}

void fsm_audit_begin(struct fsm *m)
{
    const uint64_t from = m->restore.step; /* the worker that computes it again may be wrong */
    m->audit.sure = m->audit.sure < from ? m->audit.sure : from;
    m->audit.passed = m->audit.passed < from ? m->audit.passed : from;
}

void fsm_note_audited(struct fsm_ctx *t, uint64_t step)
{
    struct fsm_audit *audit = &t->m->audit;
    if (step <= audit->passed)
        return;
    audit->passed = step;
    note_sure(t->m, step);
    if (audit->told_at != 0 && t->now - audit->told_at < TELL_MS)
        return;
    audit->told_at = t->now;
    fsm_emit_event(t, "audit-passed", "up to step %llu: what two workers computed is the same bits",
                   (unsigned long long)step);
}

static void drop_saves(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    for (int i = 0; i < FSM_SAVES_MAX && t->out->count < FSM_ACTIONS_MAX / 2; i++) {
        const struct fsm_save *save = &m->saves[i];
        const bool open = save->state == FSM_SAVE_OPENING || save->state == FSM_SAVE_COLLECTING;
        if (open && save->generation <= m->audit.generation && save->step > m->audit.good_step)
            fsm_save_drop(t, i, "it is of after a worker computed wrongly", true);
    }
}

void fsm_audit_tick(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (m->audit.generation == 0)
        return;
    drop_saves(t);
    for (size_t i = m->catalog_count; i > 0 && t->out->count < FSM_ACTIONS_MAX / 2; i--) {
        struct fsm_ckpt *ckpt = &m->catalog[i - 1];
        if (fsm_is_distrusted(m, ckpt))
            fsm_quarantine(t, ckpt, "it was made after a worker computed wrongly");
    }
}
