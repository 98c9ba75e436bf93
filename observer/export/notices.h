/*
 * Hands jobs to the webhooks: each job when something about it changed that an event may tell of,
 * and now and then while it runs.
 *
 * Thread: one at a time.
 */
#pragma once

#include "common/log.h"
#include "common/paths.h"
#include "observer/coordinator/coordinator.h"
#include "observer/snapshot/snapshot.h"

#define NOTICES_EVERY_MS 30000 /* a job that runs, without a change that lists show */
#define NOTICES_ONCE_MAX 64 /* jobs that are asked for in one look: the rest comes with the next */

struct notices;

/* All arguments are borrowed. */
MUST_CHECK enum status notices_new(struct coordinator *coordinator, const struct paths *paths,
                                   const struct log *log, struct notices **out);
void notices_look(struct notices *notices, const struct snapshot *snapshot);
/* Messages that are not delivered yet. */
size_t notices_waiting(struct notices *notices);
/* Frees it; messages that aren't delivered are kept for the next run. NULL is let through. */
void notices_free(struct notices *notices);
