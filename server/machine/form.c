/* From slots to a running generation. */
#include "common/check.h"
#include "server/machine/internal.h"

void jm_on_placed(struct jm_step *s)
{
    struct job_machine *m = s->m;
    if (!jm_wants_slots(m, s->now))
        return;
    for (uint32_t i = 0; i < m->config.ranks; i++) {
        struct jm_rank *rank = &m->ranks[i];
        *rank = (struct jm_rank){ .gone = true, .slot = s->ev->slots[i] };
        jm_text(rank->node, sizeof rank->node, s->ev->nodes[i]);
    }
    jm_text(m->token, sizeof m->token, s->ev->token);
    m->state = JOB_PLACING;
    if (m->probed) {
        jm_form(s);
        return;
    }
    m->probing = true;
    jm_act(s, ACT_PROBE);
}

/* Of an answer of the store. */
void jm_note_away(struct jm_step *s)
{
    if (s->ev->flag && !s->m->store_away)
        jm_event(s, "store-away", "%s", s->ev->message);
    s->m->store_away = s->ev->flag;
}

void jm_on_probed(struct jm_step *s)
{
    struct job_machine *m = s->m;
    if (!m->probing)
        return;
    m->probing = false;
    if (m->state != JOB_PLACING)
        return;
    if (s->ev->status == ST_OK) {
        m->probed = true;
        m->store_away = false;
        if (s->ev->mark && s->ev->mark[0])
            jm_text(m->store_mark, sizeof m->store_mark, s->ev->mark);
        jm_form(s);
        return;
    }
    jm_note_away(s);
    /* Slots are given back meanwhile; the scheduler places the job again. */
    m->state = m->generation == 0 ? JOB_QUEUED : JOB_RECOVERING;
    /* Of a store that was good before, anything may pass. */
    const bool refused = s->ev->status == ST_REFUSED || s->ev->status == ST_INVALID;
    if (refused && m->generation == 0) {
        jm_text(m->cause.message, sizeof m->cause.message, s->ev->message);
        m->cause.kind = FAULT_USER;
        jm_event(s, "fault", "%s", s->ev->message);
        jm_set_reason(m, "%s", s->ev->message);
        jm_enter_final(s, JOB_FAILED);
        return;
    }
    m->retry_at = s->now + JM_SILENT_MS;
    jm_set_reason(m, "waits for the checkpoint store: %s", s->ev->message);
    jm_act(s, ACT_SCHEDULE);
}

/* The one place where a generation begins: journalled (dirty) before any trainer is started. */
void jm_form(struct jm_step *s)
{
    struct job_machine *m = s->m;
    CHECK(jm_all_gone(m));
    const struct jm_ckpt *ckpt = jm_newest(m);
    m->generation++;
    m->state = JOB_FORMING;
    m->dirty = true;
    m->reason[0] = '\0';
    m->restore_step = ckpt ? ckpt->step : 0;
    m->restore_generation = ckpt ? ckpt->generation : 0;
    m->memory_generation = 0;
    m->memory_decided = false;
    jm_memory_forget(m);
    m->progressed = false;
    m->committed = false;
    m->intent = INTENT_NONE;
    m->cause = (struct jm_fault){ 0 };
    m->candidate = (struct jm_fault){ 0 };
    m->window_until = 0;
    m->end_hard_at = 0;
    m->started_at = s->now;
    m->progress_at = s->now;
    m->replay_until = m->step_max;
    m->step_at = 0;
    m->passes = 0;
    for (int i = 0; i < JM_ANNOUNCED_MAX; i++)
        m->announced[i] = (struct jm_announced){ 0 };
    for (int i = 0; i < JM_SAVES_MAX; i++)
        m->saves[i] = (struct jm_save){ 0 };
    for (uint32_t i = 0; i < m->config.ranks; i++) {
        m->ranks[i].gone = false;
        m->ranks[i].step = m->restore_step;
        m->ranks[i].counter_at = s->now;
    }
    jm_act(s, ACT_GEN_BEGIN);
    if (ckpt) {
        jm_event(s, "forming", "generation %u with %u workers, from the checkpoint of step %llu",
                 m->generation, m->config.ranks, (unsigned long long)ckpt->step);
    } else {
        jm_event(s, "forming", "generation %u with %u workers, from the beginning", m->generation,
                 m->config.ranks);
    }
    jm_act(s, ACT_START);
}

