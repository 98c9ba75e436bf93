#include "server/fleet/shun.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOLD_BYTES 150 /* bytes of names, times and reasons before the last one that is told */

static struct shun *find(const struct shun_list *shuns, const char *node, enum shun_why why)
{
    for (uint32_t i = 0; i < shuns->count; i++) {
        if (shuns->list[i].why == why && strcmp(shuns->list[i].node, node) == 0)
            return &shuns->list[i];
    }
    return NULL;
}

bool shun_resize(struct shun_list *shuns, uint32_t count)
{
    if (count > 4 * LIMIT_NODES) /* each for all reasons */
        return false;
    if (count > shuns->capacity) {
        uint32_t capacity = 2 * shuns->capacity > count ? 2 * shuns->capacity : count;
        struct shun *more = realloc(shuns->list, capacity * sizeof *more);
        if (!more)
            return false;
        shuns->list = more;
        shuns->capacity = capacity;
    }
    if (count > shuns->count)
        memset(&shuns->list[shuns->count], 0, (count - shuns->count) * sizeof *shuns->list);
    shuns->count = count;
    return true;
}

bool shun_add(struct shun_list *shuns, const char *node, enum shun_why why, uint32_t kind,
              int64_t wall)
{
    struct shun *known = find(shuns, node, why);
    if (known) {
        known->since = wall;
        known->kind = kind;
        known->agent = 0;
        shuns->unnamed = true;
        return false;
    }
    if (!shun_resize(shuns, shuns->count + 1))
        return false;
    struct shun *added = &shuns->list[shuns->count - 1];
    (void)snprintf(added->node, sizeof added->node, "%s", node);
    added->why = why;
    added->kind = kind;
    added->since = wall;
    shuns->unnamed = true;
    return true;
}

const struct shun *shun_find(const struct shun_list *shuns, const char *node, enum shun_why why)
{
    return find(shuns, node, why);
}

bool shun_knows(const struct shun_list *shuns, const char *node)
{
    bool known = false;
    for (uint32_t i = 0; i < shuns->count && !known; i++)
        known = strcmp(shuns->list[i].node, node) == 0;
    return known;
}

/* Returns how long the entry still holds; 0: not any more. */
static int64_t time_left(const struct shun *shun, int64_t wall)
{
    static const int64_t times[] = {
        [SHUN_PINS] = SHUN_PINS_MS,
        [SHUN_FAILED] = SHUN_FAILED_MS,
        [SHUN_DATA] = SHUN_DATA_MS,
        [SHUN_SLOW] = SHUN_SLOW_MS,
    };
    const int64_t time = times[shun->why], age = wall - shun->since;
    return age > -time && age < time ? time - age : 0;
}

bool shun_holds(const struct shun_list *shuns, const char *node, enum shun_why why, int64_t wall)
{
    const struct shun *known = find(shuns, node, why);
    return known && time_left(known, wall) > 0;
}

uint32_t shun_count(const struct shun_list *shuns, enum shun_why why)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < shuns->count; i++)
        count += shuns->list[i].why == why;
    return count;
}

void shun_name(const struct shun_list *shuns, enum shun_why why, struct reason *out)
{
    char names[LIMIT_REASON] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < shuns->count && used < sizeof names; i++) {
        const struct shun *one = &shuns->list[i];
        if (one->why != why)
            continue;
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "",
                                 one->node);
    }
    const uint32_t count = shun_count(shuns, why);
    reason_set(out, "on %u node%s: %.200s", count, count == 1 ? "" : "s", names);
}

bool shun_elsewhere(const struct shun_list *shuns, const char *node, uint32_t kind)
{
    for (uint32_t i = 0; i < shuns->count; i++) {
        const struct shun *s = &shuns->list[i];
        if (s->why == SHUN_FAILED && s->kind == kind && strcmp(s->node, node) != 0)
            return true;
    }
    return false;
}

void shun_drop(struct shun_list *shuns, enum shun_why why)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < shuns->count; i++) {
        if (shuns->list[i].why != why)
            shuns->list[kept++] = shuns->list[i];
    }
    shuns->count = kept;
}

bool shun_drop_kind(struct shun_list *shuns, uint32_t kind)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < shuns->count; i++) {
        if (shuns->list[i].why != SHUN_FAILED || shuns->list[i].kind != kind)
            shuns->list[kept++] = shuns->list[i];
    }
    const bool dropped = kept < shuns->count;
    shuns->count = kept;
    return dropped;
}

bool shun_renew(struct shun_list *shuns, const char *node, uint64_t agent)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < shuns->count; i++) {
        const struct shun *one = &shuns->list[i];
        if (strcmp(one->node, node) != 0 || (one->agent != 0 && one->agent == agent))
            shuns->list[kept++] = *one;
    }
    const bool dropped = kept < shuns->count;
    shuns->count = kept;
    return dropped;
}

void shun_identify(struct shun_list *shuns, uint64_t (*of)(void *arg, const char *node), void *arg)
{
    for (uint32_t i = 0; shuns->unnamed && i < shuns->count; i++) {
        struct shun *one = &shuns->list[i];
        if (one->agent == 0)
            one->agent = of(arg, one->node);
    }
    shuns->unnamed = false;
}

void shun_clear(struct shun_list *shuns)
{
    shuns->count = 0;
}

void shun_resume(struct shun_list *shuns, int64_t wall)
{
    for (uint32_t i = 0; i < shuns->count; i++) {
        struct shun *one = &shuns->list[i];
        if (one->since > wall)
            one->since = wall;
    }
}

void shun_tell(const struct shun_list *shuns, int64_t wall, struct reason *out)
{
    static const char *const whys[] = {
        [SHUN_PINS] = "its pins differ",
        [SHUN_FAILED] = "it failed there",
        [SHUN_DATA] = "its data differ",
        [SHUN_SLOW] = "it was slow there",
    };
    char text[LIMIT_REASON] = "";
    size_t used = 0;
    uint32_t more = 0;
    for (uint32_t i = 0; i < shuns->count; i++) {
        const struct shun *one = &shuns->list[i];
        const int64_t left = time_left(one, wall);
        if (left > 0 && used < TOLD_BYTES) {
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%.60s for %lld min (%s)",
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

void shun_release(struct shun_list *shuns)
{
    free(shuns->list);
    *shuns = (struct shun_list){ .count = 0 };
}
