#include "server/fleet/exclusion.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOLD_BYTES 150 /* bytes of names, times and reasons before the last one that is told */

static struct exclusion *find(const struct exclusion_list *exclusions, const char *node,
                              enum exclusion_why why)
{
    for (uint32_t i = 0; i < exclusions->count; i++) {
        if (exclusions->list[i].why == why && strcmp(exclusions->list[i].node, node) == 0)
            return &exclusions->list[i];
    }
    return NULL;
}

bool exclusion_resize(struct exclusion_list *exclusions, uint32_t count)
{
    if (count > 4 * LIMIT_NODES) /* each for all reasons */
        return false;
    if (count > exclusions->capacity) {
        uint32_t capacity = 2 * exclusions->capacity > count ? 2 * exclusions->capacity : count;
        struct exclusion *more = realloc(exclusions->list, capacity * sizeof(*more));
        if (more == NULL)
            return false;
        exclusions->list = more;
        exclusions->capacity = capacity;
    }
    if (count > exclusions->count) {
        memset(&exclusions->list[exclusions->count], 0,
               (count - exclusions->count) * sizeof(*exclusions->list));
    }
    exclusions->count = count;
    return true;
}

bool exclusion_add(struct exclusion_list *exclusions, const char *node, enum exclusion_why why,
                   uint32_t kind, int64_t wall)
{
    struct exclusion *known = find(exclusions, node, why);
    if (known != NULL) {
        known->since = wall;
        known->kind = kind;
        known->agent = 0;
        exclusions->unnamed = true;
        return false;
    }
    if (!exclusion_resize(exclusions, exclusions->count + 1))
        return false;
    struct exclusion *added = &exclusions->list[exclusions->count - 1];
    (void)snprintf(added->node, sizeof(added->node), "%s", node);
    added->why = why;
    added->kind = kind;
    added->since = wall;
    exclusions->unnamed = true;
    return true;
}

bool exclusion_knows(const struct exclusion_list *exclusions, const char *node)
{
    bool known = false;
    for (uint32_t i = 0; i < exclusions->count && !known; i++)
        known = strcmp(exclusions->list[i].node, node) == 0;
    return known;
}

/* Returns how long the entry still holds; 0: not any more. */
static int64_t time_left(const struct exclusion *exclusion, int64_t wall)
{
    static const int64_t times[] = {
        [EXCLUSION_PINS] = EXCLUSION_PINS_MS,
        [EXCLUSION_FAILED] = EXCLUSION_FAILED_MS,
        [EXCLUSION_DATA] = EXCLUSION_DATA_MS,
        [EXCLUSION_SLOW] = EXCLUSION_SLOW_MS,
    };
    const int64_t time = times[exclusion->why], age = wall - exclusion->since;
    return age > -time && age < time ? time - age : 0;
}

bool exclusion_holds(const struct exclusion_list *exclusions, const char *node,
                     enum exclusion_why why, int64_t wall)
{
    const struct exclusion *known = find(exclusions, node, why);
    return known != NULL && time_left(known, wall) > 0;
}

uint32_t exclusion_count(const struct exclusion_list *exclusions, enum exclusion_why why)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < exclusions->count; i++)
        count += exclusions->list[i].why == why;
    return count;
}

void exclusion_name(const struct exclusion_list *exclusions, enum exclusion_why why,
                    struct reason *out)
{
    char names[LIMIT_REASON] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < exclusions->count && used < sizeof(names); i++) {
        const struct exclusion *one = &exclusions->list[i];
        if (one->why != why)
            continue;
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", used ? ", " : "",
                                 one->node);
    }
    const uint32_t count = exclusion_count(exclusions, why);
    reason_set(out, "on %u node%s: %.200s", count, count == 1 ? "" : "s", names);
}

bool exclusion_elsewhere(const struct exclusion_list *exclusions, const char *node, uint32_t kind)
{
    for (uint32_t i = 0; i < exclusions->count; i++) {
        const struct exclusion *s = &exclusions->list[i];
        if (s->why == EXCLUSION_FAILED && s->kind == kind && strcmp(s->node, node) != 0)
            return true;
    }
    return false;
}

void exclusion_drop(struct exclusion_list *exclusions, enum exclusion_why why)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < exclusions->count; i++) {
        if (exclusions->list[i].why != why)
            exclusions->list[kept++] = exclusions->list[i];
    }
    exclusions->count = kept;
}

bool exclusion_drop_kind(struct exclusion_list *exclusions, uint32_t kind)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < exclusions->count; i++) {
        if (exclusions->list[i].why != EXCLUSION_FAILED || exclusions->list[i].kind != kind)
            exclusions->list[kept++] = exclusions->list[i];
    }
    const bool dropped = kept < exclusions->count;
    exclusions->count = kept;
    return dropped;
}

bool exclusion_renew(struct exclusion_list *exclusions, const char *node, uint64_t agent)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < exclusions->count; i++) {
        const struct exclusion *one = &exclusions->list[i];
        if (strcmp(one->node, node) != 0 || (one->agent != 0 && one->agent == agent))
            exclusions->list[kept++] = *one;
    }
    const bool dropped = kept < exclusions->count;
    exclusions->count = kept;
    return dropped;
}

void exclusion_identify(struct exclusion_list *exclusions,
                        uint64_t (*of)(void *arg, const char *node), void *arg)
{
    for (uint32_t i = 0; exclusions->unnamed && i < exclusions->count; i++) {
        struct exclusion *one = &exclusions->list[i];
        if (one->agent == 0)
            one->agent = of(arg, one->node);
    }
    exclusions->unnamed = false;
}

void exclusion_clear(struct exclusion_list *exclusions)
{
    exclusions->count = 0;
}

void exclusion_resume(struct exclusion_list *exclusions, int64_t wall)
{
    for (uint32_t i = 0; i < exclusions->count; i++) {
        struct exclusion *one = &exclusions->list[i];
        if (one->since > wall)
            one->since = wall;
    }
}

void exclusion_describe(const struct exclusion_list *exclusions, int64_t wall, struct reason *out)
{
    static const char *const whys[] = {
        [EXCLUSION_PINS] = "its pins differ",
        [EXCLUSION_FAILED] = "it failed there",
        [EXCLUSION_DATA] = "its data differ",
        [EXCLUSION_SLOW] = "it was slow there",
    };
    char text[LIMIT_REASON] = "";
    size_t used = 0;
    uint32_t more = 0;
    for (uint32_t i = 0; i < exclusions->count; i++) {
        const struct exclusion *one = &exclusions->list[i];
        const int64_t left = time_left(one, wall);
        if (left > 0 && used < TOLD_BYTES) {
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%.60s for %lld min (%s)",
                                     used ? ", " : "", one->node, (long long)(left + 59999) / 60000,
                                     whys[one->why]);
        } else {
            more += left > 0;
        }
    }
    if (more > 0) {
        reason_set(out, "%s, and %u more", text, more);
    } else {
        reason_set(out, "%s", text);
    }
}

void exclusion_release(struct exclusion_list *exclusions)
{
    free(exclusions->list);
    *exclusions = (struct exclusion_list){ .count = 0 };
}
