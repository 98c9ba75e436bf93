/* Failures: which cause counts, and what is done about it. */
#pragma once

#include "server/jobfsm/ctx.h"

/* Reports a sign of a failure. The generation fails at once, or a little later where a better sign
 * may follow. */
void fsm_report_fault(struct fsm_ctx *t, const struct fsm_fault *fault);
void fsm_window_tick(struct fsm_ctx *t);
/* Notes that the pins of the event's rank are not the job's: its node is left out. The generation
 * fails a little later, so that nodes of others whose pins differ are left out, too. */
void fsm_note_pins(struct fsm_ctx *t, const char *difference);
/* Called when another rank said its pins: if some differ, the generation fails once all have said
 * theirs. */
void fsm_pins_tick(struct fsm_ctx *t);
#define FSM_NODE_LOST "neither its agent nor the worker was heard"
/* Called while a generation is being ended: the node of the rank is gone. A failure that others saw
 * first (communication, a lost session) is then recorded as the loss of that node. */
void fsm_node_was_lost(struct fsm_ctx *t, uint32_t rank);
/* Handles a broken path between two nodes of the newest generation: it ends the generation, or is
 * why that ended. */
void fsm_on_path(struct fsm_ctx *t);
/* Ends the generation by a failure. The cause decides what comes next: mostly another generation;
 * FAILED only where that would fail, too. */
void fsm_handle_fault(struct fsm_ctx *t, const struct fsm_fault *reported);
void fsm_on_nowhere(struct fsm_ctx *t);
