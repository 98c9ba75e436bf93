/* What agents answer of paths between nodes (server/fleet/netpaths.h). */
#pragma once

#include "server/coord/state.h"

void coord_netpaths_answer(struct coord *coord, const struct coord_node *node,
                           const Cairn__V1__ProbeResult *result);
/* Called at the hello of a node's agent: it is another one, or the same anew. */
void coord_netpaths_hello(struct coord *coord, struct coord_node *node,
                          const Cairn__V1__AgentHello *hello);
void coord_netpaths_tick(struct coord *coord); /* asks agents, and gives up late answers */
void coord_pairs_tick(struct coord *coord);    /* like that, of a check that a person asked for */
