/*
 * All that a machine may find after a crash, or as much of it as is asked for.
 */
#pragma once

#include "tests/crash/memory_io.h"

struct crash_limits {
    uint64_t all_max; /* up to so many states per moment: every one of them */
    uint32_t draws;   /* beyond: the systematic ones, and so many drawn ones */
    uint64_t seed;    /* of what is drawn */
};

/* Looks at a state that was found; false: enough. */
typedef bool (*crash_fn)(void *arg, struct memory_io *found);

/*
 * Builds the states of a moment, one after the other. All combinations of names and writes if there
 * are few enough. Else all combinations of names, if those are few enough (or: the oldest, the
 * newest, each name alone older or newer, and drawn ones), and with each of them all writes alike
 * in every way, each write alone in every way, and drawn ones: any way each; most of them there;
 * cut off at one.
 * Returns false if fn did.
 */
bool crash_explore(const struct crash_point *point, const struct crash_limits *limits, crash_fn fn,
                   void *arg);

/* Numbers by keys: what was seen, and what came of it. */
struct crash_seen {
    uint64_t *keys; /* 0: free */
    uint32_t *values;
    uint64_t count, room;
};
void crash_seen_release(struct crash_seen *seen);
/* The value of a key; *out_new: it wasn't there, and its value is 0 now. Valid until the next. */
uint32_t *crash_seen_at(struct crash_seen *seen, uint64_t key, bool *out_new);
