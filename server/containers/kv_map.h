/*
 * A generation's map for rendezvous: small, bounded, forgotten with the generation.
 *
 * Errors: ST_FULL  LIMIT_KV_KEY, LIMIT_KV_VALUE, or KV_KEYS_MAX is passed
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

#define KV_KEYS_MAX  65536
#define KV_BYTES_MAX ((size_t)64 * 1024 * 1024)

struct kv_entry {
    char *key; /* owned, as value */
    void *value;
    size_t size;
};

struct kv_map {
    struct kv_entry *entries; /* sorted by key */
    size_t count, capacity, bytes;
};

void kv_map_clear(struct kv_map *map);
MUST_CHECK enum status kv_map_set(struct kv_map *map, const char *key, const void *value,
                                  size_t size);
/* NULL: not there. */
const struct kv_entry *kv_map_get(const struct kv_map *map, const char *key);
/* A decimal counter. ST_INVALID: the value isn't one. */
MUST_CHECK enum status kv_map_add(struct kv_map *map, const char *key, int64_t delta,
                                  int64_t *out_sum);
void kv_map_remove(struct kv_map *map, const char *key);
