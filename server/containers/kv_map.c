#include "server/containers/kv_map.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/limits.h"

void kv_map_clear(struct kv_map *map)
{
    for (size_t i = 0; i < map->count; i++) {
        free(map->entries[i].key);
        free(map->entries[i].value);
    }
    free(map->entries);
    *map = (struct kv_map){ 0 };
}

/* Where key is, or would be. */
static size_t kv_find(const struct kv_map *map, const char *key, int *out_order)
{
    size_t low = 0, high = map->count;
    *out_order = 1;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(map->entries[middle].key, key);
        if (order == 0) {
            *out_order = 0;
            return middle;
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

const struct kv_entry *kv_map_get(const struct kv_map *map, const char *key)
{
    int order;
    size_t at = kv_find(map, key, &order);
    return order == 0 ? &map->entries[at] : NULL;
}

static enum status kv_grow(struct kv_map *map)
{
    if (map->count < map->capacity)
        return ST_OK;
    if (map->count >= KV_KEYS_MAX)
        return ST_FULL;
    size_t capacity = map->capacity ? 2 * map->capacity : 16;
    struct kv_entry *more = realloc(map->entries, capacity * sizeof *more);
    if (!more)
        return ST_NO_MEMORY;
    map->entries = more;
    map->capacity = capacity;
    return ST_OK;
}

enum status kv_map_set(struct kv_map *map, const char *key, const void *value, size_t size)
{
    size_t key_size = strlen(key) + 1;
    if (key_size > LIMIT_KV_KEY || size > LIMIT_KV_VALUE ||
        map->bytes + size + key_size > KV_BYTES_MAX)
        return ST_FULL;
    void *copy = malloc(size ? size : 1);
    if (!copy)
        return ST_NO_MEMORY;
    if (size > 0)
        memcpy(copy, value, size);
    int order;
    size_t at = kv_find(map, key, &order);
    if (order == 0) {
        CHECK(map->entries);
        CHECK(at < map->count);
        struct kv_entry *entry = &map->entries[at];
        map->bytes = map->bytes - entry->size + size;
        free(entry->value);
        entry->value = copy;
        entry->size = size;
        return ST_OK;
    }
    enum status st = kv_grow(map);
    char *name = st == ST_OK ? strdup(key) : NULL;
    if (!name) {
        free(copy);
        return st == ST_OK ? ST_NO_MEMORY : st;
    }
    CHECK(map->entries);
    memmove(&map->entries[at + 1], &map->entries[at], (map->count - at) * sizeof map->entries[0]);
    map->entries[at] = (struct kv_entry){ .key = name, .value = copy, .size = size };
    map->count++;
    map->bytes += size + key_size;
    return ST_OK;
}

enum status kv_map_add(struct kv_map *map, const char *key, int64_t delta, int64_t *out_sum)
{
    int64_t sum = 0;
    const struct kv_entry *entry = kv_map_get(map, key);
    if (entry) {
        char text[24] = "";
        char *end;
        if (entry->size >= sizeof text)
            return ST_INVALID;
        memcpy(text, entry->value, entry->size);
        errno = 0;
        sum = strtoll(text, &end, 10);
        if (errno != 0 || end == text || *end != '\0')
            return ST_INVALID;
    }
    if (__builtin_add_overflow(sum, delta, &sum))
        return ST_INVALID;
    char text[24];
    int size = snprintf(text, sizeof text, "%" PRId64, sum);
    enum status st = kv_map_set(map, key, text, (size_t)size);
    if (st == ST_OK)
        *out_sum = sum;
    return st;
}

void kv_map_remove(struct kv_map *map, const char *key)
{
    int order;
    size_t at = kv_find(map, key, &order);
    if (order != 0)
        return;
    map->bytes -= map->entries[at].size + strlen(key) + 1;
    free(map->entries[at].key);
    free(map->entries[at].value);
    map->count--;
    memmove(&map->entries[at], &map->entries[at + 1], (map->count - at) * sizeof map->entries[0]);
}
