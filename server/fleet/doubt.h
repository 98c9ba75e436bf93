/*
 * A node that is not heard any more while others are: is it dead, or is it cut off from the
 * coordinator alone? Up to DOUBT_WITNESSES others are asked whether they reach it.
 *
 *   NONE               -> ASKED           [doubt_begin]   so early that answers are in when it is
 *                                                         due to be called lost
 *   ASKED              -> REACHED         [doubt_answer]  one of them does: it lives
 *   ASKED              -> UNREACHED       [doubt_answer]  all of them have answered, and none does
 *   ASKED              -> UNREACHED       [doubt_tick]    DOUBT_ROUND_MS passed, and of those who
 *                                                         answered none does
 *   ASKED              -> NONE            [doubt_tick]    nobody answered: others are asked
 *   ASKED              -> UNKNOWN         [doubt_tick]    the same, after DOUBT_ROUNDS
 *   NONE               -> UNKNOWN         [doubt_begin]   there is nobody to ask
 *   REACHED            -> ASKED           [doubt_begin]   again, every DOUBT_AGAIN_MS
 *   any                -> NONE            [doubt_end]     it is heard
 *
 * A witness that says nothing for DOUBT_ROUND_MS is silent itself (OUTAGE_QUIET_MS): so whether all
 * fell silent at once is known before anybody is judged without a witness.
 *
 * Pure; monotonic ms.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/limits.h"
#include "common/reason.h"

#define DOUBT_WITNESSES 3
#define DOUBT_LEAD_MS   1500 /* before a node is due: a probe takes 1 s */
#define DOUBT_ROUND_MS  3000
#define DOUBT_ROUNDS    2
#define DOUBT_AGAIN_MS  2000
#define DOUBT_MAX_MS    300000 /* cut off for longer, a node is lost: as an outage (outage.h) */

enum doubt_state { DOUBT_NONE, DOUBT_ASKED, DOUBT_REACHED, DOUBT_UNREACHED, DOUBT_UNKNOWN };

struct doubt_witness {
    char node[LIMIT_NAME];
    bool answered, reached;
    char saw[LIMIT_SAW];
};

struct doubt {
    enum doubt_state state;
    bool reached;     /* in the newest round that was answered, while it is ASKED again */
    uint64_t round;   /* number that the witnesses are asked with */
    uint32_t rounds;  /* without an answer */
    int64_t asked_at; /* the newest round began */
    struct doubt_witness witness[DOUBT_WITNESSES];
    size_t count;            /* of them; none: UNKNOWN */
    char said[LIMIT_REASON]; /* the evidence of the newest round that was answered; "": none */
};

/* Begins a round of questions about the node. names: of the nodes that are asked, at most
 * DOUBT_WITNESSES. */
void doubt_begin(struct doubt *doubt, const char *const *names, size_t count, uint64_t round,
                 int64_t now);
/* Takes what the agent of `node` says in that round. true: the state changed. */
bool doubt_answer(struct doubt *doubt, const char *node, uint64_t round, bool reached,
                  const char *saw);
/* Ends a round whose time is over. true: the state changed. */
bool doubt_tick(struct doubt *doubt, int64_t now);
/* Makes a node that was REACHED count as reached still, though nobody could be asked about it
 * meanwhile. */
void doubt_again(struct doubt *doubt, int64_t now);
void doubt_end(struct doubt *doubt);
/* Returns when doubt_tick or doubt_begin has something to do; INT64_MAX: never. */
int64_t doubt_deadline(const struct doubt *doubt);
