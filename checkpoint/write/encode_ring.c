#include "checkpoint/write/encode_ring.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/pages.h"

/* Entries beside two per thread. Each thread has one in work and one is the taker's; the others are
 * for chunks that take longer, and for a write that doesn't return. */
#define ENTRIES_BESIDE 4
#define ENTRY_BYTES    ((DISK_CHUNK_MAX + 4095) / 4096 * 4096)

struct encoder_thread {
    struct ckpt_ring *ring;
    pthread_t id;
    bool runs;
    struct ckpt_encoder encoder;
    int64_t used_ns; /* processor time of this run */
};

struct ring_entry {
    struct ckpt_encoded chunk;
    enum status st;
    bool ready;
};

struct ckpt_ring {
    pthread_mutex_t mutex; /* of all below */
    pthread_cond_t work;   /* a chunk may be taken, or closing */
    pthread_cond_t ready;  /* a chunk is ready, or a thread went idle */
    uint64_t count;        /* of chunks; 0: nothing to do */
    uint64_t taken;        /* by threads */
    uint64_t given;        /* to the taker */
    uint32_t busy;         /* threads at work */
    bool closing;
    ckpt_ring_fn fn;
    void *arg;

    uint32_t thread_count, entry_count;
    struct encoder_thread
        *threads; /* at least one: the caller's encoder is the first's without threads */
    struct ring_entry *entries;
    uint8_t *memory; /* of entries, then of bases */
};

static uint32_t entries_of(uint32_t threads)
{
    return threads == 0 ? 1 : 2 * threads + ENTRIES_BESIDE;
}

static uint32_t encoders_of(uint32_t threads)
{
    return threads == 0 ? 1 : threads;
}

static size_t memory_of(uint32_t threads)
{
    return entries_of(threads) * ENTRY_BYTES + encoders_of(threads) * (size_t)DISK_CHUNK_BYTES;
}

size_t ckpt_ring_bytes(uint32_t threads)
{
    return pages_bytes(memory_of(threads)) + encoders_of(threads) * CKPT_CODEC_BYTES;
}

/* ---- the threads ---- */

static bool may_take(const struct ckpt_ring *ring)
{
    return ring->taken < ring->count && ring->taken < ring->given + ring->entry_count - 1;
}

/* Encodes the next chunk. Under mutex, which is given up while encoding. */
static void encode_next(struct encoder_thread *thread)
{
    struct ckpt_ring *ring = thread->ring;
    const uint64_t number = ring->taken++;
    struct ring_entry *entry = &ring->entries[number % ring->entry_count];
    CHECK(!entry->ready);
    ring->busy++;
    (void)pthread_mutex_unlock(&ring->mutex);
    const int64_t begin_ns = clock_thread_ns();
    const enum status st = ring->fn(ring->arg, &thread->encoder, number, &entry->chunk);
    const int64_t used_ns = clock_thread_ns() - begin_ns;
    (void)pthread_mutex_lock(&ring->mutex);
    thread->used_ns += used_ns;
    entry->st = st;
    entry->ready = true;
    ring->busy--;
    if (st != ST_OK && number + 1 < ring->count)
        ring->count = number + 1; /* no later one is needed */
    (void)pthread_cond_signal(&ring->ready);
}

static void *run_encoder(void *arg)
{
    struct encoder_thread *thread = arg;
    struct ckpt_ring *ring = thread->ring;
    (void)pthread_setname_np(pthread_self(), "cairn-encoder");
    (void)pthread_mutex_lock(&ring->mutex);
    while (!ring->closing) {
        if (may_take(ring)) {
            encode_next(thread);
        } else {
            (void)pthread_cond_wait(&ring->work, &ring->mutex);
        }
    }
    (void)pthread_mutex_unlock(&ring->mutex);
    return NULL;
}

/* ---- lifecycle ---- */

