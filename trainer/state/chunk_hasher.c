#include "trainer/state/chunk_hasher.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "checkpoint/format/hash.h"
#include "common/check.h"

struct chunk_hasher {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct chunk_hash *chunks; /* NULL: nothing to do */
    size_t count;
    bool quit;
};

static void *hasher_main(void *arg)
{
    struct chunk_hasher *h = arg;
    (void)pthread_setname_np(pthread_self(), "cairn-hasher");
    (void)pthread_mutex_lock(&h->mutex);
    while (!h->quit) {
        if (h->chunks == NULL) {
            (void)pthread_cond_wait(&h->changed, &h->mutex);
            continue;
        }
        struct chunk_hash *chunks = h->chunks;
        const size_t count = h->count;
        (void)pthread_mutex_unlock(&h->mutex);
        for (size_t i = 0; i < count; i++) {
            if (chunks[i].data != NULL)
                chunks[i].hash = ckpt_hash_of(chunks[i].data, chunks[i].size);
        }
        (void)pthread_mutex_lock(&h->mutex);
        h->chunks = NULL;
        (void)pthread_cond_broadcast(&h->changed);
    }
    (void)pthread_mutex_unlock(&h->mutex);
    return NULL;
}

enum status chunk_hasher_new(struct chunk_hasher **out)
{
    struct chunk_hasher *h = calloc(1, sizeof(*h));
    if (h == NULL)
        return ST_NO_MEMORY;
    (void)pthread_mutex_init(&h->mutex, NULL);
    (void)pthread_cond_init(&h->changed, NULL);
    if (pthread_create(&h->thread, NULL, hasher_main, h) != 0) {
        (void)pthread_cond_destroy(&h->changed);
        (void)pthread_mutex_destroy(&h->mutex);
        free(h);
        return ST_NO_MEMORY;
    }
    *out = h;
    return ST_OK;
}

void chunk_hasher_free(struct chunk_hasher *hasher)
{
    if (hasher == NULL)
        return;
    chunk_hasher_wait(hasher);
    (void)pthread_mutex_lock(&hasher->mutex);
    hasher->quit = true;
    (void)pthread_cond_broadcast(&hasher->changed);
    (void)pthread_mutex_unlock(&hasher->mutex);
    (void)pthread_join(hasher->thread, NULL);
    (void)pthread_cond_destroy(&hasher->changed);
    (void)pthread_mutex_destroy(&hasher->mutex);
    free(hasher);
}

void chunk_hasher_start(struct chunk_hasher *hasher, struct chunk_hash *chunks, size_t count)
{
    (void)pthread_mutex_lock(&hasher->mutex);
    CHECK(hasher->chunks == NULL);
    hasher->chunks = chunks;
    hasher->count = count;
    (void)pthread_cond_broadcast(&hasher->changed);
    (void)pthread_mutex_unlock(&hasher->mutex);
}

void chunk_hasher_wait(struct chunk_hasher *hasher)
{
    (void)pthread_mutex_lock(&hasher->mutex);
    while (hasher->chunks != NULL)
        (void)pthread_cond_wait(&hasher->changed, &hasher->mutex);
    (void)pthread_mutex_unlock(&hasher->mutex);
}
