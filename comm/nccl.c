/*
 * NCCL behind the comm table. Source of the rules: NCCL's user guide (fault tolerance), and the
 * deadlocks of others in its issue tracker.
 *
 * Invariants
 *  1. The communicator is non-blocking: no call of NCCL waits for a peer. What is in progress is
 *     polled here, together with the abort flag and the deadline, and nothing else is enqueued on
 *     the stream meanwhile.
 *  2. Nobody blocks on the stream: its end is an event that is queried in the same loop.
 *  3. `inside` is held by whoever is in a call; so an abort happens while no thread is in NCCL: by
 *     the one that sets the flag if it gets the mutex, else by the one that holds it.
 *  4. After an abort of NCCL (nccl is NULL then) nothing but close is done. It is never followed by
 *     a finalize or destroy, and the stream was waited for: no kernel uses a buffer any more.
 *  5. A communicator never comes back: each has a fresh id, from its own meeting.
 *
 * A process has one communicator; with a second one, both would have to be aborted in one group.
 * Collectives are never captured into a graph: an abort would wait for that graph's end.
 */
#include "comm/nccl.h"

#include <nccl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/limits.h"
#include "common/reason.h"

#define FAREWELL_MS    INT64_C(2000)
#define DRAIN_MS       INT64_C(5000)
#define STALE_CHECK_MS INT64_C(100)     /* between two looks at the rendezvous during open */
#define SPIN_NS        INT64_C(1000000) /* a wait spins for so long, then it naps */
#define NAP_NS         20000L

struct comm {
    int rank, size;
    struct comm_device device;
    cudaStream_t stream;
    struct event *done;
    ncclComm_t nccl; /* NULL: size 1, or aborted */
    pthread_mutex_t inside;
    atomic_bool aborted; /* asked for, by any thread */
    enum status failed;  /* the first error; returned by every later call */
    struct reason why;   /* of failed */
};

/* ---- errors ---- */

static enum status status_of_nccl(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
        return ST_OK;
    case ncclInProgress:
        return ST_AGAIN;
    case ncclRemoteError:
    case ncclSystemError:   /* sockets and their like: a peer or the way to it */
    case ncclInternalError: /* a peer that dies while NCCL connects looks like that, too */
        return ST_PEER;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
        return ST_INVALID;
    case ncclUnhandledCudaError:
    case ncclNumResults:
        break;
    }
    return ST_DEVICE;
}

/* Whether the stream's work is over. */
static enum status look_at_stream(struct comm *comm)
{
    return comm->device.table->event_query(comm->device.backend, comm->done);
}

static void nap(int64_t since_ns)
{
    const struct timespec time = { .tv_nsec = NAP_NS };
    if (clock_mono_ns() - since_ns < SPIN_NS) {
        (void)sched_yield();
    } else {
        (void)ppoll(NULL, 0, &time, NULL);
    }
}

/* Ends the communicator and waits until its kernels have left the stream. Under `inside`. */
static void nccl_end(struct comm *comm)
{
    if (comm->nccl == NULL)
        return;
    (void)ncclCommAbort(comm->nccl);
    comm->nccl = NULL;
    const struct comm_device *d = &comm->device;
    const int64_t begin_ns = clock_mono_ns();
    enum status st = d->table->event_record(d->backend, comm->done, d->stream);
    if (st == ST_OK)
        st = look_at_stream(comm);
    while (st == ST_AGAIN && clock_mono_ns() - begin_ns < DRAIN_MS * 1000000) {
        nap(begin_ns);
        st = look_at_stream(comm);
    }
}

static enum status nccl_fail(struct comm *comm, enum status st, const char *why)
{
    if (comm->failed == ST_OK) {
        comm->failed = st;
        reason_set(&comm->why, "%s", why);
    }
    nccl_end(comm);
    return comm->failed;
}

static enum status nccl_fail_of(struct comm *comm, ncclResult_t result)
{
    struct reason why;
    const char *last = ncclGetLastError(comm->nccl);
    if (last == NULL)
        last = "";
    reason_set(&why, "NCCL: %s%s%.300s", ncclGetErrorString(result), last[0] != '\0' ? ": " : "",
               last);
    return nccl_fail(comm, status_of_nccl(result), why.text);
}

