/*
 * Jobs, checkpoints and nodes as the messages of control.proto.
 *
 * Memory: what comes back is on the heap, to be freed by the message's free_unpacked(…, NULL).
 *         NULL: no memory.
 */
#pragma once

#include "cairn/v1/control.pb-c.h"
#include "server/core.h"

#define RENDER_EVENTS 1000 /* the newest events of a job that GetJob and ExplainJob show */

/* "2026-01-02T03:04:05.678Z"; 0: "". */
void render_time(int64_t wall_ms, char out[32]);

Cairn__V1__Job *render_job(struct core *core, struct core_job *job, bool with_events);
Cairn__V1__Checkpoint *render_ckpt(const struct core_job *job, const struct jm_ckpt *ckpt);
Cairn__V1__Node *render_node(struct core *core, const struct core_node *node);

/* For people: what happened, where each second went, first cause first. Owned by the caller. */
char *explain_job(struct core *core, struct core_job *job);
