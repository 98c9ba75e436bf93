#include "server/jobfsm/hang/hang.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/check.h"

static void order_init(struct hang_order *order)
{
    *order = (struct hang_order){ .behind = HANG_NOBODY };
}

void hang_init(struct hang *hang)
{
    hang->ranks = 0;
    order_init(&hang->collectives);
    order_init(&hang->pipe);
    for (uint32_t s = 0; s < LIMIT_STAGES; s++)
        order_init(&hang->exchanges[s]);
}

static void order_add(struct hang_order *order, uint32_t rank, uint64_t marks,
                      const struct hang_place *place, int64_t stopped_at)
{
    const bool inside = marks % 2 == 1;
    const uint64_t number = marks / 2 + marks % 2;
    if (number > order->front) {
        order->front = number;
        order->waiting_count = 0;
        (void)snprintf(order->name, sizeof(order->name), "%s", place->name);
    }
    if (inside && number == order->front) {
        if (order->waiting_count < HANG_NAMED)
            order->waiting[order->waiting_count] = rank;
        order->waiting_count++;
    }
    const bool further = order->behind == HANG_NOBODY || number < order->behind_at ||
                         (number == order->behind_at && stopped_at < order->behind_since);
    if (!inside && !place->in_pipe && further) {
        order->behind = rank;
        order->behind_at = number;
        order->behind_since = stopped_at;
    }
}

void hang_add(struct hang *hang, uint32_t rank, uint32_t stage, const struct hang_place *place,
              int64_t stopped_at)
{
    CHECK(stage < LIMIT_STAGES);
    hang->ranks++;
    if (place->name[0] == '\0')
        return;
    order_add(&hang->collectives, rank, place->collectives, place, stopped_at);
    order_add(&hang->exchanges[stage], rank, place->exchanges, place, stopped_at);
    if (place->in_pipe || place->collectives % 2 == 0)
        order_add(&hang->pipe, rank, place->in_pipe, place, stopped_at);
}

static uint32_t order_culprit(const struct hang_order *order)
{
    const bool holds_up =
        order->waiting_count > 0 && order->behind != HANG_NOBODY && order->behind_at < order->front;
    return holds_up ? order->behind : HANG_NOBODY;
}

/* Returns the order by which there is a culprit; NULL: none. */
static const struct hang_order *find_order(const struct hang *hang)
{
    if (order_culprit(&hang->collectives) != HANG_NOBODY)
        return &hang->collectives;
    if (order_culprit(&hang->pipe) != HANG_NOBODY)
        return &hang->pipe;
    for (uint32_t s = 0; s < LIMIT_STAGES; s++) {
        if (order_culprit(&hang->exchanges[s]) != HANG_NOBODY)
            return &hang->exchanges[s];
    }
    return NULL;
}

uint32_t hang_culprit(const struct hang *hang)
{
    const struct hang_order *order = find_order(hang);
    return order != NULL ? order_culprit(order) : HANG_NOBODY;
}

/* Writes "rank 3 waits", "ranks 0, 1 and 3 wait", "ranks 0, 1, 2, 3 and 996 more wait". */
static void name_waiting(const struct hang_order *order, char *out, size_t capacity)
{
    const uint32_t count = order->waiting_count;
    const uint32_t named = count < HANG_NAMED ? count : HANG_NAMED;
    size_t used = (size_t)snprintf(out, capacity, "rank%s", count == 1 ? "" : "s");
    for (uint32_t i = 0; i < named && used < capacity; i++) {
        const bool last = i > 0 && i + 1 == count;
        const char *before = i == 0 ? " " : last ? " and " : ", ";
        used +=
            (size_t)snprintf(out + used, capacity - used, "%s%" PRIu32, before, order->waiting[i]);
    }
    if (count > named && used < capacity) {
        used +=
            (size_t)snprintf(out + used, capacity - used, " and %" PRIu32 " more", count - named);
    }
    if (used < capacity)
        (void)snprintf(out + used, capacity - used, " wait%s", count == 1 ? "s" : "");
}

void hang_describe(const struct hang *hang, const struct hang_suspect *suspect, char *out,
                   size_t capacity)
{
    const struct hang_order *all = &hang->collectives;
    const struct hang_order *order = find_order(hang);
    if (order == NULL || order_culprit(order) != suspect->rank) {
        char where[96] = "";
        if (hang->ranks > 1 && all->waiting_count == hang->ranks) {
            (void)snprintf(where, sizeof(where), ": all wait in collective %" PRIu64 " (%s)",
                           all->front, all->name);
        }
        (void)snprintf(out, capacity, "no progress of any worker%s", where);
        return;
    }
    char what[96], who[128];
    if (order == all) {
        (void)snprintf(what, sizeof(what), "has not come to collective %" PRIu64 " (%s)",
                       order->front, order->name);
    } else if (order == &hang->pipe) {
        (void)snprintf(what, sizeof(what), "holds up the pipeline");
    } else {
        (void)snprintf(what, sizeof(what), "has not come to exchange %" PRIu64 " of the reduction",
                       order->front);
    }
    name_waiting(order, who, sizeof(who));
    (void)snprintf(out, capacity,
                   "rank %" PRIu32 " on node %s %s, in which %s; last seen in phase %s, %.1f s ago",
                   suspect->rank, suspect->node, what, who,
                   suspect->phase[0] != '\0' ? suspect->phase : "forming",
                   (double)suspect->still_ms / 1000.0);
}
