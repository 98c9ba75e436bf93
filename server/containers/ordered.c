#include "server/containers/ordered.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"

void ordered_release(struct ordered *ordered)
{
    free(ordered->list);
    *ordered = (struct ordered){ 0 };
}

enum status ordered_reserve(struct ordered *ordered, size_t capacity)
{
    if (capacity <= ordered->capacity)
        return ST_OK;
    if (capacity < 2 * ordered->capacity)
        capacity = 2 * ordered->capacity;
    struct ordered_entry *more = realloc(ordered->list, capacity * sizeof(*more));
    if (more == NULL)
        return ST_NO_MEMORY;
    ordered->list = more;
    ordered->capacity = capacity;
    return ST_OK;
}

/* Returns the place where that key is, or would be. */
static size_t place_of(const struct ordered *ordered, int64_t key)
{
    size_t low = 0, high = ordered->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ordered->list[middle].key < key) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

void *ordered_get(const struct ordered *ordered, int64_t key)
{
    const size_t at = place_of(ordered, key);
    return at < ordered->count && ordered->list[at].key == key ? ordered->list[at].value : NULL;
}

void ordered_keep(struct ordered *ordered, int64_t key, void *value)
{
    const size_t at = place_of(ordered, key), size = sizeof(*ordered->list);
    if (ordered_get(ordered, key) == value)
        return;
    const bool is_there = at < ordered->count && ordered->list[at].key == key;
    if (!is_there) {
        CHECK(ordered->count < ordered->capacity);
        memmove(&ordered->list[at + 1], &ordered->list[at], (ordered->count - at) * size);
        ordered->count++;
    }
    ordered->list[at] = (struct ordered_entry){ .key = key, .value = value };
    if (value != NULL)
        return;
    ordered->count--;
    memmove(&ordered->list[at], &ordered->list[at + 1], (ordered->count - at) * size);
}
