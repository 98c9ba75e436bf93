/*
 * Whether a store has room for the checkpoints that a job keeps and the one beside them that is
 * written: a warning, as sizes and what else needs room are known about only.
 */
#pragma once

#include "client/base/client.h"
#include "jobspec/jobspec.h"

/* How many checkpoints there are at a time, with the one that is written. */
uint64_t capacity_count(const struct jobspec *job);

/* Warns on standard error; a checkpoint takes jobspec_state_bytes, about. free_bytes: in the store;
 * UINT64_MAX: not known. */
void capacity_warn(const struct client *client, const struct jobspec *job, uint64_t free_bytes);
