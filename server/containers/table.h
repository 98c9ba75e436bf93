/*
 * Things by a text that names them: a hash table with open addresses.
 *
 * Cost: O(1), where names are not made to collide (they come from people and agents with a token).
 * Memory: keys are borrowed: they usually lie in the thing itself, and stay until it is removed.
 */
#pragma once

#include <stddef.h>

#include "common/status.h"

struct table_entry {
    const char *key; /* NULL: free */
    void *value;
};

/* Zero: empty. */
struct table {
    struct table_entry *entries; /* capacity of them, a power of two; owned */
    size_t count, capacity;
};

void table_release(struct table *table);
/* Makes room for so many in all: table_put doesn't fail before there are more. */
MUST_CHECK enum status table_reserve(struct table *table, size_t count);
/* Puts value in the place of what had that key, if anything had. */
MUST_CHECK enum status table_put(struct table *table, const char *key, void *value);
/* Returns what has that key; NULL: nothing. */
void *table_get(const struct table *table, const char *key);
void table_remove(struct table *table, const char *key);
