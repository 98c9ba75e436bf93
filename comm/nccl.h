/*
 * NCCL behind the comm table (comm.h). Only the module of the device links it: comm_gloo is all
 * that a machine without one has.
 */
#pragma once

#include "comm/comm.h"

/* Static. */
const struct comm_table *comm_nccl(void);
