#include "server/story/story.h"

#include <stdio.h>
#include <string.h>

#include "server/jobfsm/jobfsm.h"

const char *story_cause(uint32_t fault)
{
    if (fault >= STORY_FAULTS)
        return "unknown"; /* of a later version */
    return fault == FSM_FAULT_NONE ? "planned" : fsm_fault_name((enum fsm_fault_kind)fault);
}

static void count_node(struct story *story, const char *name)
{
    uint32_t i = 0;
    while (i < story->node_count && strcmp(story->nodes[i].name, name) != 0)
        i++;
    if (i == STORY_NODES || !name[0])
        return;
    (void)snprintf(story->nodes[i].name, sizeof(story->nodes[i].name), "%s", name);
    story->nodes[i].count++;
    story->node_count += i == story->node_count;
}

void story_add(struct story *story, const struct recovery *r)
{
    if (r->state == RECOVERY_NONE || r->fault >= STORY_FAULTS)
        return;
    struct story_loss *loss = &story->of[r->fault];
    loss->count++;
    loss->steps += recovery_steps_lost(r);
    for (int i = 0; i < RECOVERY_PARTS; i++)
        loss->ms[i] += r->ms[i];
    loss->rank = r->rank;
    loss->ended = r->ended;
    (void)snprintf(loss->node, sizeof(loss->node), "%s", r->node);
    if (r->kind == RECOVERY_CHECKPOINT || r->kind == RECOVERY_SEED)
        story->stored_ms += r->ms[RECOVERY_REPLAY];
    if (r->fault != FSM_FAULT_NONE)
        count_node(story, r->node);
}

/* ---- one recovery ---- */

/* True if the message names the phase: an agent that saw the process knows better than what the
 * worker said last. */
static bool says_phase(const struct recovery *r)
{
    return strstr(r->message, "in phase ") != NULL || strstr(r->message, r->phase) != NULL;
}

static enum status tell_cause(const struct recovery *r, struct buf *out)
{
    if (r->fault == FSM_FAULT_NONE)
        return buf_printf(out, "generation %u ended as planned", r->ended);
    enum status st = buf_printf(out, "%s", story_cause(r->fault));
    if (st == ST_OK && r->rank != RECOVERY_ALL_RANKS)
        st = buf_printf(out, ", rank %u on %s", r->rank, r->node);
    if (st == ST_OK && r->phase[0] && !says_phase(r))
        st = buf_printf(out, ", in %s", r->phase);
    return st == ST_OK ? buf_printf(out, ": %s", r->message) : st;
}

/* Returns from where a generation went on, in words. */
static const char *from(enum recovery_kind kind)
{
    switch (kind) {
    case RECOVERY_SEED:
        return "from the beginning";
    case RECOVERY_CHECKPOINT:
        return "from a checkpoint";
    case RECOVERY_MEMORY:
        return "from copies in memory";
    case RECOVERY_LIVE:
        return "with the workers that were left";
    }
    return "";
}

static enum status tell_deed(const struct recovery *r, bool over, struct buf *out)
{
    if (r->generation == 0)
        return buf_printf(out, "; no generation follow%s", over ? "ed" : "s yet");
    const uint64_t steps = recovery_steps_lost(r);
    enum status st = buf_printf(out, "; generation %u went on from step %llu, %s; %llu step%s lost",
                                r->generation, (unsigned long long)r->step, from(r->kind),
                                (unsigned long long)steps, steps == 1 ? "" : "s");
    if (st == ST_OK && r->state == RECOVERY_CUT)
        st = buf_printf(out, "; it ended before it had caught up");
    if (st == ST_OK && r->state == RECOVERY_FORMING)
        st = buf_printf(out, "; under way");
    return st;
}

enum status story_recovery(const struct recovery *r, bool over, struct buf *out)
{
    enum status st = tell_cause(r, out);
    if (st == ST_OK)
        st = tell_deed(r, over, out);
    if (st == ST_OK)
        st = buf_printf(out, "; %.2f s:", (double)recovery_total_ms(r) / 1e3);
    for (int i = 0; st == ST_OK && i < RECOVERY_PARTS; i++) {
        st = buf_printf(out, "%s %s %.2f", i ? "," : "", recovery_part_name((enum recovery_part)i),
                        (double)r->ms[i] / 1e3);
    }
    return st;
}

/* ---- all of them ---- */

enum status story_losses(const struct story *story, struct buf *out)
{
    bool any = false;
    for (uint32_t i = 0; i < STORY_FAULTS; i++)
        any = any || story->of[i].count > 0;
    if (!any)
        return ST_OK;
    enum status st = buf_printf(out, "  %-20s %5s %7s %9s", "cause", "times", "steps", "seconds");
    for (int i = 0; st == ST_OK && i < RECOVERY_PARTS; i++)
        st = buf_printf(out, " %8s", recovery_part_name((enum recovery_part)i));
    for (uint32_t i = 0; st == ST_OK && i < STORY_FAULTS; i++) {
        const struct story_loss *loss = &story->of[i];
        if (loss->count == 0)
            continue;
        int64_t total = 0;
        for (int p = 0; p < RECOVERY_PARTS; p++)
            total += loss->ms[p];
        st = buf_printf(out, "\n  %-20s %5u %7llu %9.2f", story_cause(i), loss->count,
                        (unsigned long long)loss->steps, (double)total / 1e3);
        for (int p = 0; st == ST_OK && p < RECOVERY_PARTS; p++)
            st = buf_printf(out, " %8.2f", (double)loss->ms[p] / 1e3);
    }
    return st == ST_OK ? buf_append_text(out, "\n") : st;
}
