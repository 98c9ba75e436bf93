#include "server/fleet/netpaths.h"

#include <stdio.h>
#include <string.h>

#include "common/check.h"

static bool is_of(const struct netpath *path, const char *a, const char *b)
{
    return (strcmp(path->node[0], a) == 0 && strcmp(path->node[1], b) == 0) ||
           (strcmp(path->node[0], b) == 0 && strcmp(path->node[1], a) == 0);
}

static struct netpath *find(struct netpaths *paths, const char *a, const char *b)
{
    for (size_t i = 0; i < paths->count; i++) {
        if (is_of(&paths->list[i], a, b))
            return &paths->list[i];
    }
    return NULL;
}

static void drop(struct netpaths *paths, struct netpath *path)
{
    const size_t at = (size_t)(path - paths->list);
    CHECK(at < paths->count);
    paths->count--;
    memmove(path, path + 1, (paths->count - at) * sizeof(*path));
}

void netpaths_suspect(struct netpaths *paths, const char *a, const char *b)
{
    struct netpath *path = find(paths, a, b);
    if (path != NULL)
        path->suspected = path->cut;
    if (strcmp(a, b) == 0 || path != NULL || paths->count == NETPATHS_MAX)
        return;
    path = &paths->list[paths->count++];
    *path = (struct netpath){ .begun_at = -NETPATHS_GAP_MS }; /* due at once */
    (void)snprintf(path->node[0], sizeof(path->node[0]), "%s", a);
    (void)snprintf(path->node[1], sizeof(path->node[1]), "%s", b);
}

bool netpaths_is_cut(const struct netpaths *paths, const char *a, const char *b)
{
    for (size_t i = 0; i < paths->count; i++) {
        if (paths->list[i].cut && is_of(&paths->list[i], a, b))
            return true;
    }
    return false;
}

void netpaths_want(struct netpaths *paths, int64_t now)
{
    paths->wanted_until = now + NETPATHS_WANTED_MS;
}

void netpaths_forget_rounds(struct netpaths *paths, const char *node)
{
    for (size_t i = 0; i < paths->count; i++) {
        struct netpath *path = &paths->list[i];
        if (strcmp(path->node[0], node) == 0 || strcmp(path->node[1], node) == 0)
            path->round = 0;
    }
}

/* Returns when a path without a round under way gets one. */
static int64_t next_round_at(const struct netpaths *paths, const struct netpath *path)
{
    if (!path->cut || path->suspected)
        return path->begun_at + NETPATHS_GAP_MS;
    const int64_t again_at = path->begun_at + NETPATHS_AGAIN_MS;
    const bool wanted = again_at < paths->wanted_until && again_at < path->cut_until;
    return wanted ? again_at : path->cut_until;
}

int64_t netpaths_deadline(const struct netpaths *paths)
{
    int64_t at = INT64_MAX;
    for (size_t i = 0; i < paths->count; i++) {
        const struct netpath *path = &paths->list[i];
        const int64_t next =
            path->round != 0 ? path->begun_at + NETPATHS_ROUND_MS : next_round_at(paths, path);
        at = next < at ? next : at;
    }
    return at;
}

struct netpath *netpaths_due(struct netpaths *paths, int64_t now)
{
    for (size_t i = 0; i < paths->count; i++) {
        struct netpath *path = &paths->list[i];
        if (path->round == 0 && now >= next_round_at(paths, path))
            return path;
    }
    return NULL;
}

uint64_t netpaths_begin(struct netpaths *paths, struct netpath *path, int64_t now)
{
    CHECK(path->round == 0);
    path->round = ++paths->rounds;
    path->begun_at = now;
    for (int i = 0; i < 2; i++)
        path->side[i].answered = path->side[i].reached = false;
    return path->round;
}

enum netpaths_news netpaths_give_up(struct netpaths *paths, struct netpath *path, int64_t now)
{
    path->round = 0;
    path->begun_at = now;
    path->suspected = false;
    if (path->cut && now < path->cut_until)
        return NETPATHS_NOTHING;
    drop(paths, path);
    return NETPATHS_UNKNOWN;
}

enum netpaths_news netpaths_tick(struct netpaths *paths, int64_t now, struct netpath *out)
{
    for (size_t i = 0; i < paths->count; i++) {
        struct netpath *path = &paths->list[i];
        if (path->round == 0 || now < path->begun_at + NETPATHS_ROUND_MS)
            continue;
        *out = *path;
        const enum netpaths_news news = netpaths_give_up(paths, path, now);
        if (news != NETPATHS_NOTHING)
            return news;
    }
    return NETPATHS_NOTHING;
}

/* Settles a round in which both agents have answered. */
static enum netpaths_news settle_round(struct netpaths *paths, struct netpath *path, int64_t now)
{
    const bool reached = path->side[0].reached && path->side[1].reached;
    path->round = 0;
    if (reached || (!path->cut && path->side[0].worked && path->side[1].worked)) {
        const bool was_cut = path->cut;
        drop(paths, path);
        return was_cut ? NETPATHS_HEALED : NETPATHS_WORKS;
    }
    if (!path->cut && ++path->failed < NETPATHS_ROUNDS)
        return NETPATHS_NOTHING;
    const bool again = path->cut;
    const enum netpaths_news news = again && !path->suspected ? NETPATHS_NOTHING : NETPATHS_CUT;
    path->suspected = false;
    if (again && now < path->cut_until)
        return news;
    path->avoid_ms = again ? 2 * path->avoid_ms : NETPATHS_AVOID_MS;
    if (path->avoid_ms > NETPATHS_AVOID_MAX_MS)
        path->avoid_ms = NETPATHS_AVOID_MAX_MS;
    path->cut_until = now + path->avoid_ms;
    path->cut = true;
    return news;
}

enum netpaths_news netpaths_answer(struct netpaths *paths, const char *node, uint64_t round,
                                   bool reached, const char *saw, int64_t now, struct netpath *out)
{
    for (size_t i = 0; i < paths->count && round != 0; i++) {
        struct netpath *path = &paths->list[i];
        if (path->round != round)
            continue;
        const int at = strcmp(path->node[0], node) == 0 ? 0 : 1;
        if (strcmp(path->node[at], node) != 0)
            return NETPATHS_NOTHING;
        struct netpath_side *side = &path->side[at];
        side->answered = true;
        side->reached = reached;
        side->worked = side->worked || reached;
        (void)snprintf(side->saw, sizeof(side->saw), "%.*s", (int)sizeof(side->saw) - 1, saw);
        *out = *path;
        return path->side[!at].answered ? settle_round(paths, path, now) : NETPATHS_NOTHING;
    }
    return NETPATHS_NOTHING;
}

void netpaths_describe(const struct netpath *path, struct reason *out)
{
    reason_set(out, "%.100s and %.100s can't reach each other; seen from %.60s: %s; from %.60s: %s",
               path->node[0], path->node[1], path->node[0], path->side[0].saw, path->node[1],
               path->side[1].saw);
}
