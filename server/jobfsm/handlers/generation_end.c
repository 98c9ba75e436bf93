/* Trainers that leave: those of a generation that ends, and those kept for the next one. */
#include "server/jobfsm/handlers/generation_end.h"

#include "common/check.h"
#include "server/jobfsm/failure_policy.h"
#include "server/jobfsm/park.h"
#include "server/jobfsm/spares.h"
#include "server/jobfsm/state.h"

/* Tells of a process that SIGKILL, ordered long ago, doesn't end though its agent is there: it is
 * in the kernel, which waits for a device. It won't run a single instruction of its own any
 * more. */
static void emit_unkillable(struct fsm_ctx *t, uint32_t index)
{
    const struct fsm_rank *rank = &t->m->ranks[index];
    fsm_emit_event(
        t, "undying",
        "rank %u on node %s, slot %u, process %u: SIGKILL doesn't end it; its slot takes "
        "no worker until it is gone",
        index, rank->node, rank->slot, rank->pid);
    struct fsm_action *act = fsm_act(t, FSM_ACT_CLOSE);
    act->rank = index;
    fsm_text(act->message, LIMIT_REASON, "this generation has ended");
}

/* Ends trainers that should have left by now, and counts those as gone of which nobody will ever
 * say that they are. */
void fsm_watch_ending(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (m->ending.hard_at != 0 && t->now >= m->ending.hard_at && !fsm_all_left(m)) {
        m->ending.hard_at = 0;
        FSM_GEN_MOVED(m);
        m->ending.ended_at = t->now;
        m->ending.again_at = t->now + FSM_END_AGAIN_MS;
        fsm_act(t, FSM_ACT_END);
        return;
    }
    if (m->ending.hard_at != 0 && !m->ending.parks)
        return;
    const bool hard = m->ending.hard_at == 0;
    for (uint32_t i = 0; i < m->size; i++) {
        struct fsm_rank *rank = &m->ranks[i];
        bool killed = hard && !rank->parked; /* a rank that has parked is left alone */
        bool never = killed && !rank->started && t->now - m->ending.ended_at >= FSM_NEVER_MS;
        bool missing = rank->missing_at != 0 && t->now - rank->missing_at >= FSM_MISSING_MS;
        bool lost = fsm_is_silent(t, rank);
        bool unkillable = killed && t->now - m->ending.ended_at >= FSM_UNKILLABLE_MS;
        if (rank->gone || t->now < m->grace_until)
            continue;
        if (t->out->count >= FSM_ACTIONS_MAX / 2) {
            m->watched_at = t->now - FSM_WATCH_MS; /* the others as soon as these are done */
            break;
        }
        if (never || missing) {
            fsm_rank_gone(m, i);
            m->dirty = true;
        } else if (lost || unkillable) {
            fsm_count_as_gone(t, i);
            if (!lost)
                emit_unkillable(t, i);
        }
        if (lost)
            fsm_node_was_lost(t, i);
    }
    if (!hard && t->now >= m->ending.again_at)
        fsm_park_again(t);
    if (hard && !fsm_all_left(m) && t->now >= m->ending.again_at) {
        m->ending.again_at = t->now + FSM_END_AGAIN_MS;
        fsm_act(t, FSM_ACT_END);
    }
}

/* True if the rank's session is lost, or silent, for longer than one may be. */
static bool is_unheard(const struct fsm_ctx *t, const struct fsm_rank *rank)
{
    const struct fsm *m = t->m;
    if (rank->session)
        return t->now - rank->heard_at >= fsm_mute_ms(m);
    const int64_t since = rank->lost_at != 0 ? rank->lost_at : rank->heard_at;
    return t->now - since >= fsm_session_ms(m);
}

/* Watches workers that are kept for the next generation: one that is lost is not kept any longer,
 * and all are ended if that generation doesn't begin in time. */
void fsm_watch_survivors(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    const bool awaits = fsm_awaits_word(m) && t->now < m->grace_until + 2 * fsm_session_ms(m);
    if (awaits && m->ending.survivors_until < t->now + FSM_KEEP_MS)
        m->ending.survivors_until = t->now + FSM_KEEP_MS; /* nobody looks for slots before */
    if (t->now >= m->ending.survivors_until) {
        fsm_emit_event(t, "kept",
                       "the next generation did not begin within %d s: all start anew%s%s",
                       FSM_KEEP_MS / 1000, m->reason[0] ? "; " : "", m->reason);
        bool asked = m->intent == FSM_INTENT_PAUSE || m->intent == FSM_INTENT_DRAIN;
        fsm_end_generation(t, asked ? fsm_intended(m->intent) : FSM_RECOVERING, false);
        return;
    }
    for (uint32_t i = 0; i < m->size && t->now >= m->grace_until; i++) {
        struct fsm_rank *rank = &m->ranks[i];
        if (t->out->count >= FSM_ACTIONS_MAX / 2) {
            m->watched_at = t->now - FSM_WATCH_MS; /* the others as soon as these are done */
            break;
        }
        bool missing = rank->missing_at != 0 && t->now - rank->missing_at >= FSM_MISSING_MS;
        if (!rank->gone && missing) {
            fsm_rank_gone(m, i);
            m->dirty = true;
            fsm_act(t, FSM_ACT_SCHEDULE);
        } else if (!rank->gone && (fsm_is_silent(t, rank) || is_unheard(t, rank))) {
            fsm_count_as_gone(t, i);
            fsm_act(t, FSM_ACT_SCHEDULE);
        }
    }
}
