/* Saves: announced ones, time passing, the end of a generation, ranks and coordinators coming back.
 */
#include "server/machine/internal.h"

/* ---- announced saves ---- */

/* Far enough that no rank is there before it hears of it; twice as far with each announced step
 * that one had passed, so that it ends whatever a step takes. */
static uint64_t lead_steps(const struct job_machine *m)
{
    uint64_t steps = 2;
    if (m->step_ms > 0)
        steps += (uint64_t)((double)JM_LEAD_MS / m->step_ms);
    return steps << (m->passes < JM_PASSES_MAX ? m->passes : JM_PASSES_MAX);
}

/* Where workers are by now: what they said last is up to some seconds old. */
static uint64_t step_by_now(const struct jm_step *s)
{
    const struct job_machine *m = s->m;
    int64_t ago = m->step_at != 0 ? s->now - m->step_at : 0;
    bool moves = m->step_ms > 0 && ago > 0 && ago < JM_SILENT_MS;
    return jm_step_now(m) + (moves ? (uint64_t)((double)ago / m->step_ms) : 0);
}

bool jm_announced_exit(const struct job_machine *m, uint64_t step)
{
    for (int i = 0; i < JM_ANNOUNCED_MAX; i++) {
        if (m->announced[i].step == step && m->announced[i].exit)
            return true;
    }
    return false;
}

bool jm_forget_announced(struct job_machine *m, uint64_t step, bool *out_exit)
{
    bool found = false;
    *out_exit = false;
    for (int i = 0; i < JM_ANNOUNCED_MAX; i++) {
        if (m->announced[i].step != step || step == 0)
            continue;
        *out_exit = *out_exit || m->announced[i].exit;
        m->announced[i] = (struct jm_announced){ 0 };
        m->dirty = true;
        found = true;
    }
    return found;
}

/* The one that goes for an exit: of those that only save, the lowest step's. */
static int least_needed(const struct job_machine *m)
{
    int found = -1;
    for (int i = 0; i < JM_ANNOUNCED_MAX; i++) {
        const struct jm_announced *a = &m->announced[i];
        if (!a->exit && (found < 0 || a->step < m->announced[found].step))
            found = i;
    }
    return found;
}

/* For a step beyond every one reported. */
void jm_announce(struct jm_step *s, bool exit)
{
    struct job_machine *m = s->m;
    uint64_t step = step_by_now(s) + lead_steps(m);
    if (m->total_steps > 0 && step > m->total_steps)
        step = m->total_steps;
    int free_at = -1;
    for (int i = 0; i < JM_ANNOUNCED_MAX; i++) {
        struct jm_announced *a = &m->announced[i];
        if (a->step == 0) {
            free_at = i;
        } else if (!exit && a->step > jm_step_now(m)) {
            return; /* the one to come serves */
        }
    }
    if (free_at < 0)
        free_at = least_needed(m);
    if (free_at < 0)
        return; /* all of them are exits: one of them comes */
    m->announced[free_at] = (struct jm_announced){ .step = step, .exit = exit };
    m->dirty = true;
    struct jm_action *act = jm_act_on(s, ACT_SAVE_AT, step, m->generation);
    act->flag = exit;
}

/* ---- time and endings ---- */

/*
 * A rank does not say that its file of a dropped save is gone: it may still be writing it, so this
 * generation must not save the step again. Where it has to, it ends.
 */
static void give_up_on(struct jm_step *s, int index)
{
    struct job_machine *m = s->m;
    struct jm_save *save = &m->saves[index];
    save->since = s->now;
    bool last = m->total_steps > 0 && save->step >= m->total_steps;
    if (!last && !save->wanted && !jm_announced_exit(m, save->step)) {
        jm_save_set_state(s, save, SAVE_DROPPED);
        return;
    }
    for (uint32_t i = 0; i < m->config.ranks; i++) {
        const struct jm_rank *rank = &m->ranks[i];
        uint8_t flags = rank->save_flags[index];
        if (rank->gone || !(flags & RANK_BEGUN) || (flags & RANK_REMOVED))
            continue;
        struct jm_fault fault = {
            .kind = FAULT_SESSION, .rank = i, .step = rank->step, .outside = true
        };
        jm_text(fault.phase, sizeof fault.phase, rank->phase);
        jm_text(fault.message, sizeof fault.message, "it holds on to its file of a dropped save");
        jm_fail(s, &fault);
        return;
    }
}

/* How long ranks have for saying that their file is gone. */
static int64_t patience_ms(const struct job_machine *m, int index)
{
    for (uint32_t i = 0; i < m->config.ranks; i++) {
        uint8_t flags = m->ranks[i].save_flags[index];
        bool missing = !m->ranks[i].gone && (flags & RANK_BEGUN) && !(flags & RANK_REMOVED);
        if (missing && !(flags & RANK_ASSUMED))
            return JM_REMOVE_MS;
    }
    return JM_ASSUMED_MS;
}

