#include "server/fleet/pairs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"

enum status pairs_open(struct pairs *pairs, const char *const *names, uint32_t count, bool all)
{
    CHECK(count >= 2 && count <= LIMIT_NODES);
    if (pairs->on)
        return ST_AGAIN;
    if (all && count > PAIRS_NODES_MAX)
        return ST_FULL;
    char(*copy)[LIMIT_NAME] = calloc(count, sizeof(*copy));
    if (copy == NULL)
        return ST_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++)
        (void)snprintf(copy[i], sizeof(copy[i]), "%s", names[i]);
    const bool ring = !all && count > PAIRS_ALL_NODES;
    *pairs = (struct pairs){ .on = true,
                             .names = copy,
                             .count = count,
                             .ring = ring,
                             .total = ring ? count : count * (count - 1) / 2,
                             .ids = pairs->ids < PAIRS_IDS ? PAIRS_IDS : pairs->ids };
    return ST_OK;
}

void pairs_close(struct pairs *pairs)
{
    free(pairs->names);
    *pairs = (struct pairs){ .ids = pairs->ids };
}

/*
 * All pairs: the rounds of a tournament, where every node plays once in each: number n - 1 stays,
 * the others go round. With an odd number of nodes one is added that plays with nobody, so that
 * each round has (n - 1) / 2 pairs. Ring: first those that begin at an even place.
 */
void pairs_pick(const struct pairs *pairs, uint32_t at, uint32_t out[2])
{
    CHECK(at < pairs->total);
    const uint32_t n = pairs->count;
    if (pairs->ring) {
        const uint32_t even = (n + 1) / 2;
        out[0] = at < even ? 2 * at : 2 * (at - even) + 1;
        out[1] = (out[0] + 1) % n;
        return;
    }
    const uint32_t per_round = n / 2;
    const uint32_t circle = n % 2 == 0 ? n - 1 : n; /* nodes that go round */
    const uint32_t round = at / per_round, place = at % per_round;
    if (n % 2 == 0 && place == 0) {
        out[0] = round;
        out[1] = n - 1;
        return;
    }
    const uint32_t away = place + (n % 2); /* from who plays with nobody, or with n - 1 */
    out[0] = (round + away) % circle;
    out[1] = (round + circle - away) % circle;
}

static bool is_busy(const struct pairs *pairs, const uint32_t node[2])
{
    for (uint32_t i = 0; i < pairs->try_count; i++) {
        const uint32_t *of = pairs->tries[i].node;
        if (of[0] == node[0] || of[0] == node[1] || of[1] == node[0] || of[1] == node[1])
            return true;
    }
    return false;
}

/* True if the next pair can begin. Pairs begin in order: one whose nodes are busy holds back those
 * after it. */
static bool can_begin(const struct pairs *pairs, uint32_t node[2])
{
    if (!pairs->on || pairs->begun == pairs->total || pairs->try_count == PAIRS_AT_ONCE ||
        pairs->try_count + pairs->done_count >= PAIRS_DONE_MAX)
        return false;
    pairs_pick(pairs, pairs->begun, node);
    return !is_busy(pairs, node);
}

static void enter(struct pairs *pairs, struct pairs_try *try, enum pairs_phase phase)
{
    try->phase = phase;
    try->id = ++pairs->ids;
    try->asked = false;
    try->answered[0] = phase == PAIRS_BACK;
    try->answered[1] = phase == PAIRS_FORTH;
}

static struct pairs_try *begin_next(struct pairs *pairs)
{
    uint32_t node[2];
    if (!can_begin(pairs, node))
        return NULL;
    struct pairs_try *try = &pairs->tries[pairs->try_count++];
    *try = (struct pairs_try){ .node = { node[0], node[1] } };
    pairs->begun++;
    enter(pairs, try, PAIRS_REACH);
    return try;
}

/* Ends a phase: the next one that has something to measure begins, or the pair is done. */
static void move_on(struct pairs *pairs, struct pairs_try *try)
{
    if (try->phase == PAIRS_REACH && try->side[0].reached) {
        enter(pairs, try, PAIRS_FORTH);
    } else if (try->phase != PAIRS_BACK && try->side[1].reached) {
        enter(pairs, try, PAIRS_BACK);
    } else {
        CHECK(pairs->done_count < PAIRS_DONE_MAX);
        pairs->done[pairs->done_count++] = *try;
        *try = pairs->tries[--pairs->try_count];
    }
}

