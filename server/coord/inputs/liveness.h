/* Nodes that fall silent, and the time in which none is judged. */
#pragma once

#include "server/coord/state.h"

void coord_note_heard(struct coord *coord, struct coord_node *node);
void coord_beat_interval_changed(struct coord *coord); /* by another agent that has come */
/* Takes what an agent says of a probe; server/coord/inputs/probe_results.c calls it, too. */
void coord_take_probed(struct coord *coord, const struct coord_node *from,
                       const Cairn__V1__ProbeResult *result);
void coord_nodes_tick(struct coord *coord); /* looks at nodes whose time has come */
void coord_grace_tick(struct coord *coord); /* ends or extends the time of grace */
