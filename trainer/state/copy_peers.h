/*
 * Peers for copies: every rank has a *copy peer* on another node, which holds the copies of its
 * share, its *peer copies*. A pure function of the ranks' nodes: all ranks find the
 * same.
 *
 * Thread: any.
 */
#pragma once

#include <stdint.h>

#include "common/status.h"

/*
 * out[r]: rank r's copy peer. nodes: per rank. Each rank holds the copies of one other, except
 * where more than half of all ranks are on one node: then the others share those.
 * Errors: ST_NOT_FOUND  all are on one node
 *         ST_NO_MEMORY
 */
MUST_CHECK enum status copy_peers_choose(char *const *nodes, uint32_t size, uint32_t *out);
/* Counts the ranks that have `rank` as their copy peer. */
uint32_t copy_peers_count(const uint32_t *copy_peers, uint32_t size, uint32_t rank);
