/*
 * Agreement on the interval of copies in memory: every rank says what it wants, or whether its node
 * has room for what the job asks for, and all take the same (session/memory/copy_interval.h).
 *
 * All are collectives of the worker's communicator, which nothing else may use meanwhile: before
 * the first step, or between two. Thread: the step thread.
 * Errors: ST_PEER, ST_STALE  comm/comm.h
 */
#pragma once

#include <stdint.h>

#include "common/reason.h"
#include "common/status.h"
#include "session/session.h"
#include "trainer/worker/worker.h"

/* mine: what this rank wants; out: what all take (session_copy_interval_agree). */
MUST_CHECK enum status copy_interval_agree(struct worker *worker, uint32_t mine, uint32_t *out);

struct copy_interval_options {
    struct worker *worker;
    const struct session_assignment *assignment;
    const char *copies; /* this job's folder for copy files; NULL: none */
};

/*
 * Sets memory_every, and core_free of its copy_cost, of a `ready` that is complete otherwise, as a
 * generation begins. Every generation decides anew: the workers of a node change, and its free
 * memory. why: "", or what keeps this rank from taking copies.
 */
MUST_CHECK enum status copy_interval_choose(const struct copy_interval_options *options,
                                            struct session_ready *ready, struct reason *why);

/* Sets memory_every where the job says how often (`every`, not 0): it is that, or 0 if the copies
 * of any rank's node find no room there. A file system that is too small is found here, before the
 * first copy. */
MUST_CHECK enum status copy_interval_ask(const struct copy_interval_options *options,
                                         uint64_t every, struct session_ready *ready,
                                         struct reason *why);
