/*
 * Saves that nobody asked for by hand: by time and auto (design 8, "Interval"), for a worker that
 * is told to go; and those that the store has no room for.
 */
#include <string.h>

#include "server/machine/internal.h"
#include "server/machine/interval.h"

/* ---- by time ---- */

static bool by_time(const struct job_machine *m)
{
    return m->config.every_auto || m->config.every_ms > 0;
}

int64_t jm_interval_ms(const struct job_machine *m)
{
    if (!m->config.every_auto)
        return m->config.every_ms;
    return m->interval_ms > 0 ? m->interval_ms : JOB_INTERVAL_FIRST_MS;
}

/* When the next one is announced: as long before its time as workers need to hear of it. */
static int64_t announce_at(const struct job_machine *m)
{
    int64_t interval = jm_interval_ms(m);
    int64_t lead = JM_LEAD_MS + (m->step_ms < 1e6 ? (int64_t)(2 * m->step_ms) : 0);
    return m->save_from + interval - (lead < interval / 2 ? lead : interval / 2);
}

static bool may_announce(const struct job_machine *m)
{
    return by_time(m) && m->state == JOB_RUNNING && m->end_to == JOB_NONE &&
           m->intent == INTENT_NONE && !jm_saves_busy(m);
}

void jm_due_tick(struct jm_step *s)
{
    struct job_machine *m = s->m;
    if (!may_announce(m) || s->now < announce_at(m))
        return;
    m->save_from = s->now + jm_interval_ms(m) / 2; /* counted anew when it begins */
    jm_announce(s, false);
}

int64_t jm_due_deadline(const struct job_machine *m)
{
    return may_announce(m) ? announce_at(m) : INT64_MAX;
}

void jm_due_from(struct jm_step *s)
{
    s->m->save_from = s->now;
    s->m->saved_wall = s->ev->wall;
    s->m->dirty = true;
}

void jm_due_resume(struct jm_step *s)
{
    struct job_machine *m = s->m;
    int64_t ago = s->ev->wall - m->saved_wall;
    bool known = m->saved_wall > 0 && ago >= 0; /* the clock may have been set back */
    int64_t interval = jm_interval_ms(m);
    m->save_from = known ? s->now - (ago < interval ? ago : interval) : s->now;
}

/* ---- auto ---- */

static uint32_t count_nodes(const struct job_machine *m)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < m->config.ranks; i++) {
        uint32_t before = 0;
        while (before < i && strcmp(m->ranks[before].node, m->ranks[i].node) != 0)
            before++;
        count += before == i;
    }
    return count;
}

struct job_interval_facts jm_interval_facts(const struct job_machine *m)
{
    return (struct job_interval_facts){ .cost_us = m->cost_us,
                                        .write_ms = m->write_ms,
                                        .trained_ms = m->train_ms + m->lost_ms[LOST_REPLAY],
                                        .failures = m->failures,
                                        .nodes = count_nodes(m),
                                        .current_ms = m->interval_ms };
}

static void decide_interval(struct jm_step *s)
{
    struct job_machine *m = s->m;
    if (!m->config.every_auto || m->cost_us <= 0)
        return;
    struct job_interval_facts facts = jm_interval_facts(m);
    int64_t interval = job_interval_ms(&facts);
    if (interval == m->interval_ms)
        return;
    m->interval_ms = interval;
    jm_event(s, "interval",
             "a checkpoint every %.1f s from now on: it costs %.3f s of training and takes %.1f s "
             "to store; %u failures in %.0f s on %u nodes let expect one every %.0f s",
             (double)interval / 1e3, (double)m->cost_us / 1e6, (double)m->write_ms / 1e3,
             m->failures, (double)facts.trained_ms / 1e3, facts.nodes,
             job_interval_mtbf_ms(&facts) / 1e3);
}

static int64_t average(int64_t old, int64_t new)
{
    return old == 0 ? new : old + (new - old) * 3 / 10;
}

