/*
 * All nodes silent at once: then the coordinator's own network rather than all of them is at fault.
 * Nobody is judged (the hold) until one is heard again, or for ISOLATION_MAX_MS: nodes that never
 * come back are not waited for without end. After a hold that ran out there is no other one before
 * one is heard.
 *
 * Only nodes that are heard over the network count, and only if there are two or more. From one
 * alone nothing can be told, and an agent on this machine's socket is heard through any outage.
 *
 * Pure; monotonic ms.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define ISOLATION_QUIET_MS 3000   /* of the others, when the first is due: beats come each second */
#define ISOLATION_MAX_MS   300000 /* a switch that is started anew takes minutes */
#define ISOLATION_LOOK_MS  500    /* how often it is looked at */

struct isolation {
    int64_t since;     /* 0: there is none */
    int64_t looked_at; /* while there is one */
    bool spent;        /* the newest ran out, and nobody was heard since */
};

/* The state of the nodes that are heard over the network and not called silent already. */
struct isolation_sight {
    uint32_t nodes, quiet; /* quiet: neither the agent nor a worker for ISOLATION_QUIET_MS */
    bool due;              /* a node would be called silent now */
};

enum isolation_turn { ISOLATION_NONE, ISOLATION_BEGINS, ISOLATION_HOLDS, ISOLATION_ENDS };

enum isolation_turn isolation_look(struct isolation *isolation, const struct isolation_sight *sight,
                                   int64_t now);
/* Notes that a node, or a worker there, was heard over the network. */
void isolation_heard(struct isolation *isolation);
