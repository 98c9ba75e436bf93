/* Trainers that leave: those of a generation that ends, and those kept for the next one. */
#include "common/check.h"
#include "server/machine/internal.h"

/* Tells of a process that SIGKILL, ordered long ago, doesn't end though its agent is there: it is
 * in the kernel, which waits for a device. It won't run a single instruction of its own any
 * more. */
static void tell_undying(struct machine_turn *t, uint32_t index)
{
    const struct machine_rank *rank = &t->m->ranks[index];
    machine_tell(t, "undying",
                 "rank %u on node %s, slot %u, process %u: SIGKILL doesn't end it; its slot takes "
                 "no worker until it is gone",
                 index, rank->node, rank->slot, rank->pid);
    struct machine_action *act = machine_act(t, MACHINE_ACT_OVER);
    act->rank = index;
    machine_text(act->message, LIMIT_REASON, "this generation has ended");
}

/* Ends trainers that should have left by now, and counts those as gone of which nobody will ever
 * say that they are. */
void machine_watch_ending(struct machine_turn *t)
{
    struct machine *m = t->m;
    if (m->ending.hard_at != 0 && t->now >= m->ending.hard_at && !machine_all_left(m)) {
        m->ending.hard_at = 0;
        m->ending.ended_at = t->now;
        m->ending.again_at = t->now + MACHINE_END_AGAIN_MS;
        machine_act(t, MACHINE_ACT_END);
        return;
    }
    if (m->ending.hard_at != 0 && !m->ending.parks)
        return;
    const bool hard = m->ending.hard_at == 0;
    for (uint32_t i = 0; i < m->size; i++) {
        struct machine_rank *rank = &m->ranks[i];
        bool killed = hard && !rank->parked; /* a rank that has parked is left alone */
        bool never = killed && !rank->started && t->now - m->ending.ended_at >= MACHINE_NEVER_MS;
        bool missing = rank->missing_at != 0 && t->now - rank->missing_at >= MACHINE_MISSING_MS;
        bool lost = machine_is_silent(t, rank);
        bool undying = killed && t->now - m->ending.ended_at >= MACHINE_UNDYING_MS;
        if (rank->gone || t->now < m->grace_until)
            continue;
        if (t->out->count >= MACHINE_ACTIONS_MAX / 2) {
            m->watched_at = t->now - MACHINE_WATCH_MS; /* the others as soon as these are done */
            break;
        }
        if (never || missing) {
            machine_rank_gone(m, i);
            m->dirty = true;
        } else if (lost || undying) {
            machine_count_as_gone(t, i);
            if (!lost)
                tell_undying(t, i);
        }
        if (lost)
            machine_node_was_lost(t, i);
    }
    if (!hard && t->now >= m->ending.again_at)
        machine_park_again(t);
    if (hard && !machine_all_left(m) && t->now >= m->ending.again_at) {
        m->ending.again_at = t->now + MACHINE_END_AGAIN_MS;
        machine_act(t, MACHINE_ACT_END);
    }
}

/* True if the rank's session is lost, or silent, for longer than one may be. */
static bool is_unheard(const struct machine_turn *t, const struct machine_rank *rank)
{
    const struct machine *m = t->m;
    if (rank->session)
        return t->now - rank->heard_at >= machine_mute_ms(m);
    const int64_t since = rank->lost_at != 0 ? rank->lost_at : rank->heard_at;
    return t->now - since >= machine_session_ms(m);
}

/* Watches workers that are kept for the next generation: one that is lost is not kept any longer,
 * and all are ended if that generation doesn't begin in time. */
void machine_watch_kept(struct machine_turn *t)
{
    struct machine *m = t->m;
    const bool awaits =
        machine_awaits_word(m) && t->now < m->grace_until + 2 * machine_session_ms(m);
    if (awaits && m->ending.kept_until < t->now + MACHINE_KEEP_MS)
        m->ending.kept_until = t->now + MACHINE_KEEP_MS; /* nobody looks for slots before */
    if (t->now >= m->ending.kept_until) {
        machine_tell(t, "kept", "the next generation did not begin within %d s: all start anew%s%s",
                     MACHINE_KEEP_MS / 1000, m->reason[0] ? "; " : "", m->reason);
        bool asked = m->intent == MACHINE_INTENT_PAUSE || m->intent == MACHINE_INTENT_DRAIN;
        machine_end_generation(t, asked ? machine_intended(m->intent) : MACHINE_RECOVERING, false);
        return;
    }
    for (uint32_t i = 0; i < m->size && t->now >= m->grace_until; i++) {
        struct machine_rank *rank = &m->ranks[i];
        if (t->out->count >= MACHINE_ACTIONS_MAX / 2) {
            m->watched_at = t->now - MACHINE_WATCH_MS; /* the others as soon as these are done */
            break;
        }
        bool missing = rank->missing_at != 0 && t->now - rank->missing_at >= MACHINE_MISSING_MS;
        if (!rank->gone && missing) {
            machine_rank_gone(m, i);
            m->dirty = true;
            machine_act(t, MACHINE_ACT_SCHEDULE);
        } else if (!rank->gone && (machine_is_silent(t, rank) || is_unheard(t, rank))) {
            machine_count_as_gone(t, i);
            machine_act(t, MACHINE_ACT_SCHEDULE);
        }
    }
}
