#include "tests/gpu/fake_nccl.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "tests/gpu/async_impl.h"

/* NCCL's header declares these two without a prototype. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

#define RANKS_MAX  8
#define PIECES_MAX 64
#define HUBS_MAX   64
#define COMMS_MAX  256

/* A message on its way: the sender's memory until it is taken. */
struct mail {
    const void *data;
    size_t size;
    bool posted, taken;
};

struct hub {
    int size, joined, finalized;
    struct mail mail[RANKS_MAX][RANKS_MAX]; /* [from][to] */
};

struct ncclComm {
    struct hub *hub;
    int rank, polls;
    ncclResult_t state;
    bool joined, aborted, finalizing;
    int running;                  /* pieces of work that are on a stream */
    const struct backend *device; /* of that stream; NULL: there was none yet */
    struct stream *held;          /* while in progress nothing is enqueued there */
};

enum kind { KIND_SEND, KIND_RECV, KIND_REDUCE };

struct piece {
    enum kind kind;
    int peer;
    void *data;
    size_t size; /* bytes */
    bool posted, done;
};

/* What one group does on one stream. */
struct group {
    ncclComm_t comm;
    struct piece piece[PIECES_MAX];
    int count;
    float *others; /* KIND_REDUCE: [size][elements] */
};

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct hub hub[HUBS_MAX];
    struct ncclComm comm[COMMS_MAX];
    int hubs, comms, polls;
    ncclResult_t refusal;
    struct fake_nccl_counts counts;
} world = { .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static _Thread_local struct {
    int depth;
    struct group *group;
    struct stream *stream;
    ncclComm_t aborted[COMMS_MAX]; /* [abort_count] in this group */
    int abort_count;
} open_group;

static void lock(void)
{
    (void)pthread_mutex_lock(&world.mutex);
}

static void unlock(void)
{
    (void)pthread_cond_broadcast(&world.changed);
    (void)pthread_mutex_unlock(&world.mutex);
}

void fake_nccl_progress(int polls)
{
    lock();
    world.polls = polls;
    unlock();
}

void fake_nccl_refuse(ncclResult_t result)
{
    lock();
    world.refusal = result;
    unlock();
}

void fake_nccl_lose(int rank)
{
    lock();
    for (int i = 0; i < world.comms; i++) {
        if (world.comm[i].rank != rank && world.comm[i].state == ncclSuccess)
            world.comm[i].state = ncclRemoteError;
    }
    unlock();
}

struct fake_nccl_counts fake_nccl_counts(void)
{
    lock();
    const struct fake_nccl_counts counts = world.counts;
    unlock();
    return counts;
}

/* ---- communicators ---- */

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    lock();
    CHECK(world.hubs < HUBS_MAX);
    memset(id, 0, sizeof(*id));
    memcpy(id, &world.hubs, sizeof(world.hubs));
    world.hubs++;
    unlock();
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    int number = 0;
    memcpy(&number, &id, sizeof(number));
    CHECK(size <= RANKS_MAX);
    lock();
    CHECK(number < world.hubs);
    world.counts.blocking = config->blocking;
    world.counts.max_ctas = config->maxCTAs;
    const ncclResult_t refusal = world.refusal;
    if (refusal == ncclSuccess) {
        CHECK(world.comms < COMMS_MAX);
        struct ncclComm *comm = &world.comm[world.comms++];
        comm->hub = &world.hub[number];
        CHECK(comm->hub->size == 0 || comm->hub->size == size); /* an id is used once */
        CHECK(comm->hub->joined < size);
        comm->hub->size = size;
        comm->hub->joined++;
        comm->rank = rank;
        comm->polls = world.polls;
        world.counts.formed++;
        world.counts.live++;
        *out = comm;
    }
    unlock();
    return refusal == ncclSuccess ? ncclInProgress : refusal;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    lock();
    CHECK(!comm->aborted);
    *state = comm->state;
    if (comm->state == ncclSuccess) {
        const bool waits = comm->hub->joined < comm->hub->size ||
                           (comm->finalizing && comm->hub->finalized < comm->hub->size);
        if (waits || comm->polls > 0)
            *state = ncclInProgress;
        if (comm->polls > 0)
            comm->polls--;
    }
    if (*state != ncclInProgress && comm->held != NULL) {
        async_device_hold(comm->held, -1);
        comm->held = NULL;
    }
    unlock();
    return ncclSuccess;
}

