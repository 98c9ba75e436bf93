/* What trainers report, as the state machine takes it. */
#pragma once

#include "server/coord/state.h"

struct fsm_fault coord_fault(const Cairn__V1__Fault *in);
void coord_take_report(struct coord *coord, struct coord_job *job, uint32_t rank,
                       const Cairn__V1__SaveReport *report);