/* ---- in and out ---- */

static enum status nccl_enter(struct comm *comm, int64_t timeout_ms)
{
    if (timeout_ms < 1)
        return ST_INVALID;
    (void)pthread_mutex_lock(&comm->inside);
    if (comm->failed == ST_OK && atomic_load(&comm->aborted))
        (void)nccl_fail(comm, ST_STALE, "aborted");
    if (comm->failed == ST_OK)
        return ST_OK;
    const enum status st = comm->failed;
    (void)pthread_mutex_unlock(&comm->inside);
    return st;
}

/* An abort that came while the mutex was held, after the last look at the flag, is carried out
 * here. */
static enum status nccl_leave(struct comm *comm, enum status st)
{
    (void)pthread_mutex_unlock(&comm->inside);
    if (atomic_load(&comm->aborted) && pthread_mutex_trylock(&comm->inside) == 0) {
        (void)nccl_fail(comm, ST_STALE, "aborted");
        (void)pthread_mutex_unlock(&comm->inside);
    }
    return st;
}

/* One look at all that can end a wait. */
static enum status nccl_look(struct comm *comm, int64_t deadline_ns)
{
    if (atomic_load(&comm->aborted))
        return nccl_fail(comm, ST_STALE, "aborted");
    ncclResult_t state = ncclSuccess;
    ncclResult_t result = ncclCommGetAsyncError(comm->nccl, &state);
    if (result == ncclSuccess)
        result = state;
    if (result != ncclSuccess && result != ncclInProgress)
        return nccl_fail_of(comm, result);
    if (clock_mono_ns() >= deadline_ns)
        return nccl_fail(comm, ST_PEER, "a peer did not answer in time");
    return result == ncclInProgress ? ST_AGAIN : ST_OK;
}

/* Waits until what was asked of NCCL is enqueued. */
static enum status nccl_settle(struct comm *comm, ncclResult_t result, int64_t timeout_ms)
{
    if (result == ncclSuccess)
        return ST_OK;
    if (result != ncclInProgress)
        return nccl_fail_of(comm, result);
    const int64_t begin_ns = clock_mono_ns();
    enum status st = nccl_look(comm, begin_ns + timeout_ms * 1000000);
    while (st == ST_AGAIN) {
        nap(begin_ns);
        st = nccl_look(comm, begin_ns + timeout_ms * 1000000);
    }
    return st;
}

static enum status wait_inside(struct comm *comm, int64_t timeout_ms)
{
    const struct comm_device *d = &comm->device;
    const int64_t begin_ns = clock_mono_ns();
    enum status st = d->table->event_record(d->backend, comm->done, d->stream);
    if (st == ST_OK)
        st = look_at_stream(comm);
    while (st == ST_AGAIN) {
        if (comm->nccl != NULL) {
            st = nccl_look(comm, begin_ns + timeout_ms * 1000000);
            if (st != ST_OK && st != ST_AGAIN)
                return st;
        }
        nap(begin_ns);
        st = look_at_stream(comm);
    }
    if (st != ST_OK)
        return nccl_fail(comm, st, "the device failed");
    /* What went wrong without holding up the stream. */
    st = comm->nccl == NULL ? ST_OK : nccl_look(comm, INT64_MAX);
    return st == ST_AGAIN ? ST_OK : st;
}

/* ---- open and close ---- */

static enum status apply_settings(const struct comm_options *options)
{
    const struct comm_device *d = &options->device;
    for (size_t i = 0; i < d->setting_count; i++) {
        const char *equals = strchr(d->settings[i], '=');
        char name[LIMIT_NAME];
        if (equals == NULL || equals == d->settings[i] ||
            (size_t)(equals - d->settings[i]) >= sizeof(name) ||
            strncmp(d->settings[i], "NCCL_", 5) != 0)
            return ST_INVALID;
        memcpy(name, d->settings[i], (size_t)(equals - d->settings[i]));
        name[equals - d->settings[i]] = '\0';
        if (setenv(name, equals + 1, 1) != 0)
            return ST_NO_MEMORY;
    }
    if (!d->device_shared)
        return ST_OK;
    /* NCCL refuses two ranks with the same host and device. So each is a host of its own. */
    char host[64];
    (void)snprintf(host, sizeof(host), "cairn-%d-%ld", options->rank, (long)getpid());
    return setenv("NCCL_HOSTID", host, 1) == 0 ? ST_OK : ST_NO_MEMORY;
}

