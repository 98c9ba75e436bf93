/*
 * Which slots a job's workers get: a pure function of what is free.
 *
 * Nodes of less penalty come first. Among equals: all on one node if one has room, on the fullest
 * that fits, so that large gaps stay; else on as few nodes as possible, the emptiest first. Nodes
 * that are lost or unsupervised take nobody, nor do those that are excluded or avoided.
 *
 * Nodes share a job only where their workers reach each other: in one net, and with a port for each
 * of the other workers to each worker. On one node none of that matters.
 *
 * Only one is taken of two nodes that are apart (they were seen not to reach each other). If both
 * would be taken, the one that is apart from more others is left out first.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/limits.h"
#include "common/reason.h"
#include "common/status.h"

/* The slots of one device kind on one node. */
struct place_node {
    const char *name;
    const char *device;
    uint32_t first; /* number of its first slot */
    uint32_t slots;
    const bool *used; /* slots of them */
    uint32_t stuck;   /* slots that don't come free: broken, or held by who doesn't die */
    uint32_t kept;    /* free slots that are for jobs which come first; PLACE_ALL: all */
    const char *host; /* its address */
    const char *net;  /* equal: they reach each other (place_net) */
    uint32_t ports;   /* where its workers may listen; 0: any */
    bool ready;
    bool reachable;   /* ready, or not away for long */
    bool leaving;     /* the node leaves, has left, or is kept free */
    bool excluded;    /* its pins are not the job's */
    bool avoided;     /* the job is kept away from it, for another reason */
    uint32_t penalty; /* 0: none */
};

#define PLACE_ALL UINT32_MAX

/* Indices of two nodes. */
struct place_pair {
    uint32_t a, b;
};

struct place_ask {
    uint32_t count;
    const char *device;
    const struct place_pair *apart;
    size_t apart_count;
};

struct place_slot {
    uint32_t node; /* index */
    uint32_t slot; /* number on its node */
};

/*
 * Chooses slots for the workers. out: ask->count of them, consecutive ranks side by side.
 * Errors: ST_AGAIN        not now; reason says what is missing
 *         ST_UNREACHABLE  enough slots are free, but on nodes that are apart; reason names two
 *         ST_REFUSED      a registered node would have to change first: of another device
 */
MUST_CHECK enum status place_workers(const struct place_node *nodes, size_t node_count,
                                     const struct place_ask *ask, struct place_slot *out,
                                     struct reason *reason);
#define PLACE_NODES_MAX ((size_t)LIMIT_NODES * 2) /* CPU shares and GPUs */
/*
 * Returns whether the job could be placed if all slots were free that may come to be free. These
 * are the slots of nodes in reach that stay and are not apart, without those that are stuck. Jobs
 * that they are kept for don't matter.
 * out_kept: PLACE_ALL for each node that the job may be on then, others are left as they are; or
 * NULL.
 */
bool place_fits(const struct place_node *nodes, size_t node_count, const struct place_ask *ask,
                uint32_t *out_kept);
/* Like place_fits, but a node that leaves counts, too: the question is whether there are other
 * nodes for the job at all. */
bool place_fits_in_reach(const struct place_node *nodes, size_t node_count,
                         const struct place_ask *ask);

#define PLACE_NET 64
/* Writes the net of an address: that of its family; a loopback address is its machine's own. */
void place_net(const char *host, const char *machine, char out[PLACE_NET]);
