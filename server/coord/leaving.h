/* Nodes that give their slots back: they leave, or are drained. */
#pragma once

#include "server/coord/state.h"

/* Applies an event to the job of every rank that holds a slot there, which may move ranks.
 * why_leaving is FSM_EV_LEAVING's. The queue is looked at again. */
void coord_apply_to_ranks(struct coord *coord, struct coord_node *node, enum fsm_event_kind kind,
                          const char *why_leaving);
/* Drains the nodes that coord_accuse_node noted. */
void coord_drain_accused(struct coord *coord);
/* Notes that a node leaves: it takes no more trainers; those that are there save and go on
 * elsewhere. */
void coord_node_leaving(struct coord *coord, struct coord_node *node,
                        const Cairn__V1__AgentLeaving *leaving);
/* Notes that a node's agent had other names: those nodes have left, or leave where workers are,
 * once they are silent. */
void coord_node_renamed(struct coord *coord, const struct coord_node *node,
                        const Cairn__V1__AgentHello *hello);
/* Notes that nothing of a node is left; its stream ends. */
void coord_node_left(struct coord *coord, struct coord_node *node);
/* Marks a node as drained, as the journal has it; until: mono ms, or 0. */
void coord_node_drain(struct coord *coord, struct coord_node *node, const char *reason,
                      int64_t until);
/* Handles a node whose drain's time is over: workers that are still there are ended, once a second.
 * A silent node that has an heir leaves. */
void coord_stay_tick(struct coord *coord, struct coord_node *node);
/* Notes by the hello of a node's agent that the node stays. */
void coord_node_stays(struct coord_node *node);