const struct pairs_try *pairs_due(struct pairs *pairs, int64_t now)
{
    struct pairs_try *due = NULL;
    for (uint32_t i = 0; i < pairs->try_count && due == NULL; i++)
        due = pairs->tries[i].asked ? NULL : &pairs->tries[i];
    if (due == NULL)
        due = begin_next(pairs);
    if (due == NULL)
        return NULL;
    due->asked = true;
    due->until = now + PAIRS_ANSWER_MS;
    return due;
}

static void take(struct pairs_try *try, int at, const struct pairs_answer *answer)
{
    struct pairs_side *side = &try->side[at];
    try->answered[at] = true;
    if (try->phase == PAIRS_REACH) {
        side->reached = answer->reached;
        side->reach_us = answer->reach_us;
    } else {
        side->measured = answer->reached && answer->took_us > 0;
        side->bytes = answer->bytes;
        side->took_us = answer->took_us;
        if (side->measured)
            return; /* what it saw of the way is said already */
    }
    (void)snprintf(side->saw, sizeof(side->saw), "%.*s", (int)sizeof(side->saw) - 1, answer->saw);
}

void pairs_answered(struct pairs *pairs, const char *node, const struct pairs_answer *answer)
{
    for (uint32_t i = 0; i < pairs->try_count; i++) {
        struct pairs_try *try = &pairs->tries[i];
        if (try->id != answer->id || !try->asked)
            continue;
        for (int at = 0; at < 2; at++) {
            if (!try->answered[at] && strcmp(pairs->names[try->node[at]], node) == 0)
                take(try, at, answer);
        }
        if (try->answered[0] && try->answered[1])
            move_on(pairs, try);
        return;
    }
}

int64_t pairs_deadline(const struct pairs *pairs)
{
    uint32_t node[2];
    int64_t at = INT64_MAX;
    for (uint32_t i = 0; i < pairs->try_count; i++) {
        const struct pairs_try *try = &pairs->tries[i];
        const int64_t next = try->asked ? try->until : 0;
        at = next < at ? next : at;
    }
    return can_begin(pairs, node) ? 0 : at;
}

void pairs_tick(struct pairs *pairs, int64_t now)
{
    for (uint32_t i = pairs->try_count; i > 0; i--) { /* a pair that fills a place was looked at */
        struct pairs_try *try = &pairs->tries[i - 1];
        if (!try->asked || now < try->until)
            continue;
        for (int at = 0; at < 2; at++) {
            const struct pairs_answer none = { .saw = "its agent gave no answer" };
            if (!try->answered[at])
                take(try, at, &none);
        }
        move_on(pairs, try);
    }
}

bool pairs_fetch(struct pairs *pairs, struct pairs_try *out)
{
    if (pairs->done_count == 0)
        return false;
    *out = pairs->done[0];
    pairs->done_count--;
    memmove(pairs->done, pairs->done + 1, pairs->done_count * sizeof(pairs->done[0]));
    return true;
}

bool pairs_over(const struct pairs *pairs)
{
    return pairs->begun == pairs->total && pairs->try_count == 0 && pairs->done_count == 0;
}

bool pairs_side_ok(const struct pairs_side *side)
{
    return side->reached && side->measured;
}

void pairs_way_out(const struct pairs *pairs, const struct pairs_try *done, int at,
                   struct reason *out)
{
    const struct pairs_side *side = &done->side[at], *back = &done->side[!at];
    const char *from = pairs->names[done->node[at]], *to = pairs->names[done->node[!at]];
    if (pairs_side_ok(side)) {
        out->text[0] = '\0';
    } else if (side->reached) {
        reason_set(out,
                   "small packets pass and data don't: is the MTU the same on the whole way from "
                   "%.100s to %.100s?",
                   from, to);
    } else if (back->reached) {
        reason_set(out,
                   "%.100s reaches %.100s, so the way is there: let the TCP ports of %.100s's "
                   "agent (--ports) in at its firewall",
                   to, from, to);
    } else {
        reason_set(out,
                   "is that the address of %.100s's network for training (--interface or --host of "
                   "its agent)? If so, a firewall or a missing route is in between: let the TCP "
                   "ports of its agent (--ports) in",
                   to);
    }
}
