/* What a job waits for: in the queue, or by its own state. */
#include <stdio.h>

#include "common/check.h"
#include "server/coord/base.h"
#include "server/coord/index.h"
#include "server/coord/node_health.h"

/* Adds from which nodes the job keeps away, until when, and how that ends before. */
static void add_shunned(const struct coord *coord, const struct coord_job *job, struct reason *out)
{
    struct reason told = { "" }, before = *out;
    exclusion_describe(&job->m.exclusions, clock_wall_ms(coord->options.clock), &told);
    if (told.text[0]) {
        reason_set(out,
                   "%.220s; keeps away from %s; at once with an agent that is started anew there, "
                   "or by cairn pause and cairn resume",
                   before.text, told.text);
    }
}

void coord_reason(const struct coord *coord, const struct coord_job *job, struct reason *out)
{
    const bool wants = coord_job_queues(job) && fsm_wants_slots(&job->m, coord_now(coord));
    const struct coord_job *other = wants ? ordered_get(&coord->queue, job->behind) : NULL;
    if (coord_is_unreadable(job)) {
        reason_set(out, "%s", job->unreadable);
    } else if (wants && coord->draining_until != 0) {
        reason_set(out, "the coordinator is going down; the job goes on when it is up again");
    } else if (other != NULL) {
        reason_set(out, "waits behind %s (%s), which %s", other->name, other->id,
                   other->m.state == FSM_QUEUED ? "was submitted before" : "is under way");
    } else if (!job->m.reason[0] && !fsm_state_final(job->m.state) && coord->full) {
        reason_set(out, "%s", COORD_JOURNAL_FULL);
    } else {
        reason_set(out, "%s", job->m.reason);
        if (wants)
            add_shunned(coord, job, out);
    }
}

/* Names the two nodes of the job between which a path is under test. */
static void set_path(const struct coord *coord, const struct coord_job *job,
                     struct fsm_blocked *out)
{
    const struct netpath *open = NULL;
    for (size_t i = 0; i < coord->netpaths.count && open == NULL; i++) {
        const struct netpath *path = &coord->netpaths.list[i];
        if (!path->cut && coord_has_node(job, path->node[0]) && coord_has_node(job, path->node[1]))
            open = path;
    }
    CHECK(open != NULL);
    out->by = FSM_BLOCK_PATH;
    (void)snprintf(out->text, sizeof(out->text),
                   "the network path between node %s and node %s is under test", open->node[0],
                   open->node[1]);
}

void coord_blocked(const struct coord *coord, const struct coord_job *job, struct fsm_blocked *out)
{
    struct reason why;
    *out = (struct fsm_blocked){ .by = FSM_BLOCK_NONE };
    if (coord == NULL)
        return; /* the job ended, and was read from the journal */
    out->by = FSM_BLOCK_UNREADABLE;
    if (!coord_is_unreadable(job))
        fsm_blocked(&job->m, coord_now(coord), out);
    if (out->by != FSM_BLOCK_SLOTS && out->by != FSM_BLOCK_UNREADABLE)
        return;
    const bool wants = out->by == FSM_BLOCK_SLOTS;
    if (wants && coord->draining_until != 0) {
        out->by = FSM_BLOCK_DRAINING;
    } else if (wants && ordered_get(&coord->queue, job->behind) != NULL) {
        out->by = FSM_BLOCK_QUEUE;
    } else if (wants && coord_netpaths_open(coord, job)) {
        set_path(coord, job, out);
        return;
    }
    coord_reason(coord, job, &why);
    (void)snprintf(out->text, sizeof(out->text), "%s", why.text);
}
