#include "server/fleet/suspicion.h"

#include <stdio.h>
#include <string.h>

#include "common/check.h"

void suspicion_begin(struct suspicion *suspicion, const char *const *names, size_t count,
                     uint64_t round, int64_t now)
{
    CHECK(count <= SUSPICION_WITNESSES && suspicion->state != SUSPICION_ASKED);
    suspicion->state = count > 0 ? SUSPICION_ASKED : SUSPICION_UNKNOWN;
    suspicion->reached = suspicion->reached && count > 0;
    suspicion->round = round;
    suspicion->asked_at = now;
    suspicion->count = count;
    for (size_t i = 0; i < count; i++) {
        struct suspicion_witness *witness = &suspicion->witness[i];
        *witness = (struct suspicion_witness){ .answered = false };
        (void)snprintf(witness->node, sizeof(witness->node), "%s", names[i]);
    }
}

/* "seen from a: ...; from b: ..." */
static void describe(struct suspicion *suspicion)
{
    struct reason all = { "" };
    for (size_t i = 0; i < suspicion->count; i++) {
        const struct suspicion_witness *witness = &suspicion->witness[i];
        const struct reason before = all;
        reason_set(&all, "%.300s%s from %.60s: %s", before.text, before.text[0] ? ";" : "seen",
                   witness->node, witness->answered ? witness->saw : "no answer came");
    }
    (void)snprintf(suspicion->said, sizeof(suspicion->said), "%s", all.text);
}

static void settle(struct suspicion *suspicion, bool reached)
{
    suspicion->state = reached ? SUSPICION_REACHED : SUSPICION_UNREACHED;
    suspicion->reached = reached;
    suspicion->rounds = 0;
    describe(suspicion);
}

bool suspicion_answer(struct suspicion *suspicion, const char *node, uint64_t round, bool reached,
                      const char *saw)
{
    bool all = true;
    if (suspicion->state != SUSPICION_ASKED || suspicion->round != round)
        return false;
    for (size_t i = 0; i < suspicion->count; i++) {
        struct suspicion_witness *witness = &suspicion->witness[i];
        if (strcmp(witness->node, node) == 0) {
            witness->answered = true;
            witness->reached = reached;
            (void)snprintf(witness->saw, sizeof(witness->saw), "%.*s",
                           (int)sizeof(witness->saw) - 1, saw);
        }
        all = all && witness->answered;
    }
    if (reached || all)
        settle(suspicion, reached);
    return reached || all;
}

bool suspicion_tick(struct suspicion *suspicion, int64_t now)
{
    bool some = false;
    if (suspicion->state != SUSPICION_ASKED || now < suspicion->asked_at + SUSPICION_ROUND_MS)
        return false;
    for (size_t i = 0; i < suspicion->count; i++)
        some = some || suspicion->witness[i].answered;
    if (some) {
        settle(suspicion, false);
    } else {
        suspicion->state =
            ++suspicion->rounds < SUSPICION_ROUNDS ? SUSPICION_NONE : SUSPICION_UNKNOWN;
        suspicion->reached = suspicion->reached && suspicion->state == SUSPICION_NONE;
    }
    return true;
}

void suspicion_again(struct suspicion *suspicion, int64_t now)
{
    suspicion->state = SUSPICION_REACHED;
    suspicion->rounds = 0;
    suspicion->asked_at = now;
}

void suspicion_end(struct suspicion *suspicion)
{
    *suspicion = (struct suspicion){ .state = SUSPICION_NONE };
}

int64_t suspicion_deadline(const struct suspicion *suspicion)
{
    switch (suspicion->state) {
    case SUSPICION_ASKED:
        return suspicion->asked_at + SUSPICION_ROUND_MS;
    case SUSPICION_REACHED:
        return suspicion->asked_at + SUSPICION_AGAIN_MS;
    case SUSPICION_NONE:
    case SUSPICION_UNREACHED:
    case SUSPICION_UNKNOWN:
        break;
    }
    return INT64_MAX;
}
