/*
 * Times at which something is to be done, the earliest first: a binary heap whose entries lie in
 * what they are about, and know their places.
 *
 * Cost: setting, moving and taking one out O(log n), the earliest O(1).
 * Memory: entries are borrowed until they are taken out. There is room for as many as were
 *         reserved: setting one can't fail.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

#define TIMERS_NEVER INT64_MAX

/* Zero: in no heap. */
struct timer {
    int64_t at;
    size_t place; /* 1 + its place in the heap; 0: it isn't there */
};

/* Zero: empty. */
struct timers {
    struct timer **list; /* a parent is not later than its children; owned */
    size_t count, capacity;
};

void timers_release(struct timers *timers);
/* Makes room for so many in all. */
MUST_CHECK enum status timers_reserve(struct timers *timers, size_t capacity);
/* Puts the timer into the heap at that time, wherever it was before; TIMERS_NEVER: takes it out. */
void timers_set(struct timers *timers, struct timer *timer, int64_t at);
/* Returns the earliest; NULL: there is none. Of equals any. */
struct timer *timers_first(const struct timers *timers);
/* Returns the time of the earliest, or TIMERS_NEVER. */
int64_t timers_at(const struct timers *timers);
