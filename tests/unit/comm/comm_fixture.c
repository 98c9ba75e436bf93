#include "tests/unit/comm/comm_fixture.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "common/check.h"

/* ---- kv ---- */

struct shared_kv *shared_kv_new(void)
{
    struct shared_kv *shared =
        mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    pthread_mutexattr_t mutex;
    pthread_condattr_t cond;
    (void)pthread_mutexattr_init(&mutex);
    (void)pthread_condattr_init(&cond);
    (void)pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    (void)pthread_condattr_setpshared(&cond, PTHREAD_PROCESS_SHARED);
    (void)pthread_condattr_setclock(&cond, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&shared->mutex, &mutex);
    (void)pthread_cond_init(&shared->changed, &cond);
    return shared;
}

void shared_kv_free(struct shared_kv *shared)
{
    (void)munmap(shared, sizeof(*shared));
}

static int find(const struct shared_kv *shared, const char *key)
{
    for (int i = 0; i < shared->used; i++) {
        if (strcmp(shared->entry[i].key, key) == 0)
            return i;
    }
    return -1;
}

static enum status kv_set(void *self, const char *key, const void *value, size_t size)
{
    struct shared_kv *shared = self;
    if (size > SHARED_VALUE || strlen(key) >= sizeof(shared->entry[0].key))
        return ST_FULL;
    (void)pthread_mutex_lock(&shared->mutex);
    int i = find(shared, key);
    enum status st = ST_OK;
    if (shared->stale)
        st = ST_STALE;
    else if (i < 0 && shared->used == SHARED_KEYS)
        st = ST_FULL;
    if (st == ST_OK) {
        i = i < 0 ? shared->used++ : i;
        memcpy(shared->entry[i].key, key, strlen(key) + 1);
        memcpy(shared->entry[i].value, value, size);
        shared->entry[i].size = size;
    }
    (void)pthread_cond_broadcast(&shared->changed);
    (void)pthread_mutex_unlock(&shared->mutex);
    return st;
}

static enum status kv_get(void *self, const char *key, void *out, size_t capacity, size_t *out_size,
                          int64_t timeout_ms)
{
    struct shared_kv *shared = self;
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += timeout_ms % 1000 * 1000000;
    until.tv_sec += timeout_ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)pthread_mutex_lock(&shared->mutex);
    int i = -1, error = 0;
    shared->waiting++;
    (void)pthread_cond_broadcast(&shared->changed);
    while (!shared->stale && (i = find(shared, key)) < 0 && error != ETIMEDOUT)
        error = pthread_cond_timedwait(&shared->changed, &shared->mutex, &until);
    shared->waiting--;
    enum status st = ST_OK;
    if (shared->stale)
        st = ST_STALE;
    else if (i < 0)
        st = ST_TIMED_OUT;
    else if (shared->entry[i].size > capacity)
        st = ST_FULL;
    if (st == ST_OK) {
        memcpy(out, shared->entry[i].value, shared->entry[i].size);
        *out_size = shared->entry[i].size;
    }
    (void)pthread_mutex_unlock(&shared->mutex);
    return st;
}

void shared_kv_go_stale(struct shared_kv *shared)
{
    (void)pthread_mutex_lock(&shared->mutex);
    shared->stale = true;
    (void)pthread_cond_broadcast(&shared->changed);
    (void)pthread_mutex_unlock(&shared->mutex);
}

struct kv shared_kv_table(struct shared_kv *shared)
{
    return (struct kv){ .self = shared, .set = kv_set, .get = kv_get };
}

/* ---- local communicator ---- */

struct comm {
    struct local_hub *hub;
    int rank;
};

void local_hub_init(struct local_hub *hub, int size)
{
    memset(hub, 0, sizeof(*hub));
    hub->size = size;
    (void)pthread_mutex_init(&hub->mutex, NULL);
    (void)pthread_cond_init(&hub->changed, NULL);
}

void local_hub_release(struct local_hub *hub)
{
    (void)pthread_cond_destroy(&hub->changed);
    (void)pthread_mutex_destroy(&hub->mutex);
}

static void meet(struct local_hub *hub)
{
    (void)pthread_mutex_lock(&hub->mutex);
    const uint64_t meeting = hub->meetings;
    if (++hub->arrived == hub->size) {
        hub->arrived = 0;
        hub->meetings++;
        (void)pthread_cond_broadcast(&hub->changed);
    }
    while (hub->meetings == meeting)
        (void)pthread_cond_wait(&hub->changed, &hub->mutex);
    (void)pthread_mutex_unlock(&hub->mutex);
}

static enum status all_to_all_v(struct comm *comm, const struct comm_segment *send,
                                const struct comm_segment *recv, int64_t timeout_ms)
{
    (void)timeout_ms;
    struct local_hub *hub = comm->hub;
    hub->send[comm->rank] = send;
    meet(hub);
    for (int r = 0; r < hub->size; r++) {
        if (r == comm->rank)
            continue;
        const struct comm_segment from = hub->send[r][comm->rank];
        CHECK(from.size == recv[r].size);
        if (from.size > 0)
            memcpy(recv[r].data, from.data, from.size);
    }
    meet(hub);
    return ST_OK;
}

static enum status all_gather_v(struct comm *comm, const struct comm_segment *segments,
                                int64_t timeout_ms)
{
    (void)timeout_ms;
    struct local_hub *hub = comm->hub;
    hub->send[comm->rank] = segments;
    meet(hub);
    for (int r = 0; r < hub->size; r++) {
        if (r == comm->rank)
            continue;
        const struct comm_segment from = hub->send[r][r];
        CHECK(from.size == segments[r].size);
        if (from.size > 0)
            memcpy(segments[r].data, from.data, from.size);
    }
    meet(hub);
    return ST_OK;
}

static void abort_local(struct comm *comm)
{
    (void)comm;
    CHECK(false); /* no test with this communicator leaves a step unfinished */
}

struct comm *local_comm_new(struct local_hub *hub, int rank)
{
    struct comm *comm = calloc(1, sizeof(*comm));
    CHECK(comm != NULL);
    comm->hub = hub;
    comm->rank = rank;
    return comm;
}

void local_comm_free(struct comm *comm)
{
    free(comm);
}

const struct comm_table *local_comm_table(void)
{
    static const struct comm_table table = {
        .name = "local",
        .all_to_all_v = all_to_all_v,
        .all_gather_v = all_gather_v,
        .abort = abort_local,
    };
    return &table;
}

enum status gloo_open_rank(struct shared_kv *shared, int rank, int size, int64_t timeout_ms,
                           struct comm **out)
{
    const struct kv kv = shared_kv_table(shared);
    const struct comm_options options = { .kv = &kv,
                                          .generation = 1,
                                          .rank = rank,
                                          .size = size,
                                          .host = "127.0.0.1",
                                          .timeout_ms = timeout_ms };
    return comm_gloo()->open(&options, out);
}
