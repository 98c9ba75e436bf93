/* The rendezvous of a generation, in which its ranks find each other. */
#pragma once

#include "server/coord/state.h"

/* Takes a rank's part of a round; with the last one all are answered. */
void coord_rendezvous_join(struct coord *coord, struct coord_job *job, uint32_t rank,
                           const Cairn__V1__RendezvousJoin *join);