static int64_t left_ms(int64_t deadline_ns)
{
    const int64_t left = (deadline_ns - clock_mono_ns()) / 1000000;
    return left < 0 ? 0 : left;
}

/* Rank 0 makes the id and brings it to the meeting, the others bring nothing. */
static enum status agree_on_id(struct comm *comm, const struct comm_options *options,
                               int64_t deadline_ns, ncclUniqueId *out)
{
    struct rendezvous_part mine = { 0 };
    if (comm->rank == 0) {
        const ncclResult_t result = ncclGetUniqueId(out);
        if (result != ncclSuccess)
            return nccl_fail_of(comm, result);
        mine = (struct rendezvous_part){ .common = out, .common_size = sizeof(*out) };
    }
    const int64_t wait_ms = left_ms(deadline_ns);
    if (wait_ms == 0)
        return ST_TIMED_OUT;
    auto_free struct rendezvous_got *got = calloc((size_t)comm->size, sizeof(*got));
    if (got == NULL)
        return ST_NO_MEMORY;
    const struct rendezvous *rendezvous = options->rendezvous;
    const enum status st =
        rendezvous->meet(rendezvous->self, options->meeting, &mine, comm->size, wait_ms, got);
    if (st != ST_OK)
        return st;
    if (got[0].common_size != sizeof(*out))
        return ST_PEER;
    memcpy(out, got[0].common, sizeof(*out));
    return ST_OK;
}

/* Whether the generation is over, looked at now and then. */
static bool is_stale(const struct rendezvous *rendezvous, int64_t *next_ns)
{
    if (clock_mono_ns() < *next_ns)
        return false;
    *next_ns = clock_mono_ns() + STALE_CHECK_MS * 1000000;
    return rendezvous->is_over(rendezvous->self);
}

static enum status nccl_form(struct comm *comm, const struct comm_options *options,
                             const ncclUniqueId *id, int64_t deadline_ns)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (options->device.blocks_max > 0)
        config.maxCTAs = options->device.blocks_max;
    const int64_t begin_ns = clock_mono_ns();
    int64_t next_ns = begin_ns;
    ncclResult_t result = ncclCommInitRankConfig(&comm->nccl, comm->size, *id, comm->rank, &config);
    if (result != ncclSuccess && result != ncclInProgress)
        return nccl_fail_of(comm, result);
    enum status st = nccl_look(comm, INT64_MAX);
    while (st == ST_AGAIN) {
        if (clock_mono_ns() >= deadline_ns)
            return nccl_fail(comm, ST_TIMED_OUT, "not all ranks came in time");
        if (is_stale(options->rendezvous, &next_ns))
            return nccl_fail(comm, ST_STALE, "the generation is over");
        nap(begin_ns);
        st = nccl_look(comm, INT64_MAX);
    }
    return st;
}

static void nccl_release(struct comm *comm)
{
    const struct comm_device *d = &comm->device;
    if (comm->done != NULL)
        d->table->event_free(d->backend, comm->done);
    (void)pthread_mutex_destroy(&comm->inside);
    free(comm);
}

