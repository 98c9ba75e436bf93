/* What workers and machines use, as they say it. */
#pragma once

#include "server/coord/state.h"

/* Takes what a rank of this generation, no spare, says of operations and traffic with its progress;
 * coord_take_usage: takes what an agent's beat says of machine and workers. */
void coord_note_rank_report(struct coord_job *job, uint32_t rank,
                            const Cairn__V1__Progress *progress);
void coord_take_usage(struct coord_node *node, const Cairn__V1__AgentBeat *beat);
