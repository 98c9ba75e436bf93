/*
 * A check of the paths between nodes, asked for by a person. For each pair it finds whether its
 * agents reach each other, then how much gets from one to the other in a moment, and back.
 *
 *   waiting -> REACH  [pairs_due]   both nodes are free, and what is known was fetched
 *   REACH   -> FORTH  [move_on]     both have answered, or the time is over
 *   FORTH   -> BACK   [move_on]     the same of the first node, which sends
 *   BACK    -> done   [move_on]     the same of the second one
 *
 * A direction that wasn't reached can't be measured, and is passed over. A node is in one pair at a
 * time: it sends or takes PAIRS_MEASURE_MS of data, PAIRS_MEASURE_BYTES at most, then again the
 * other way.
 *
 * Of PAIRS_ALL_NODES nodes or fewer all pairs are tried. Of more, each node is tried with the next
 * one, which finds the node that is wrong with 1/n-th of the work. A person may insist on all
 * pairs, of PAIRS_NODES_MAX nodes at most.
 *
 * Bounds: PAIRS_AT_ONCE pairs under way, PAIRS_DONE_MAX results that nobody fetched yet.
 *
 * Pure; monotonic ms.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/limits.h"
#include "common/reason.h"
#include "common/status.h"

#define PAIRS_ALL_NODES     32
#define PAIRS_NODES_MAX     128 /* 8,128 pairs: some five minutes */
#define PAIRS_AT_ONCE       16
#define PAIRS_DONE_MAX      64
#define PAIRS_MEASURE_MS    200
#define PAIRS_MEASURE_BYTES (UINT64_C(64) * 1024 * 1024)
#define PAIRS_ANSWER_MS     4000 /* an agent gives up after 3 s, and its answer travels */
#define PAIRS_TOKEN         16   /* bytes: PROBE_NONCE of agents */

enum pairs_phase { PAIRS_REACH, PAIRS_FORTH, PAIRS_BACK };

/* The things that node[i] saw of the other one. */
struct pairs_side {
    bool reached, measured;
    uint64_t reach_us;       /* 0: not said */
    uint64_t bytes, took_us; /* if measured: bytes that arrived there, and their time */
    char saw[LIMIT_SAW];
};

struct pairs_try {
    uint32_t node[2];
    enum pairs_phase phase;
    bool asked;       /* the agents were asked in this phase */
    bool answered[2]; /* in this phase; true of an agent that has nothing to answer */
    uint64_t id;      /* of this phase, in its orders and their answers */
    int64_t until;
    struct pairs_side side[2];
};

struct pairs {
    bool on;                   /* a check is under way, or not fetched */
    char (*names)[LIMIT_NAME]; /* owned */
    uint32_t count;
    bool ring;
    uint32_t total, begun; /* pairs */
    struct pairs_try tries[PAIRS_AT_ONCE];
    uint32_t try_count;
    struct pairs_try done[PAIRS_DONE_MAX]; /* the oldest first */
    uint32_t done_count;
    uint64_t ids;               /* the newest: above PAIRS_IDS, so none of a round of netpaths.h */
    uint8_t token[PAIRS_TOKEN]; /* the owner's: by it an agent knows that it may be sent data */
};

#define PAIRS_IDS (UINT64_C(1) << 63)

/* The parts of an agent's answer. */
struct pairs_answer {
    uint64_t id;
    bool reached;
    uint64_t reach_us, bytes, took_us;
    const char *saw;
};

/*
 * Begins a check of different nodes: two at least.
 * Errors: ST_AGAIN      another one is on
 *         ST_FULL       all of more than PAIRS_NODES_MAX
 *         ST_NO_MEMORY
 */
MUST_CHECK enum status pairs_open(struct pairs *pairs, const char *const *names, uint32_t count,
                                  bool all);
/* Forgets the check; answers that come later mean nothing. */
void pairs_close(struct pairs *pairs);
/* Picks pair number `at` of the check, from 0 to total - 1. */
void pairs_pick(const struct pairs *pairs, uint32_t at, uint32_t out[2]);

/* Returns a pair whose nodes are to be asked now, its deadline counted from this call; NULL: none
 * now. A node whose answered[i] is set has nothing to do. The pair is valid until the next call of
 * any of these. */
const struct pairs_try *pairs_due(struct pairs *pairs, int64_t now);
/* Takes what the agent of that node says. */
void pairs_answered(struct pairs *pairs, const char *node, const struct pairs_answer *answer);
/* Returns when pairs_due or pairs_tick has something to do; INT64_MAX: never. */
int64_t pairs_deadline(const struct pairs *pairs);
/* Gives up agents that gave no answer in time. */
void pairs_tick(struct pairs *pairs, int64_t now);

/* Takes the next pair that is done; false: none now. */
bool pairs_fetch(struct pairs *pairs, struct pairs_try *out);
/* True if every pair was done, and fetched. */
bool pairs_over(const struct pairs *pairs);

/* True if the other node was reached, and what was sent arrived. */
bool pairs_side_ok(const struct pairs_side *side);
/* Says what a person may do about what node[at] of the pair saw; "" if that is ok. */
void pairs_way_out(const struct pairs *pairs, const struct pairs_try *done, int at,
                   struct reason *out);
