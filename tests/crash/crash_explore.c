#include "tests/crash/crash_explore.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/rng.h"

struct walk {
    const struct crash_point *point;
    const struct crash_limits *limits;
    crash_fn fn;
    void *arg;
    size_t names, choices;
    uint64_t visits;
    uint8_t picks[CRASH_CHOICES_MAX];
};

static uint32_t draw(const struct walk *walk, uint64_t number, size_t k, uint32_t n)
{
    struct rng_counter words =
        rng_words(walk->limits->seed, (uint32_t)number, (uint32_t)(number >> 32), (uint32_t)k, 3);
    return rng_below(words.word[0], n);
}

static bool visit(struct walk *walk)
{
    struct memory_io *found =
        crash_point_build(walk->point, walk->picks, walk->limits->seed + 1000 * walk->visits);
    walk->visits++;
    bool more = walk->fn(walk->arg, found);
    memory_io_free(found);
    return more;
}

/* Combinations of the choices [first, end); max + 1 if there are more than max. */
static uint64_t combinations(const struct walk *walk, size_t first, size_t end, uint64_t max)
{
    uint64_t count = 1;
    for (size_t k = first; k < end && count <= max; k++)
        count *= crash_point_values(walk->point, k);
    return count <= max ? count : max + 1;
}

/* The next combination of the choices [first, end); false: it was the last. */
static bool advance(struct walk *walk, size_t first, size_t end)
{
    for (size_t k = first; k < end; k++) {
        if (++walk->picks[k] < crash_point_values(walk->point, k))
            return true;
        walk->picks[k] = 0;
    }
    return false;
}

static void set_writes(struct walk *walk, uint8_t fate)
{
    memset(walk->picks + walk->names, fate, walk->choices - walk->names);
}

static void draw_writes(struct walk *walk, uint64_t number)
{
    size_t writes = walk->choices - walk->names;
    size_t cut = draw(walk, number, 1000, (uint32_t)writes);
    for (size_t k = walk->names; k < walk->choices; k++) {
        uint32_t any = draw(walk, number, k, CRASH_WRITE_FATES);
        if (number % 3 == 1 && draw(walk, number, k + 2000, 8) != 0) {
            any = 1;
        } else if (number % 3 == 2 && k - walk->names != cut) {
            any = k - walk->names < cut ? 1 : 0;
        }
        walk->picks[k] = (uint8_t)any;
    }
}

static bool each_write_alone(struct walk *walk)
{
    for (size_t k = walk->names; k < walk->choices; k++) {
        for (uint8_t fate = 0; fate < CRASH_WRITE_FATES; fate++) {
            set_writes(walk, 1);
            walk->picks[k] = fate;
            if (!visit(walk))
                return false;
        }
    }
    return true;
}

/* The names are picked. */
static bool over_writes(struct walk *walk, bool newest)
{
    for (uint8_t fate = 0; fate < CRASH_WRITE_FATES; fate++) {
        set_writes(walk, fate);
        if (!visit(walk))
            return false;
        if (walk->names == walk->choices)
            return true;
    }
    if (newest && !each_write_alone(walk))
        return false;
    for (uint32_t i = 0; i < walk->limits->draws; i++) {
        draw_writes(walk, walk->visits);
        if (!visit(walk))
            return false;
    }
    return true;
}

static bool is_newest(const struct walk *walk)
{
    for (size_t k = 0; k < walk->names; k++) {
        if (walk->picks[k] != crash_point_newest(walk->point, k))
            return false;
    }
    return true;
}

static void set_names(struct walk *walk, bool newest, size_t but)
{
    for (size_t k = 0; k < walk->names; k++)
        walk->picks[k] = newest != (k == but) ? (uint8_t)crash_point_newest(walk->point, k) : 0;
}

static bool over_names(struct walk *walk)
{
    for (int newest = 0; newest < 2; newest++) {
        for (size_t but = 0; but <= walk->names; but++) { /* the last: none */
            set_names(walk, newest != 0, but);
            if (!over_writes(walk, is_newest(walk)))
                return false;
        }
    }
    for (uint32_t i = 0; i < 4 * walk->limits->draws; i++) {
        for (size_t k = 0; k < walk->names; k++)
            walk->picks[k] = (uint8_t)draw(walk, i, k + 3000, crash_point_values(walk->point, k));
        if (!over_writes(walk, is_newest(walk)))
            return false;
    }
    return true;
}

bool crash_explore(const struct crash_point *point, const struct crash_limits *limits, crash_fn fn,
                   void *arg)
{
    struct walk walk = {
        .point = point,
        .limits = limits,
        .fn = fn,
        .arg = arg,
        .names = crash_point_names(point),
        .choices = crash_point_choices(point),
    };
    bool more = true;
    if (combinations(&walk, 0, walk.choices, limits->all_max) <= limits->all_max) {
        do {
            more = visit(&walk);
        } while (more && advance(&walk, 0, walk.choices));
        return more;
    }
    if (combinations(&walk, 0, walk.names, limits->all_max) > limits->all_max)
        return over_names(&walk);
    do {
        more = over_writes(&walk, is_newest(&walk));
    } while (more && advance(&walk, 0, walk.names));
    return more;
}

/* ---- what was seen ---- */

void crash_seen_release(struct crash_seen *seen)
{
    free(seen->keys);
    free(seen->values);
    *seen = (struct crash_seen){ 0 };
}

static uint64_t place_of(const struct crash_seen *seen, uint64_t key)
{
    uint64_t at = (key * 0x9E3779B97F4A7C15U) & (seen->room - 1);
    while (seen->keys[at] != 0 && seen->keys[at] != key)
        at = (at + 1) & (seen->room - 1);
    return at;
}

static void grow(struct crash_seen *seen)
{
    struct crash_seen more = { .room = seen->room == 0 ? 1024 : 2 * seen->room };
    more.keys = calloc(more.room, sizeof(*more.keys));
    more.values = calloc(more.room, sizeof(*more.values));
    CHECK(more.keys != NULL);
    CHECK(more.values != NULL);
    for (uint64_t i = 0; i < seen->room; i++) {
        if (seen->keys[i] == 0)
            continue;
        uint64_t at = place_of(&more, seen->keys[i]);
        more.keys[at] = seen->keys[i];
        more.values[at] = seen->values[i];
        more.count++;
    }
    crash_seen_release(seen);
    *seen = more;
}

uint32_t *crash_seen_at(struct crash_seen *seen, uint64_t key, bool *out_new)
{
    key += key == 0;
    if (2 * seen->count >= seen->room)
        grow(seen);
    uint64_t at = place_of(seen, key);
    *out_new = seen->keys[at] == 0;
    seen->count += *out_new;
    seen->keys[at] = key;
    return &seen->values[at];
}