static enum status nccl_open(const struct comm_options *options, struct comm **out)
{
    const int rank = options->rank, size = options->size;
    const struct comm_device *d = &options->device;
    if (size < 1 || size > LIMIT_RANKS || rank < 0 || rank >= size || options->timeout_ms < 1 ||
        d->table == NULL || d->stream == NULL || d->table->stream_native == NULL)
        return ST_INVALID;
    const int64_t deadline_ns = clock_mono_ns() + options->timeout_ms * 1000000;
    struct comm *comm = calloc(1, sizeof(*comm));
    if (comm == NULL)
        return ST_NO_MEMORY;
    comm->rank = rank;
    comm->size = size;
    comm->device = *d;
    comm->stream = d->table->stream_native(d->stream);
    (void)pthread_mutex_init(&comm->inside, NULL);
    /* Also makes the device this thread's current one, which NCCL takes. */
    enum status st = d->table->event_new(d->backend, false, &comm->done);
    if (st == ST_OK)
        st = apply_settings(options);
    ncclUniqueId id;
    if (st == ST_OK && size > 1)
        st = agree_on_id(comm, options, deadline_ns, &id);
    if (st == ST_OK && size > 1)
        st = nccl_form(comm, options, &id, deadline_ns);
    if (st != ST_OK) {
        nccl_release(comm);
        return st;
    }
    *out = comm;
    return ST_OK;
}

/* Finalize flushes and meets the others; whoever does not come is not waited for. */
static bool say_farewell(struct comm *comm)
{
    if (wait_inside(comm, FAREWELL_MS) != ST_OK)
        return false;
    const int64_t begin_ns = clock_mono_ns();
    ncclResult_t result = ncclCommFinalize(comm->nccl);
    while (result == ncclInProgress && clock_mono_ns() - begin_ns < FAREWELL_MS * 1000000) {
        nap(begin_ns);
        ncclResult_t state = ncclSuccess;
        result = ncclCommGetAsyncError(comm->nccl, &state);
        if (result == ncclSuccess)
            result = state;
    }
    return result == ncclSuccess;
}

static void nccl_close(struct comm *comm)
{
    if (comm == NULL)
        return;
    (void)pthread_mutex_lock(&comm->inside);
    if (comm->nccl != NULL && comm->failed == ST_OK && !atomic_load(&comm->aborted) &&
        say_farewell(comm)) {
        (void)ncclCommDestroy(comm->nccl);
        comm->nccl = NULL;
    }
    nccl_end(comm);
    (void)pthread_mutex_unlock(&comm->inside);
    nccl_release(comm);
}

/* ---- collectives ---- */

/* Sends and receptions of one group; NCCL runs them at once, in any order. The bytes of its own
 * all-to-all are the same, but it wants them in one array with the own part in it. */
static enum status nccl_exchange(struct comm *comm, const struct comm_segment *send,
                                 const struct comm_segment *recv, int64_t timeout_ms)
{
    ncclResult_t result = ncclGroupStart();
    if (result != ncclSuccess)
        return nccl_fail_of(comm, result);
    for (int k = 1; k < comm->size; k++) {
        const int to = (comm->rank + k) % comm->size;
        const int from = (comm->rank - k + comm->size) % comm->size;
        if ((result == ncclSuccess || result == ncclInProgress) && send[to].size > 0) {
            result =
                ncclSend(send[to].data, send[to].size, ncclUint8, to, comm->nccl, comm->stream);
        }
        if ((result == ncclSuccess || result == ncclInProgress) && recv[from].size > 0) {
            result = ncclRecv(recv[from].data, recv[from].size, ncclUint8, from, comm->nccl,
                              comm->stream);
        }
    }
    const ncclResult_t ended = ncclGroupEnd(); /* also after an error: the group is open */
    if (result == ncclSuccess || result == ncclInProgress)
        result = ended;
    return nccl_settle(comm, result, timeout_ms);
}

static enum status nccl_all_to_all_v(struct comm *comm, const struct comm_segment *send,
                                     const struct comm_segment *recv, int64_t timeout_ms)
{
    enum status st = nccl_enter(comm, timeout_ms);
    if (st != ST_OK)
        return st;
    if (comm->size > 1)
        st = nccl_exchange(comm, send, recv, timeout_ms);
    return nccl_leave(comm, st);
}

/* One array of equal parts: NCCL's own all-gather, in place. */
static bool is_even(const struct comm *comm, const struct comm_segment *segments)
{
    for (int r = 1; r < comm->size; r++) {
        if (segments[r].size != segments[0].size ||
            segments[r].data != (char *)segments[0].data + (size_t)r * segments[0].size)
            return false;
    }
    return segments[0].size > 0;
}