/* Threads have the signals blocked that are blocked while they are made: here all of them. */
static enum status start_threads(struct ckpt_ring *ring)
{
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = true;
    for (uint32_t i = 0; i < ring->thread_count && started; i++) {
        struct encoder_thread *thread = &ring->threads[i];
        thread->runs = pthread_create(&thread->id, NULL, run_encoder, thread) == 0;
        started = thread->runs;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started ? ST_OK : ST_NO_MEMORY;
}

static enum status make_encoders(struct ckpt_ring *ring, enum ckpt_level level)
{
    void *memory = NULL;
    enum status st = pages_alloc(memory_of(ring->thread_count), &memory);
    if (st != ST_OK)
        return st;
    ring->memory = memory;
    for (uint32_t i = 0; i < ring->entry_count; i++)
        ring->entries[i].chunk.bytes = ring->memory + i * ENTRY_BYTES;
    uint8_t *bases = ring->memory + ring->entry_count * ENTRY_BYTES;
    for (uint32_t i = 0; i < encoders_of(ring->thread_count); i++) {
        struct encoder_thread *thread = &ring->threads[i];
        thread->ring = ring;
        thread->encoder.number = i;
        thread->encoder.base = bases + i * (size_t)DISK_CHUNK_BYTES;
        st = ckpt_codec_new(level, &thread->encoder.codec);
        if (st != ST_OK)
            return st;
    }
    return start_threads(ring);
}

enum status ckpt_ring_new(enum ckpt_level level, uint32_t threads, struct ckpt_ring **out)
{
    struct ckpt_ring *ring = calloc(1, sizeof(*ring));
    if (ring == NULL)
        return ST_NO_MEMORY;
    ring->thread_count = threads;
    ring->entry_count = entries_of(threads);
    (void)pthread_mutex_init(&ring->mutex, NULL);
    (void)pthread_cond_init(&ring->work, NULL);
    (void)pthread_cond_init(&ring->ready, NULL);
    ring->threads = calloc(encoders_of(threads), sizeof(*ring->threads));
    ring->entries = calloc(ring->entry_count, sizeof(*ring->entries));
    enum status st =
        ring->threads == NULL || ring->entries == NULL ? ST_NO_MEMORY : make_encoders(ring, level);
    if (st != ST_OK) {
        ckpt_ring_free(ring);
        return st;
    }
    *out = ring;
    return ST_OK;
}

void ckpt_ring_free(struct ckpt_ring *ring)
{
    if (ring == NULL)
        return;
    (void)pthread_mutex_lock(&ring->mutex);
    ring->closing = true;
    (void)pthread_cond_broadcast(&ring->work);
    (void)pthread_mutex_unlock(&ring->mutex);
    for (uint32_t i = 0; ring->threads != NULL && i < encoders_of(ring->thread_count); i++) {
        if (ring->threads[i].runs)
            (void)pthread_join(ring->threads[i].id, NULL);
        ckpt_codec_free(ring->threads[i].encoder.codec);
    }
    pages_free(ring->memory, memory_of(ring->thread_count));
    free(ring->threads);
    free(ring->entries);
    (void)pthread_cond_destroy(&ring->work);
    (void)pthread_cond_destroy(&ring->ready);
    (void)pthread_mutex_destroy(&ring->mutex);
    free(ring);
}

/* ---- a run ---- */

void ckpt_ring_begin(struct ckpt_ring *ring, uint64_t count, ckpt_ring_fn fn, void *arg)
{
    (void)pthread_mutex_lock(&ring->mutex);
    CHECK(ring->count == 0);
    CHECK(ring->busy == 0);
    ring->fn = fn;
    ring->arg = arg;
    ring->taken = 0;
    ring->given = 0;
    for (uint32_t i = 0; i < ring->entry_count; i++)
        ring->entries[i].ready = false;
    for (uint32_t i = 0; i < encoders_of(ring->thread_count); i++)
        ring->threads[i].used_ns = 0;
    ring->count = count;
    (void)pthread_cond_broadcast(&ring->work);
    (void)pthread_mutex_unlock(&ring->mutex);
}

enum status ckpt_ring_next(struct ckpt_ring *ring, const struct ckpt_encoded **out)
{
    (void)pthread_mutex_lock(&ring->mutex);
    const uint64_t number = ring->given;
    struct ring_entry *entry = &ring->entries[number % ring->entry_count];
    CHECK(number < ring->count);
    if (ring->thread_count == 0)
        encode_next(&ring->threads[0]);
    while (!entry->ready)
        (void)pthread_cond_wait(&ring->ready, &ring->mutex);
    const enum status st = entry->st;
    entry->ready = false;
    ring->given++;
    (void)pthread_cond_signal(&ring->work);
    (void)pthread_mutex_unlock(&ring->mutex);
    if (st == ST_OK)
        *out = &entry->chunk;
    return st;
}

void ckpt_ring_end(struct ckpt_ring *ring, int64_t *out_ns)
{
    int64_t used_ns = 0;
    (void)pthread_mutex_lock(&ring->mutex);
    CHECK(ring->fn != NULL);
    ring->count = 0;
    while (ring->busy > 0)
        (void)pthread_cond_wait(&ring->ready, &ring->mutex);
    for (uint32_t i = 0; i < ring->thread_count; i++)
        used_ns += ring->threads[i].used_ns; /* without threads the caller counts his own */
    ring->fn = NULL;
    ring->arg = NULL;
    (void)pthread_mutex_unlock(&ring->mutex);
    *out_ns = used_ns;
}