void jm_note_cost(struct jm_step *s, const struct jm_save *save)
{
    struct job_machine *m = s->m;
    if (save->cost_us > 0) {
        m->cost_us = average(m->cost_us, save->cost_us);
        m->write_ms = average(m->write_ms, save->write_ms);
        m->dirty = true;
    }
    decide_interval(s);
}

void jm_note_failure(struct jm_step *s)
{
    s->m->failures++;
    s->m->dirty = true;
    decide_interval(s);
}

/* ---- a worker that was told something ---- */

static bool leaves_already(const struct job_machine *m)
{
    for (int i = 0; i < JM_ANNOUNCED_MAX; i++) {
        if (m->announced[i].step > 0 && m->announced[i].exit)
            return true;
    }
    return false;
}

void jm_on_wanted(struct jm_step *s)
{
    struct job_machine *m = s->m;
    const struct job_event *ev = s->ev;
    bool leaves = ev->flag;
    bool runs = m->state == JOB_RUNNING || m->state == JOB_SAVING;
    if (m->end_to != JOB_NONE || (!runs && !leaves) || leaves_already(m))
        return;
    if (!leaves) {
        jm_event(s, "save", "rank %u: %.300s", ev->rank, ev->message);
        jm_announce(s, false);
        return;
    }
    jm_event(s, "preempted",
             "rank %u on node %s: %.200s; it leaves within %.1f s, all save before and go on anew",
             ev->rank, m->ranks[ev->rank].node, ev->message, (double)ev->at / 1e3);
    m->restarts++;
    if (runs) {
        jm_announce(s, true);
    } else {
        jm_end_generation(s, JOB_RECOVERING, false); /* nothing new is there to be saved */
    }
}

/* ---- no room ---- */

/* Nothing is lost by it but the checkpoint: training goes on, the next due one is a new try. The
 * last one of a job, or before a pause, is tried again by the workers themselves. */
void jm_save_refuse(struct jm_step *s, int index, const char *why)
{
    struct job_machine *m = s->m;
    struct jm_save *save = &m->saves[index];
    bool first = m->refused_row == 0;
    bool exit = false;
    m->refused++;
    m->refused_row++;
    jm_text(m->refused_reason, sizeof m->refused_reason, why);
    if (!jm_announced_exit(m, save->step))
        (void)jm_forget_announced(m, save->step, &exit);
    if (first) {
        jm_event(s, "store-full", "step %llu is not saved, training goes on: %.380s",
                 (unsigned long long)save->step, why);
    }
    if (m->state == JOB_RUNNING) {
        jm_set_reason(m, "no room for the checkpoint of step %llu: %.400s",
                      (unsigned long long)save->step, why);
    }
    jm_save_drop(s, index, why, false);
    jm_retain(s); /* makes room */
}

bool jm_unsaved(struct jm_step *s, const char *why)
{
    struct job_machine *m = s->m;
    const struct jm_ckpt *newest = jm_newest(m);
    unsigned long long since = newest ? newest->step : 0;
    if ((m->state != JOB_RUNNING && m->state != JOB_SAVING) || m->end_to != JOB_NONE)
        return false;
    if (!m->unsaved)
        jm_event(s, "store-fails", "no checkpoint since step %llu: %.400s", since, why);
    m->unsaved = true;
    if (m->state == JOB_RUNNING)
        jm_set_reason(m, "no checkpoint since step %llu: %.400s", since, why);
    return true;
}

void jm_room_again(struct jm_step *s, uint64_t step)
{
    struct job_machine *m = s->m;
    if (m->unsaved)
        jm_event(s, "store-works", "step %llu is saved", (unsigned long long)step);
    m->unsaved = false;
    m->late_told = false;
    if (m->refused_row == 0)
        return;
    jm_event(s, "store-room", "step %llu is saved; the store had no room for the %u before",
             (unsigned long long)step, m->refused_row);
    m->refused_row = 0;
}
