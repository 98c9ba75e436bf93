#include "server/containers/table.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"

#define TABLE_FIRST 16

/* FNV-1a, and its high bits mixed into the low ones, which alone choose the place. */
static size_t home_of(const char *key, size_t capacity)
{
    uint64_t hash = 1469598103934665603u;
    for (const char *p = key; *p; p++)
        hash = (hash ^ (uint8_t)*p) * 1099511628211u;
    return (size_t)(hash ^ hash >> 32) & (capacity - 1);
}

/* Returns the place where the key is, or would be: there is always a free one. */
static size_t place_of(const struct table *table, const char *key)
{
    size_t at = home_of(key, table->capacity);
    while (table->entries[at].key != NULL && strcmp(table->entries[at].key, key) != 0)
        at = (at + 1) & (table->capacity - 1);
    return at;
}

void table_release(struct table *table)
{
    free(table->entries);
    *table = (struct table){ 0 };
}

enum status table_reserve(struct table *table, size_t count)
{
    size_t capacity = table->capacity ? table->capacity : TABLE_FIRST;
    while (capacity < 2 * count) /* half of it is free */
        capacity *= 2;
    if (capacity == table->capacity)
        return ST_OK;
    struct table more = { .capacity = capacity, .count = table->count };
    more.entries = calloc(capacity, sizeof(*more.entries));
    if (more.entries == NULL)
        return ST_NO_MEMORY;
    for (size_t i = 0; i < table->capacity; i++) {
        if (table->entries[i].key != NULL)
            more.entries[place_of(&more, table->entries[i].key)] = table->entries[i];
    }
    free(table->entries);
    *table = more;
    return ST_OK;
}

enum status table_put(struct table *table, const char *key, void *value)
{
    enum status st = table_reserve(table, table->count + 1);
    if (st != ST_OK)
        return st;
    struct table_entry *entry = &table->entries[place_of(table, key)];
    table->count += entry->key == NULL;
    *entry = (struct table_entry){ .key = key, .value = value };
    return ST_OK;
}

void *table_get(const struct table *table, const char *key)
{
    return table->capacity > 0 ? table->entries[place_of(table, key)].value : NULL;
}

/* Entries behind the removed one that could not have its place before move up: no search ends too
 * early. */
void table_remove(struct table *table, const char *key)
{
    if (table->capacity == 0)
        return;
    size_t hole = place_of(table, key), mask = table->capacity - 1;
    if (table->entries[hole].key == NULL)
        return;
    CHECK(table->count > 0);
    table->count--;
    for (size_t at = (hole + 1) & mask; table->entries[at].key != NULL; at = (at + 1) & mask) {
        size_t home = home_of(table->entries[at].key, table->capacity);
        if (((at - home) & mask) < ((at - hole) & mask))
            continue; /* it is not farther from home than the hole is from it */
        table->entries[hole] = table->entries[at];
        hole = at;
    }
    table->entries[hole] = (struct table_entry){ .key = NULL };
}
