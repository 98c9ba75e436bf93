#include "trainer/program/check_kv.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/limits.h"

#define ENTRIES_MAX 4096 /* two of each pair of 32 ranks, and more */
#define VALUE_MAX   4096

struct kv_entry {
    char key[LIMIT_KV_KEY];
    size_t size;
    char value[VALUE_MAX];
    int64_t sum;
};

/* Invariant: `lock` guards all; entries are never removed. */
struct check_kv {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stale;
    size_t count;
    struct kv_entry *entries[ENTRIES_MAX];
};

enum status check_kv_new(struct check_kv **out)
{
    struct check_kv *map = calloc(1, sizeof(*map));
    if (map == NULL)
        return ST_NO_MEMORY;
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&map->lock, NULL);
    (void)pthread_cond_init(&map->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    *out = map;
    return ST_OK;
}

void check_kv_free(struct check_kv *map)
{
    if (map == NULL)
        return;
    for (size_t i = 0; i < map->count; i++)
        free(map->entries[i]);
    (void)pthread_mutex_destroy(&map->lock);
    (void)pthread_cond_destroy(&map->changed);
    free(map);
}

void check_kv_go_stale(struct check_kv *map)
{
    (void)pthread_mutex_lock(&map->lock);
    map->stale = true;
    (void)pthread_cond_broadcast(&map->changed);
    (void)pthread_mutex_unlock(&map->lock);
}

/* Under the lock, as the one below. */
static struct kv_entry *find_entry(const struct check_kv *map, const char *key)
{
    for (size_t i = 0; i < map->count; i++) {
        if (strcmp(map->entries[i]->key, key) == 0)
            return map->entries[i];
    }
    return NULL;
}

static struct kv_entry *find_or_make_entry(struct check_kv *map, const char *key)
{
    struct kv_entry *entry = find_entry(map, key);
    if (entry != NULL || map->count == ENTRIES_MAX || strlen(key) >= sizeof(entry->key))
        return entry;
    entry = calloc(1, sizeof(*entry));
    if (entry != NULL) {
        (void)snprintf(entry->key, sizeof(entry->key), "%s", key);
        map->entries[map->count++] = entry;
    }
    return entry;
}

static enum status check_kv_set(void *self, const char *key, const void *value, size_t size)
{
    struct check_kv *map = self;
    if (size > VALUE_MAX)
        return ST_FULL;
    (void)pthread_mutex_lock(&map->lock);
    struct kv_entry *entry = find_or_make_entry(map, key);
    if (entry != NULL) {
        memcpy(entry->value, value, size);
        entry->size = size;
    }
    (void)pthread_cond_broadcast(&map->changed);
    (void)pthread_mutex_unlock(&map->lock);
    return entry != NULL ? ST_OK : ST_FULL;
}

static struct timespec deadline(int64_t timeout_ms)
{
    struct timespec end;
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += timeout_ms / 1000;
    end.tv_nsec += timeout_ms % 1000 * 1000000;
    if (end.tv_nsec >= 1000000000) {
        end.tv_sec++;
        end.tv_nsec -= 1000000000;
    }
    return end;
}

static enum status check_kv_get(void *self, const char *key, void *out, size_t capacity,
                                size_t *out_size, int64_t timeout_ms)
{
    struct check_kv *map = self;
    const struct timespec end = deadline(timeout_ms);
    (void)pthread_mutex_lock(&map->lock);
    struct kv_entry *entry = find_entry(map, key);
    int error = 0;
    while (entry == NULL && !map->stale && error == 0) {
        error = pthread_cond_timedwait(&map->changed, &map->lock, &end);
        entry = find_entry(map, key);
    }
    enum status st = ST_OK;
    if (map->stale) {
        st = ST_STALE;
    } else if (entry == NULL) {
        st = error == ETIMEDOUT ? ST_TIMED_OUT : ST_NOT_FOUND;
    } else if (entry->size > capacity) {
        st = ST_FULL;
    } else {
        memcpy(out, entry->value, entry->size);
        *out_size = entry->size;
    }
    (void)pthread_mutex_unlock(&map->lock);
    return st;
}

static enum status check_kv_add(void *self, const char *key, int64_t delta, int64_t *out_value)
{
    struct check_kv *map = self;
    (void)pthread_mutex_lock(&map->lock);
    struct kv_entry *entry = find_or_make_entry(map, key);
    if (entry != NULL) {
        entry->sum += delta;
        entry->size =
            (size_t)snprintf(entry->value, sizeof(entry->value), "%lld", (long long)entry->sum);
        *out_value = entry->sum;
    }
    (void)pthread_cond_broadcast(&map->changed);
    (void)pthread_mutex_unlock(&map->lock);
    return entry != NULL ? ST_OK : ST_FULL;
}

/* Nobody waits for a removal here, and the map lives for one measurement. */
static enum status check_kv_remove(void *self, const char *key)
{
    (void)self;
    (void)key;
    return ST_OK;
}

struct kv check_kv_table(struct check_kv *map)
{
    return (struct kv){ .self = map,
                        .set = check_kv_set,
                        .get = check_kv_get,
                        .add = check_kv_add,
                        .remove = check_kv_remove };
}
