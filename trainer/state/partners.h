/*
 * Partners for copies: every rank has a *partner* on another node, which holds the copies of its
 * share; it is a *ward* of that partner. A pure function of the ranks' nodes: all ranks find the
 * same.
 *
 * Thread: any.
 */
#pragma once

#include <stdint.h>

#include "common/status.h"

/*
 * out[r]: rank r's partner. nodes: per rank. Each rank has one ward, except where more than half of
 * all ranks are on one node: then the others share those.
 * Errors: ST_NOT_FOUND  all are on one node
 *         ST_NO_MEMORY
 */
MUST_CHECK enum status partners_choose(char *const *nodes, uint32_t size, uint32_t *out);
/* Counts the ranks that have `rank` as their partner. */
uint32_t partners_wards(const uint32_t *partners, uint32_t size, uint32_t rank);