/* Freeing its memory waits for the device: for what others do there, too. Under the mutex. */
static void wait_for_device(const struct ncclComm *comm)
{
    bool busy = true;
    while (busy) {
        busy = comm->running > 0;
        for (int i = 0; i < world.comms && comm->device != NULL; i++)
            busy = busy || (world.comm[i].device == comm->device && world.comm[i].running > 0);
        if (busy)
            (void)pthread_cond_wait(&world.changed, &world.mutex);
    }
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    lock();
    CHECK(!comm->aborted);
    comm->aborted = true;
    if (comm->held != NULL)
        async_device_hold(comm->held, -1);
    comm->held = NULL;
    world.counts.aborted++;
    world.counts.live--;
    (void)pthread_cond_broadcast(&world.changed);
    if (open_group.depth > 0) {
        open_group.aborted[open_group.abort_count++] = comm;
    } else {
        wait_for_device(comm);
    }
    unlock();
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    lock();
    CHECK(!comm->aborted);
    CHECK(comm->running == 0);
    comm->finalizing = true;
    comm->hub->finalized++;
    world.counts.finalized++;
    unlock();
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    lock();
    CHECK(!comm->aborted);
    CHECK(comm->hub->finalized == comm->hub->size); /* it would wait for the others for ever */
    comm->aborted = true;
    world.counts.destroyed++;
    world.counts.live--;
    unlock();
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclRemoteError ? "remote process exited" : "some error";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    return comm == NULL ? "" : "of a fake";
}

/* ---- work on a stream ---- */

static bool try_send(struct hub *hub, int rank, struct piece *piece, struct stream *stream)
{
    struct mail *mail = &hub->mail[rank][piece->peer];
    if (!piece->posted && !mail->posted) {
        *mail = (struct mail){ async_device_memory(stream, piece->data), piece->size, true, false };
        piece->posted = true;
        return true;
    }
    if (piece->posted && mail->taken) {
        memset(mail, 0, sizeof(*mail));
        piece->done = true;
    }
    return piece->done;
}

static bool try_recv(struct hub *hub, int rank, struct piece *piece, struct stream *stream)
{
    struct mail *mail = &hub->mail[piece->peer][rank];
    if (!mail->posted || mail->taken)
        return false;
    CHECK(mail->size == piece->size);
    memcpy(async_device_memory(stream, piece->data), mail->data, mail->size);
    mail->taken = true;
    piece->done = true;
    return true;
}

/* One pass over what is left; whether anything moved. */
static bool advance(struct group *group, struct stream *stream, bool *out_done)
{
    struct ncclComm *comm = group->comm;
    bool moved = false;
    *out_done = true;
    for (int i = 0; i < group->count; i++) {
        struct piece *piece = &group->piece[i];
        if (!piece->done && piece->kind == KIND_SEND)
            moved = try_send(comm->hub, comm->rank, piece, stream) || moved;
        if (!piece->done && piece->kind == KIND_RECV)
            moved = try_recv(comm->hub, comm->rank, piece, stream) || moved;
        *out_done = *out_done && piece->done;
    }
    return moved;
}

/* Own letters that nobody took must not be read any more. */
static void take_back(const struct group *group)
{
    const struct ncclComm *comm = group->comm;
    for (int to = 0; to < RANKS_MAX; to++)
        memset(&comm->hub->mail[comm->rank][to], 0, sizeof(struct mail));
}

/* One rank after the other: the same on all, but no tree. */
static void add_up(const struct group *group, struct stream *stream)
{
    const struct ncclComm *comm = group->comm;
    float *data = async_device_memory(stream, group->piece[0].data);
    const size_t count = group->piece[0].size / sizeof(float);
    for (size_t i = 0; i < count; i++) {
        float sum = 0;
        for (size_t r = 0; r < (size_t)comm->hub->size; r++)
            sum += r == (size_t)comm->rank ? data[i] : group->others[r * count + i];
        data[i] = sum;
    }
}

