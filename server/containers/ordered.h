/*
 * Things in the order of a number that each of them has, each number once.
 *
 * Cost: finding O(log n); adding and removing one moves those behind it: for some thousands.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

struct ordered_entry {
    int64_t key;
    void *value;
};

/* Zero: empty. */
struct ordered {
    struct ordered_entry *list; /* ascending by key; owned */
    size_t count, capacity;
};

void ordered_release(struct ordered *ordered);
/* Makes room for so many in all: adding doesn't fail before there are more. */
MUST_CHECK enum status ordered_reserve(struct ordered *ordered, size_t capacity);
/* Gives that key to value, from now on; NULL: to nothing. It costs nothing if that is so already.
 * There is room for it. */
void ordered_keep(struct ordered *ordered, int64_t key, void *value);
/* Returns what has that key; NULL: nothing. */
void *ordered_get(const struct ordered *ordered, int64_t key);
