#include "server/fleet/doubt.h"

#include <stdio.h>
#include <string.h>

#include "common/check.h"

void doubt_begin(struct doubt *doubt, const char *const *names, size_t count, uint64_t round,
                 int64_t now)
{
    CHECK(count <= DOUBT_WITNESSES && doubt->state != DOUBT_ASKED);
    doubt->state = count > 0 ? DOUBT_ASKED : DOUBT_UNKNOWN;
    doubt->reached = doubt->reached && count > 0;
    doubt->round = round;
    doubt->asked_at = now;
    doubt->count = count;
    for (size_t i = 0; i < count; i++) {
        struct doubt_witness *witness = &doubt->witness[i];
        *witness = (struct doubt_witness){ .answered = false };
        (void)snprintf(witness->node, sizeof witness->node, "%s", names[i]);
    }
}

/* "seen from a: ...; from b: ..." */
static void describe(struct doubt *doubt)
{
    struct reason all = { "" };
    for (size_t i = 0; i < doubt->count; i++) {
        const struct doubt_witness *witness = &doubt->witness[i];
        const struct reason before = all;
        reason_set(&all, "%.300s%s from %.60s: %s", before.text, before.text[0] ? ";" : "seen",
                   witness->node, witness->answered ? witness->saw : "no answer came");
    }
    (void)snprintf(doubt->said, sizeof doubt->said, "%s", all.text);
}

static void settle(struct doubt *doubt, bool reached)
{
    doubt->state = reached ? DOUBT_REACHED : DOUBT_UNREACHED;
    doubt->reached = reached;
    doubt->rounds = 0;
    describe(doubt);
}

bool doubt_answer(struct doubt *doubt, const char *node, uint64_t round, bool reached,
                  const char *saw)
{
    bool all = true;
    if (doubt->state != DOUBT_ASKED || doubt->round != round)
        return false;
    for (size_t i = 0; i < doubt->count; i++) {
        struct doubt_witness *witness = &doubt->witness[i];
        if (strcmp(witness->node, node) == 0) {
            witness->answered = true;
            witness->reached = reached;
            (void)snprintf(witness->saw, sizeof witness->saw, "%.*s", (int)sizeof witness->saw - 1,
                           saw);
        }
        all = all && witness->answered;
    }
    if (reached || all)
        settle(doubt, reached);
    return reached || all;
}

bool doubt_tick(struct doubt *doubt, int64_t now)
{
    bool some = false;
    if (doubt->state != DOUBT_ASKED || now < doubt->asked_at + DOUBT_ROUND_MS)
        return false;
    for (size_t i = 0; i < doubt->count; i++)
        some = some || doubt->witness[i].answered;
    if (some) {
        settle(doubt, false);
    } else {
        doubt->state = ++doubt->rounds < DOUBT_ROUNDS ? DOUBT_NONE : DOUBT_UNKNOWN;
        doubt->reached = doubt->reached && doubt->state == DOUBT_NONE;
    }
    return true;
}

void doubt_again(struct doubt *doubt, int64_t now)
{
    doubt->state = DOUBT_REACHED;
    doubt->rounds = 0;
    doubt->asked_at = now;
}

void doubt_end(struct doubt *doubt)
{
    *doubt = (struct doubt){ .state = DOUBT_NONE };
}

int64_t doubt_deadline(const struct doubt *doubt)
{
    switch (doubt->state) {
    case DOUBT_ASKED:
        return doubt->asked_at + DOUBT_ROUND_MS;
    case DOUBT_REACHED:
        return doubt->asked_at + DOUBT_AGAIN_MS;
    case DOUBT_NONE:
    case DOUBT_UNREACHED:
    case DOUBT_UNKNOWN:
        break;
    }
    return INT64_MAX;
}