static enum status nccl_gather(struct comm *comm, const struct comm_segment *segments,
                               int64_t timeout_ms)
{
    const struct comm_segment own = segments[comm->rank];
    if (is_even(comm, segments)) {
        const ncclResult_t result = ncclAllGather(own.data, segments[0].data, own.size, ncclUint8,
                                                  comm->nccl, comm->stream);
        return nccl_settle(comm, result, timeout_ms);
    }
    struct comm_segment send[LIMIT_RANKS];
    for (int r = 0; r < comm->size; r++)
        send[r] = own;
    return nccl_exchange(comm, send, segments, timeout_ms);
}

static enum status nccl_all_gather_v(struct comm *comm, const struct comm_segment *segments,
                                     int64_t timeout_ms)
{
    enum status st = nccl_enter(comm, timeout_ms);
    if (st != ST_OK)
        return st;
    if (comm->size > 1)
        st = nccl_gather(comm, segments, timeout_ms);
    return nccl_leave(comm, st);
}

static bool nccl_is_peer(const struct comm *comm, int peer)
{
    return peer >= 0 && peer < comm->size && peer != comm->rank;
}

static enum status nccl_send_to(struct comm *comm, int peer, const void *data, size_t size,
                                int64_t timeout_ms)
{
    if (!nccl_is_peer(comm, peer))
        return ST_INVALID;
    enum status st = nccl_enter(comm, timeout_ms);
    if (st != ST_OK)
        return st;
    if (size > 0) {
        st = nccl_settle(comm, ncclSend(data, size, ncclUint8, peer, comm->nccl, comm->stream),
                         timeout_ms);
    }
    return nccl_leave(comm, st);
}

static enum status nccl_recv_from(struct comm *comm, int peer, void *data, size_t size,
                                  int64_t timeout_ms)
{
    if (!nccl_is_peer(comm, peer))
        return ST_INVALID;
    enum status st = nccl_enter(comm, timeout_ms);
    if (st != ST_OK)
        return st;
    if (size > 0) {
        st = nccl_settle(comm, ncclRecv(data, size, ncclUint8, peer, comm->nccl, comm->stream),
                         timeout_ms);
    }
    return nccl_leave(comm, st);
}

static enum status nccl_all_reduce_f32(struct comm *comm, float *data, size_t count,
                                       int64_t timeout_ms)
{
    enum status st = nccl_enter(comm, timeout_ms);
    if (st != ST_OK)
        return st;
    if (comm->size > 1 && count > 0) {
        st = nccl_settle(
            comm, ncclAllReduce(data, data, count, ncclFloat32, ncclSum, comm->nccl, comm->stream),
            timeout_ms);
    }
    return nccl_leave(comm, st);
}

static enum status nccl_wait(struct comm *comm, int64_t timeout_ms)
{
    enum status st = nccl_enter(comm, timeout_ms);
    return st == ST_OK ? nccl_leave(comm, wait_inside(comm, timeout_ms)) : st;
}

/* NCCL doesn't tell who. */
static int nccl_blamed(const struct comm *comm)
{
    (void)comm;
    return -1;
}

static const char *nccl_why(const struct comm *comm)
{
    return comm->why.text;
}

static void nccl_abort(struct comm *comm)
{
    atomic_store(&comm->aborted, true);
    if (pthread_mutex_trylock(&comm->inside) != 0)
        return;
    (void)nccl_fail(comm, ST_STALE, "aborted");
    (void)pthread_mutex_unlock(&comm->inside);
}

const struct comm_table *comm_nccl(void)
{
    static const struct comm_table table = {
        .name = "nccl",
        .on_stream = true,
        .open = nccl_open,
        .all_to_all_v = nccl_all_to_all_v,
        .all_gather_v = nccl_all_gather_v,
        .send = nccl_send_to,
        .recv = nccl_recv_from,
        .all_reduce_f32 = nccl_all_reduce_f32,
        .wait = nccl_wait,
        .blamed = nccl_blamed,
        .why = nccl_why,
        .abort = nccl_abort,
        .close = nccl_close,
    };
    return &table;
}
