#include "tests/unit/comm/comm_fixture.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "common/check.h"

/* ---- rendezvous ---- */

struct shared_rendezvous *shared_rendezvous_new(void)
{
    struct shared_rendezvous *shared =
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
    for (int r = 0; r < SHARED_RANKS; r++)
        shared->members[r] = (struct shared_member){ shared, r };
    return shared;
}

void shared_rendezvous_free(struct shared_rendezvous *shared)
{
    (void)munmap(shared, sizeof(*shared));
}

/* Under mutex: the number of the round of that name, with this part in it. */
static int bring(struct shared_rendezvous *shared, int rank, const char *name,
                 const struct rendezvous_part *mine, int ranks)
{
    int at = 0;
    while (at < RENDEZVOUS_ROUNDS && shared->meetings[at].name[0] != '\0' &&
           strcmp(shared->meetings[at].name, name) != 0)
        at++;
    CHECK(at < RENDEZVOUS_ROUNDS);
    CHECK(ranks <= SHARED_RANKS);
    (void)snprintf(shared->meetings[at].name, RENDEZVOUS_NAME, "%s", name);
    if (shared->meetings[at].parts[rank].came)
        return at;
    shared->meetings[at].came++;
    shared->meetings[at].parts[rank].came = true;
    shared->meetings[at].parts[rank].common_size = mine->common_size;
    if (mine->common_size > 0)
        memcpy(shared->meetings[at].parts[rank].common, mine->common, mine->common_size);
    for (int r = 0; mine->item_size > 0 && r < ranks; r++) {
        memcpy(shared->meetings[at].parts[rank].items[r],
               (const uint8_t *)mine->items + (size_t)r * mine->item_size, mine->item_size);
    }
    (void)pthread_cond_broadcast(&shared->changed);
    return at;
}

static enum status shared_join(void *self, const char *name, const struct rendezvous_part *mine,
                               int ranks, int64_t timeout_ms, struct rendezvous_got *out)
{
    const struct shared_member *member = self;
    struct shared_rendezvous *shared = member->shared;
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += timeout_ms % 1000 * 1000000;
    until.tv_sec += timeout_ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)pthread_mutex_lock(&shared->mutex);
    const int at = bring(shared, member->rank, name, mine, ranks);
    int error = 0;
    shared->waiting++;
    (void)pthread_cond_broadcast(&shared->changed);
    while (!shared->stale && shared->meetings[at].came < ranks && error != ETIMEDOUT)
        error = pthread_cond_timedwait(&shared->changed, &shared->mutex, &until);
    shared->waiting--;
    enum status st = shared->meetings[at].came < ranks ? ST_TIMED_OUT : ST_OK;
    if (shared->stale)
        st = ST_STALE;
    for (int r = 0; st == ST_OK && r < ranks; r++) {
        out[r].common_size = shared->meetings[at].parts[r].common_size;
        memcpy(out[r].common, shared->meetings[at].parts[r].common, RENDEZVOUS_COMMON_MAX);
        memcpy(out[r].item, shared->meetings[at].parts[r].items[member->rank], RENDEZVOUS_ITEM_MAX);
    }
    (void)pthread_mutex_unlock(&shared->mutex);
    return st;
}

static bool shared_is_over(void *self)
{
    struct shared_rendezvous *shared = ((const struct shared_member *)self)->shared;
    (void)pthread_mutex_lock(&shared->mutex);
    const bool over = shared->stale;
    (void)pthread_mutex_unlock(&shared->mutex);
    return over;
}

void shared_rendezvous_go_stale(struct shared_rendezvous *shared)
{
    (void)pthread_mutex_lock(&shared->mutex);
    shared->stale = true;
    (void)pthread_cond_broadcast(&shared->changed);
    (void)pthread_mutex_unlock(&shared->mutex);
}

void shared_rendezvous_bring_nothing(struct shared_rendezvous *shared, const char *name, int rank,
                                     int ranks)
{
    const struct rendezvous_part nothing = { 0 };
    (void)pthread_mutex_lock(&shared->mutex);
    (void)bring(shared, rank, name, &nothing, ranks);
    (void)pthread_mutex_unlock(&shared->mutex);
}

struct rendezvous shared_rendezvous_of(struct shared_rendezvous *shared, int rank)
{
    CHECK(rank >= 0 && rank < SHARED_RANKS);
    return (struct rendezvous){ .self = &shared->members[rank],
                                .join = shared_join,
                                .is_over = shared_is_over };
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

static void join(struct local_hub *hub)
{
    (void)pthread_mutex_lock(&hub->mutex);
    const uint64_t round_name = hub->meetings;
    if (++hub->arrived == hub->size) {
        hub->arrived = 0;
        hub->meetings++;
        (void)pthread_cond_broadcast(&hub->changed);
    }
    while (hub->meetings == round_name)
        (void)pthread_cond_wait(&hub->changed, &hub->mutex);
    (void)pthread_mutex_unlock(&hub->mutex);
}

static enum status all_to_all_v(struct comm *comm, const struct comm_segment *send,
                                const struct comm_segment *recv, int64_t timeout_ms)
{
    (void)timeout_ms;
    struct local_hub *hub = comm->hub;
    hub->send[comm->rank] = send;
    join(hub);
    for (int r = 0; r < hub->size; r++) {
        if (r == comm->rank)
            continue;
        const struct comm_segment from = hub->send[r][comm->rank];
        CHECK(from.size == recv[r].size);
        if (from.size > 0)
            memcpy(recv[r].data, from.data, from.size);
    }
    join(hub);
    return ST_OK;
}

static enum status all_gather_v(struct comm *comm, const struct comm_segment *segments,
                                int64_t timeout_ms)
{
    (void)timeout_ms;
    struct local_hub *hub = comm->hub;
    hub->send[comm->rank] = segments;
    join(hub);
    for (int r = 0; r < hub->size; r++) {
        if (r == comm->rank)
            continue;
        const struct comm_segment from = hub->send[r][r];
        CHECK(from.size == segments[r].size);
        if (from.size > 0)
            memcpy(segments[r].data, from.data, from.size);
    }
    join(hub);
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

enum status gloo_open_some(struct shared_rendezvous *shared, const struct comm_some *some, int rank,
                           int size, int64_t timeout_ms, struct comm **out)
{
    const struct rendezvous rendezvous = shared_rendezvous_of(shared, rank);
    const struct comm_options options = { .rendezvous = &rendezvous,
                                          .round_name = some->round_name,
                                          .rank = rank,
                                          .size = size,
                                          .members = some->members,
                                          .member_count = some->member_count,
                                          .connected = some->connected,
                                          .host = "127.0.0.1",
                                          .secret = "of this generation",
                                          .timeout_ms = timeout_ms };
    return comm_gloo()->open(&options, out);
}

enum status gloo_open_rank(struct shared_rendezvous *shared, int rank, int size, int64_t timeout_ms,
                           struct comm **out)
{
    const struct comm_some all = { .round_name = "workers" };
    return gloo_open_some(shared, &all, rank, size, timeout_ms, out);
}