static enum status run_group(struct stream *stream, void *arg)
{
    struct group *group = *(struct group **)arg;
    struct ncclComm *comm = group->comm;
    bool done = false;
    lock();
    while (!done && !comm->aborted) {
        if (advance(group, stream, &done)) {
            (void)pthread_cond_broadcast(&world.changed);
        } else if (!done) {
            (void)pthread_cond_wait(&world.changed, &world.mutex);
        }
    }
    if (!done)
        take_back(group);
    if (done && group->others != NULL)
        add_up(group, stream);
    comm->running--;
    unlock();
    free(group->others);
    free(group);
    return ST_OK;
}

static ncclResult_t add_op(ncclComm_t comm, cudaStream_t stream, const struct piece *piece)
{
    const bool alone = open_group.depth == 0;
    if (alone)
        (void)ncclGroupStart();
    if (open_group.group == NULL) {
        open_group.group = calloc(1, sizeof(*open_group.group));
        CHECK(open_group.group != NULL);
        open_group.group->comm = comm;
        open_group.stream = (struct stream *)stream;
    }
    CHECK(open_group.group->comm == comm);
    CHECK(open_group.stream == (struct stream *)stream);
    CHECK(open_group.group->count < PIECES_MAX);
    open_group.group->piece[open_group.group->count++] = *piece;
    return alone ? ncclGroupEnd() : ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
    open_group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    CHECK(open_group.depth > 0);
    if (--open_group.depth > 0)
        return ncclSuccess;
    lock();
    for (; open_group.abort_count > 0; open_group.abort_count--)
        wait_for_device(open_group.aborted[open_group.abort_count - 1]);
    unlock();
    if (open_group.group == NULL)
        return ncclSuccess;
    struct group *group = open_group.group;
    struct stream *stream = open_group.stream;
    struct ncclComm *comm = group->comm;
    open_group.group = NULL;
    lock();
    CHECK(!comm->aborted);
    CHECK(!comm->finalizing);
    CHECK(comm->held == NULL); /* settled before the next */
    comm->running++;
    comm->device = stream->backend;
    comm->polls = world.polls;
    unlock();
    async_device_enqueue(stream, run_group, &group, sizeof(group));
    lock();
    comm->held = stream;
    unlock();
    async_device_hold(stream, 1);
    return ncclInProgress;
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    CHECK(type == ncclUint8);
    const struct piece piece = { KIND_SEND, peer, (void *)data, count, false, false };
    return add_op(comm, stream, &piece);
}

ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    CHECK(type == ncclUint8);
    const struct piece piece = { KIND_RECV, peer, data, count, false, false };
    return add_op(comm, stream, &piece);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    CHECK(type == ncclUint8);
    CHECK((const char *)recv + (size_t)comm->rank * count == send); /* in place */
    lock();
    world.counts.all_gathers++;
    unlock();
    (void)ncclGroupStart();
    for (int r = 0; r < comm->hub->size; r++) {
        if (r == comm->rank)
            continue;
        (void)ncclSend(send, count, type, r, comm, stream);
        (void)ncclRecv((char *)recv + (size_t)r * count, count, type, r, comm, stream);
    }
    return ncclGroupEnd();
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t how, ncclComm_t comm, cudaStream_t stream)
{
    CHECK(type == ncclFloat32);
    CHECK(how == ncclSum);
    CHECK(send == recv);
    const int size = comm->hub->size;
    float *others = malloc((size_t)size * count * sizeof(float));
    CHECK(others != NULL);
    lock();
    world.counts.all_reduces++;
    unlock();
    (void)ncclGroupStart();
    for (int r = 0; r < size; r++) {
        if (r == comm->rank)
            continue;
        (void)ncclSend(send, count * sizeof(float), ncclUint8, r, comm, stream);
    }
    for (int r = 0; r < size; r++) {
        if (r == comm->rank)
            continue;
        (void)ncclRecv(others + (size_t)r * count, count * sizeof(float), ncclUint8, r, comm,
                       stream);
    }
    open_group.group->others = others;
    return ncclGroupEnd();
}
