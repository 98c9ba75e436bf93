/*
 * Paths between two nodes that may be broken: pairs of nodes that are heard, while a job that runs
 * on both got stuck. Their agents are asked to reach each other, in rounds.
 *
 *   not in the list -> TRIED            [netpaths_suspect]
 *   TRIED           -> not in the list  [settle_round]  both directions worked
 *   TRIED           -> not in the list  [netpaths_tick]  an agent gave no answer: nothing is known
 *   TRIED           -> CUT              [settle_round]  one direction failed NETPATHS_ROUNDS times
 *   CUT             -> not in the list  [settle_round]  both directions worked, in one round
 *   CUT             -> not in the list  [netpaths_tick]  its time is over, and nobody can tell
 *   CUT             -> CUT              [settle_round]  NETPATHS_CUT again, where it was doubted
 *
 * A round counts only if both agents answered: so both live, and it is the path that is broken, not
 * one of the machines. TRIED takes NETPATHS_ROUNDS of them, a second each: a machine that stands
 * still for a while, or a lost packet, is no broken path.
 *
 * No job gets both nodes of a CUT path. It is tried again when its time is over, which doubles each
 * time that it failed; and every NETPATHS_AGAIN_MS while a job waits for it (netpaths_want).
 *
 * Pure; monotonic ms. Kept in memory only: after a restart of the coordinator a broken path shows
 * again.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/limits.h"
#include "common/reason.h"

#define NETPATHS_MAX          256 /* with more, further ones are not suspected */
#define NETPATHS_ROUNDS       3
#define NETPATHS_GAP_MS       1000 /* from the begin of one round to that of the next */
#define NETPATHS_ROUND_MS     3000 /* for both answers: a probe takes 1 s, and they travel */
#define NETPATHS_AGAIN_MS     2000
#define NETPATHS_WANTED_MS    10000 /* from the last job that waited */
#define NETPATHS_AVOID_MS     (INT64_C(1000) * 60 * 10)
#define NETPATHS_AVOID_MAX_MS (16 * NETPATHS_AVOID_MS)

/* The things that node[i] saw of the other one. */
struct netpath_side {
    bool answered, reached; /* in this round */
    bool worked;            /* in one of the rounds since it is TRIED */
    char saw[LIMIT_SAW];
};

struct netpath {
    char node[2][LIMIT_NAME];
    struct netpath_side side[2];
    bool cut;          /* else TRIED */
    uint64_t round;    /* the number of the round under way; 0: none is */
    int64_t begun_at;  /* the newest round */
    uint32_t failed;   /* rounds, while TRIED */
    bool suspected;    /* CUT: a job that has both nodes got stuck: it is tried once more */
    int64_t cut_until; /* CUT: tried again then */
    int64_t avoid_ms;  /* the time until then, as it was chosen last */
};

struct netpaths {
    struct netpath list[NETPATHS_MAX];
    size_t count;
    uint64_t rounds; /* number of the newest */
    int64_t wanted_until;
};

enum netpaths_news {
    NETPATHS_NOTHING,
    NETPATHS_WORKS,  /* the path was suspected wrongly */
    NETPATHS_CUT,    /* from now on */
    NETPATHS_HEALED, /* not any more */
    NETPATHS_UNKNOWN /* nobody can tell whether the path is broken */
};

/* Suspects a pair, which is to be tried. A CUT one is tried once more, as a job that had both nodes
 * before it was CUT got stuck. */
void netpaths_suspect(struct netpaths *paths, const char *a, const char *b);
/* True if the path is CUT. */
bool netpaths_is_cut(const struct netpaths *paths, const char *a, const char *b);
/* Notes that a job waits for CUT paths to work again. */
void netpaths_want(struct netpaths *paths, int64_t now);
/* Ends the rounds of this node's paths: what was asked of its agent is not answered any more, or
 * the answer means another agent. */
void netpaths_forget_rounds(struct netpaths *paths, const char *node);

/* Returns when netpaths_due or netpaths_tick has something to do; INT64_MAX: never. */
int64_t netpaths_deadline(const struct netpaths *paths);
/* Returns a path whose next round is due, or NULL. netpaths_begin starts the round and returns its
 * number, which both agents are asked with; netpaths_give_up: one of them can't be asked. */
struct netpath *netpaths_due(struct netpaths *paths, int64_t now);
uint64_t netpaths_begin(struct netpaths *paths, struct netpath *path, int64_t now);
enum netpaths_news netpaths_give_up(struct netpaths *paths, struct netpath *path, int64_t now);
/* Ends a round that got no answers in time, one with each call; `out`: the path as it was. */
enum netpaths_news netpaths_tick(struct netpaths *paths, int64_t now, struct netpath *out);
/* Takes what the agent of `node` says in that round; `out`: the path as it was after it. */
enum netpaths_news netpaths_answer(struct netpaths *paths, const char *node, uint64_t round,
                                   bool reached, const char *saw, int64_t now, struct netpath *out);
/* Writes "a and b can't reach each other", and what each side saw. */
void netpaths_describe(const struct netpath *path, struct reason *out);