static void send_plans(struct jm_step *s)
{
    struct job_machine *m = s->m;
    for (uint32_t i = 0; i < m->config.ranks; i++) {
        if (!m->ranks[i].joined)
            return;
    }
    jm_memory_choose(s);
    bool whole = m->config.ranks > JM_ACTIONS_MAX / 2;
    if (whole)
        jm_act(s, ACT_PLAN)->rank = JM_ALL;
    for (uint32_t i = 0; i < m->config.ranks; i++) {
        struct jm_rank *rank = &m->ranks[i];
        if (!rank->planned && !whole)
            jm_act(s, ACT_PLAN)->rank = i;
        rank->planned = true;
        rank->counter_at = s->now;
    }
}

void jm_on_hello(struct jm_step *s)
{
    struct job_machine *m = s->m;
    struct jm_rank *rank = &m->ranks[s->ev->rank];
    rank->session = true;
    rank->started = true;
    rank->lost_at = 0;
    rank->missing_at = 0;
    rank->pid = s->ev->pid;
    bool again = rank->joined;
    rank->joined = true;
    if (m->end_to != JOB_NONE && m->end_hard_at == 0)
        return; /* the caller answers Over */
    if (!s->ev->flag) {
        jm_memory_hear(s);
        if (again && rank->planned) {
            jm_act(s, ACT_PLAN)->rank = s->ev->rank; /* the plan was lost with the session */
        } else if (m->state == JOB_FORMING) {
            send_plans(s);
        }
        return;
    }
    rank->planned = true;
    rank->counter_at = s->now;
    if (s->ev->step > rank->step)
        rank->step = s->ev->step;
    if (m->state != JOB_FORMING) {
        rank->ready = true;
    } else {
        send_plans(s);
    }
    jm_saves_attach(s, s->ev->rank);
}

void jm_running(struct jm_step *s)
{
    struct job_machine *m = s->m;
    m->state = JOB_RUNNING;
    m->dirty = true;
    m->running_since = s->now;
    m->progress_at = s->now;
    if (m->started_wall == 0)
        m->started_wall = s->ev->wall;
    for (uint32_t i = 0; i < m->config.ranks; i++)
        m->ranks[i].ready = true;
    jm_due_from(s);
    jm_set_reason(m, "%s", "");
    jm_event(s, "running", "generation %u runs after %.1f s", m->generation,
             (double)(s->now - m->started_at) / 1000.0);
    if (m->commitless >= 2)
        jm_announce(s, false); /* two attempts without a commit: save early */
}

void jm_on_ready(struct jm_step *s)
{
    struct job_machine *m = s->m;
    struct jm_rank *rank = &m->ranks[s->ev->rank];
    if (s->ev->message && !m->config.relaxed) {
        struct jm_fault fault = { .kind = FAULT_PINS, .rank = s->ev->rank };
        jm_text(fault.phase, sizeof fault.phase, "forming");
        jm_text(fault.message, sizeof fault.message, s->ev->message);
        jm_fault_report(s, &fault);
        return;
    }
    if (s->ev->message)
        jm_event(s, "pins", "rank %u: %s (exactness: relaxed)", s->ev->rank, s->ev->message);
    if (m->total_steps != s->ev->total_steps || m->steps_per_epoch != s->ev->steps_per_epoch)
        m->dirty = true;
    m->total_steps = s->ev->total_steps;
    m->steps_per_epoch = s->ev->steps_per_epoch;
    if (s->ev->bytes > 0)
        m->state_bytes = s->ev->bytes;
    rank->ready = true;
    if (m->state != JOB_FORMING || m->end_to != JOB_NONE)
        return;
    for (uint32_t i = 0; i < m->config.ranks; i++) {
        if (!m->ranks[i].ready)
            return;
    }
    jm_running(s);
}