void jm_saves_tick(struct jm_step *s)
{
    struct job_machine *m = s->m;
    for (int i = 0; i < JM_SAVES_MAX; i++) {
        struct jm_save *save = &m->saves[i];
        if (save->state == SAVE_DROPPING && !save->removing && save->retry_at == 0 &&
            s->now - save->since >= patience_ms(m, i)) {
            give_up_on(s, i);
            continue;
        }
        if (save->retry_at == 0 || s->now < save->retry_at)
            continue;
        if (save->state == SAVE_COMMITTING) {
            save->retry_at = 0;
            jm_act_on(s, ACT_PUBLISH, save->step, save->generation);
        } else if (save->state == SAVE_CHECKING) {
            save->retry_at = 0;
            jm_act_on(s, ACT_CHECK, save->step, save->generation);
        } else if (save->state == SAVE_DROPPING) {
            save->retry_at = 0;
            jm_save_remove(s, i);
        } else if (save->state == SAVE_DROPPED) {
            jm_save_again(s, i);
        } else {
            save->retry_at = 0;
        }
    }
    jm_due_tick(s);
    jm_damage_tick(s);
}

void jm_saves_end(struct jm_step *s)
{
    struct job_machine *m = s->m;
    for (int i = 0; i < JM_SAVES_MAX; i++) {
        struct jm_save *save = &m->saves[i];
        if (save->state == SAVE_COLLECTING) {
            jm_save_drop(s, i, "the generation ended before all workers had written", true);
        } else if (save->state == SAVE_DROPPING && save->retry_at == 0) {
            jm_save_remove(s, i);
        }
        save->wanted = false;
        if (save->state == SAVE_DROPPED)
            save->retry_at = 0;
    }
}

bool jm_saves_busy(const struct job_machine *m)
{
    for (int i = 0; i < JM_SAVES_MAX; i++) {
        enum jm_save_state state = m->saves[i].state;
        if (state != SAVE_FREE && state != SAVE_COMMITTED && state != SAVE_DROPPED)
            return true;
    }
    return false;
}

bool jm_store_holds(const struct job_machine *m)
{
    for (int i = 0; i < JM_SAVES_MAX; i++) {
        const struct jm_save *save = &m->saves[i];
        if (save->state == SAVE_OPENING || save->state == SAVE_CHECKING ||
            save->state == SAVE_COMMITTING || save->state == SAVE_DROPPING ||
            (save->state == SAVE_DROPPED && save->wanted))
            return true;
    }
    return false;
}

int64_t jm_saves_deadline(const struct job_machine *m)
{
    int64_t at = jm_due_deadline(m);
    for (int i = 0; i < JM_SAVES_MAX; i++) {
        const struct jm_save *save = &m->saves[i];
        if (save->retry_at != 0 && save->retry_at < at)
            at = save->retry_at;
        int64_t end = save->since + patience_ms(m, i);
        if (save->state == SAVE_DROPPING && !save->removing && end < at)
            at = end;
    }
    return at;
}

void jm_saves_attach(struct jm_step *s, uint32_t rank)
{
    struct job_machine *m = s->m;
    for (int i = 0; i < JM_SAVES_MAX; i++) {
        const struct jm_save *save = &m->saves[i];
        if (save->state == SAVE_COMMITTED) {
            jm_send_done(s, save->step, rank, true);
        } else if (save->state == SAVE_DROPPING || (save->state == SAVE_DROPPED && !save->wanted)) {
            jm_send_done(s, save->step, rank, false);
        }
    }
    const struct jm_ckpt *newest = jm_newest(m);
    if (newest && newest->generation == m->generation &&
        jm_find_save(m, newest->step, m->generation) < 0)
        jm_send_done(s, newest->step, rank, true);
    for (int i = 0; i < JM_ANNOUNCED_MAX; i++) {
        if (m->announced[i].step == 0)
            continue;
        struct jm_action *act = jm_act_on(s, ACT_SAVE_AT, m->announced[i].step, m->generation);
        act->flag = m->announced[i].exit;
        act->rank = rank;
    }
}

void jm_saves_resume(struct jm_step *s)
{
    struct job_machine *m = s->m;
    for (int i = 0; i < JM_SAVES_MAX; i++) {
        struct jm_save *save = &m->saves[i];
        save->since = s->now;
        if (save->state == SAVE_COMMITTING) {
            jm_act_on(s, ACT_PUBLISH, save->step, save->generation);
        } else if (save->state == SAVE_COLLECTING && jm_every_rank(m, i, RANK_REPORTED)) {
            jm_save_check(s, i);
        }
    }
    jm_due_resume(s);
    jm_catalog_resume(s);
}
