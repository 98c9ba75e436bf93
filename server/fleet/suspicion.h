/*
 * A node that is not heard any more while others are: is it dead, or is it cut off from the
 * coordinator alone? Up to SUSPICION_WITNESSES others are asked whether they reach it.
 *
 *   NONE       -> ASKED      [suspicion_begin]   so early that answers are in when it is
 *                                                 due to be called lost
 *   ASKED      -> REACHED    [suspicion_answer]  one of them does: it lives
 *   ASKED      -> UNREACHED  [suspicion_answer]  all of them have answered, and none does
 *   ASKED      -> UNREACHED  [suspicion_tick]    SUSPICION_ROUND_MS passed, and of those who
 *                                                 answered none does
 *   ASKED      -> NONE       [suspicion_tick]    nobody answered: others are asked
 *   ASKED      -> UNKNOWN    [suspicion_tick]    the same, after SUSPICION_ROUNDS
 *   NONE       -> UNKNOWN    [suspicion_begin]   there is nobody to ask
 *   REACHED    -> ASKED      [suspicion_begin]   again, every SUSPICION_AGAIN_MS
 *   any        -> NONE       [suspicion_end]     it is heard
 *
 * A witness that says nothing for SUSPICION_ROUND_MS is silent itself (ISOLATION_QUIET_MS): so
 * whether all fell silent at once is known before anybody is judged without a witness.
 *
 * Pure; monotonic ms.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/limits.h"
#include "common/reason.h"

#define SUSPICION_WITNESSES 3
#define SUSPICION_LEAD_MS   1500 /* before a node is due: a probe takes 1 s */
#define SUSPICION_ROUND_MS  3000
#define SUSPICION_ROUNDS    2
#define SUSPICION_AGAIN_MS  2000
#define SUSPICION_MAX_MS    300000 /* a node that is cut off for longer is lost (isolation.h) */

enum suspicion_state {
    SUSPICION_NONE,
    SUSPICION_ASKED,
    SUSPICION_REACHED,
    SUSPICION_UNREACHED,
    SUSPICION_UNKNOWN
};

struct suspicion_witness {
    char node[LIMIT_NAME];
    bool answered, reached;
    char saw[LIMIT_SAW];
};

struct suspicion {
    enum suspicion_state state;
    bool reached;     /* in the newest round that was answered, while it is ASKED again */
    uint64_t round;   /* number that the witnesses are asked with */
    uint32_t rounds;  /* without an answer */
    int64_t asked_at; /* the newest round began */
    struct suspicion_witness witness[SUSPICION_WITNESSES];
    size_t count;            /* of them; none: UNKNOWN */
    char said[LIMIT_REASON]; /* the evidence of the newest round that was answered; "": none */
};

/* Begins a round of questions about the node. names: of the nodes that are asked, at most
 * SUSPICION_WITNESSES. */
void suspicion_begin(struct suspicion *suspicion, const char *const *names, size_t count,
                     uint64_t round, int64_t now);
/* Takes what the agent of `node` says in that round. true: the state changed. */
bool suspicion_answer(struct suspicion *suspicion, const char *node, uint64_t round, bool reached,
                      const char *saw);
/* Ends a round whose time is over. true: the state changed. */
bool suspicion_tick(struct suspicion *suspicion, int64_t now);
/* Makes a node that was REACHED count as reached still, though nobody could be asked about it
 * meanwhile. */
void suspicion_again(struct suspicion *suspicion, int64_t now);
void suspicion_end(struct suspicion *suspicion);
/* Returns when suspicion_tick or suspicion_begin has something to do; INT64_MAX: never. */
int64_t suspicion_deadline(const struct suspicion *suspicion);
