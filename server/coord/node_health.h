/*
 * Verdicts on nodes: what is held against them, which are judged, and which paths are suspected.
 */
#pragma once

#include "server/coord/state.h"

/* Take what an agent's hello or beat says of its GPUs, and of its clock. */
void coord_take_gpus(struct coord *coord, struct coord_node *node, Cairn__V1__Gpu *const *gpus,
                     size_t count);
void coord_take_clock(struct coord *coord, struct coord_node *node, uint64_t wall_ms);
/* Holds a failure of the job against the node of that rank, as it was the node's fault. */
void coord_blame_node(struct coord *coord, struct coord_job *job, uint32_t rank);
/* Notes that the node computes wrongly, if others could do its work. */
void coord_accuse_node(struct coord *coord, const struct coord_job *job,
                       const struct fsm_action *act);
/* Takes back what this job's failures hold against nodes, as it failed elsewhere, too. */
void coord_clear_nodes(struct coord *coord, struct coord_job *job);
void coord_verdicts_tick(struct coord *coord, struct coord_node *node); /* forgets what is old */
/* Excuses silence in the time for which this process didn't run, counted from what coord_deadline
 * promised. */
void coord_excuse(struct coord *coord);
/* True if the node was heard within COORD_REACH_MS: it may take jobs, now or soon. */
bool coord_node_in_reach(const struct coord *coord, const struct coord_node *node);

/* Suspects the paths between the nodes of the job's generation, which got stuck: they are tried. */
void coord_netpaths_suspect(struct coord *coord, const struct coord_job *job);
/* True while a path between nodes of the job's newest generation is being tried. */
bool coord_netpaths_open(const struct coord *coord, const struct coord_job *job);
/* True if a rank of the job's newest generation is, or was, on that node. */
bool coord_has_node(const struct coord_job *job, const char *node);

/* Sets how often agents beat, and when they are silent, by how many there are. */
void coord_beat_interval_set(struct coord *coord);
/* Returns the time over which agents and trainers spread what they do when their streams were lost.
 * It is about to be told to one of them, and none is judged sooner. */
uint32_t coord_update_spread(struct coord *coord);
/* Returns how long a node is unheard when all but one of a few beats were missed. */
int64_t coord_quiet_ms(const struct coord *coord);
