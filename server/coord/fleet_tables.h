/*
 * The core's tables of nodes: how one is found, its times, which of its slots are taken; and
 * withdrawn certificates.
 */
#pragma once

#include "server/coord/state.h"

/* Called after a change of a node: when it is heard, silent, blamed. */
void coord_node_moved(struct coord *coord, struct coord_node *node);
int64_t coord_node_deadline(const struct coord *coord, const struct coord_node *node);
/* Returns when a node that is not heard any more is called silent. */
int64_t coord_node_due(const struct coord *coord, const struct coord_node *node);
/* Counts the slots of a node that are in use: node->used and the numbers beside it are right from
 * now on. false: no memory; the core failed. */
bool coord_node_count(struct coord *coord, struct coord_node *node);
/* Returns the ranks that hold slots on the node now: a copy of the list, by job and rank; free().
 * NULL: there are none, or no memory, and the core failed. */
struct coord_rank **coord_ranks_of(struct coord *coord, const struct coord_node *node,
                                   size_t *out_count);
struct coord_node *coord_node_make(struct coord *coord, const char *name); /* NULL: LIMIT_NODES */
/* Returns the node of that name, made if there is none. With LIMIT_NODES of them the entry of one
 * that has left, was forgotten or is unheard for long goes, if it holds nothing. Nobody may have a
 * pointer to such a node. NULL: none may go, or no memory. */
struct coord_node *coord_node_admit(struct coord *coord, const char *name);
void coord_nodes_release(struct coord *coord);
/* Notes a withdrawal of certificates, in memory. ST_NO_MEMORY */
MUST_CHECK enum status coord_put_withdrawn(struct coord *coord, const char *name, int64_t time_s);
/* Drops the withdrawals of before that time; returns how many these were. */
size_t coord_drop_withdrawn(struct coord *coord, int64_t before_s);
void coord_release_withdrawn(struct coord *coord);
/* Notes that a trainer that no job has, killed at `since`, holds that slot; coord_orphan_gone: it
 * was seen to be gone. Nothing is added twice. */
void coord_orphan_add(struct coord *coord, struct coord_node *node,
                      const Cairn__V1__TrainerRef *ref, uint32_t slot, int64_t since);
void coord_orphan_gone(struct coord *coord, struct coord_node *node,
                       const Cairn__V1__TrainerRef *ref);
/* True if the GPU's compute capability is enough, or not known. */
bool coord_gpu_serves(const struct coord_gpu *gpu);
/* True if the node has slots of this device kind, of a capability that is enough. */
bool coord_node_has(const struct coord_node *node, const char *device);
