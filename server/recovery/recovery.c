#include "server/recovery/recovery.h"

#include <stdio.h>

#include "common/check.h"

const char *recovery_kind_name(enum recovery_kind kind)
{
    static const char *const names[RECOVERY_KINDS] = {
        [RECOVERY_SEED] = "seed",
        [RECOVERY_CHECKPOINT] = "checkpoint",
        [RECOVERY_MEMORY] = "memory",
        [RECOVERY_LIVE] = "live",
    };
    CHECK(kind < RECOVERY_KINDS);
    return names[kind];
}

const char *recovery_part_name(enum recovery_part part)
{
    static const char *const names[RECOVERY_PARTS] = {
        [RECOVERY_DETECT] = "detect", [RECOVERY_END] = "end",         [RECOVERY_WAIT] = "wait",
        [RECOVERY_FORM] = "form",     [RECOVERY_RESTORE] = "restore", [RECOVERY_REPLAY] = "replay",
    };
    CHECK(part < RECOVERY_PARTS);
    return names[part];
}

void recovery_begin(struct recovery *r, uint32_t ended, uint64_t mark, int64_t detect_ms,
                    int64_t wall_ms)
{
    CHECK(r->state != RECOVERY_FORMING);
    *r = (struct recovery){ .state = RECOVERY_ENDING,
                            .ended = ended,
                            .rank = RECOVERY_ALL_RANKS,
                            .mark = mark,
                            .wall_ms = wall_ms,
                            .booked_ms = wall_ms,
                            .ms = { [RECOVERY_DETECT] = detect_ms } };
}

void recovery_blame(struct recovery *r, uint32_t fault, uint32_t rank, const char *node,
                    const char *phase, const char *message)
{
    CHECK(r->state == RECOVERY_ENDING);
    r->fault = fault;
    r->rank = rank;
    (void)snprintf(r->node, sizeof(r->node), "%s", node);
    (void)snprintf(r->phase, sizeof(r->phase), "%s", phase);
    (void)snprintf(r->message, sizeof(r->message), "%s", message);
}

void recovery_form(struct recovery *r, uint32_t generation)
{
    CHECK(r->state == RECOVERY_ENDING);
    r->state = RECOVERY_FORMING;
    r->generation = generation;
}

void recovery_restored(struct recovery *r, enum recovery_kind kind, uint64_t step, uint64_t mark)
{
    CHECK(r->state == RECOVERY_FORMING);
    r->kind = kind;
    r->step = step;
    r->mark = mark;
}

void recovery_close(struct recovery *r, bool done, int64_t late_ms)
{
    CHECK(r->state == RECOVERY_FORMING);
    int64_t *replay = &r->ms[RECOVERY_REPLAY];
    r->state = done ? RECOVERY_DONE : RECOVERY_CUT;
    *replay -= late_ms < *replay ? late_ms : *replay;
}

void recovery_book(struct recovery *r, enum recovery_part part, int64_t ms, int64_t wall_ms)
{
    CHECK(recovery_open(r));
    r->booked_ms = wall_ms;
    if (ms > 0)
        r->ms[part] += ms;
}

bool recovery_open(const struct recovery *r)
{
    return r->state == RECOVERY_ENDING || r->state == RECOVERY_FORMING;
}

uint64_t recovery_steps_lost(const struct recovery *r)
{
    return r->generation > 0 && r->mark > r->step ? r->mark - r->step : 0;
}

int64_t recovery_total_ms(const struct recovery *r)
{
    int64_t total = 0;
    for (int i = 0; i < RECOVERY_PARTS; i++)
        total += r->ms[i];
    return total;
}
