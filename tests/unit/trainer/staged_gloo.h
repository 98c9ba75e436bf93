/*
 * Gloo between ranks on devices, or all on one, that NCCL would refuse to connect: what goes and
 * what comes is copied through host memory, and every call returns when it is through.
 *
 * Thread: the one that communicates, as of any communicator.
 */
#pragma once

#include "comm/comm.h"

const struct comm_table *staged_gloo(void);
