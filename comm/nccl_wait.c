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
 *     the one that sets `ending` if it gets the mutex, else by the one that holds it.
 *  4. After an abort of NCCL (nccl is NULL then) nothing but close is done. It is never followed by
 *     a finalize or destroy, and the stream was waited for: no kernel uses a buffer any more.
 *  5. A communicator never comes back: each has a fresh id, from its own round.
 *  6. An abort of NCCL may wait for the whole device, so for what hangs of other communicators
 *     there. All of one backend are therefore ended together: those that no thread is in by one
 *     group of NCCL, the others by the threads that are in them, at the same time.
 *
 * Collectives are never captured into a graph: an abort would wait for that graph's end.
 */
#include "comm/nccl_wait.h"

#include <poll.h>
#include <sched.h>
#include <time.h>

#include "common/clock.h"

#define DRAIN_MS INT64_C(5000)
#define SPIN_NS  INT64_C(1000000) /* a wait spins for so long, then it naps */
#define NAP_NS   20000L

/* The process's communicators, from before they form until they are closed. */
static struct {
    pthread_mutex_t mutex; /* may be taken while inside one; inside another only if that is free */
    struct comm *first;
} living = { .mutex = PTHREAD_MUTEX_INITIALIZER };

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

void nccl_nap(int64_t since_ns)
{
    const struct timespec time = { .tv_nsec = NAP_NS };
    if (clock_mono_ns() - since_ns < SPIN_NS) {
        (void)sched_yield();
    } else {
        (void)ppoll(NULL, 0, &time, NULL);
    }
}

/* Waits until its kernels have left the stream. */
static void drain(struct comm *comm)
{
    const struct comm_device *d = &comm->device;
    const int64_t begin_ns = clock_mono_ns();
    enum status st = d->table->event_record(d->backend, comm->done, d->stream);
    if (st == ST_OK)
        st = look_at_stream(comm);
    while (st == ST_AGAIN && clock_mono_ns() - begin_ns < DRAIN_MS * 1000000) {
        nccl_nap(begin_ns);
        st = look_at_stream(comm);
    }
}

static void note_failure(struct comm *comm, enum status st, const char *why)
{
    if (comm->failed != ST_OK)
        return;
    comm->failed = st;
    reason_set(&comm->why, "%s", why);
}

static const char *why_ending(enum status st)
{
    return st == ST_STALE ? "aborted" : "another communicator of this rank failed";
}

/* Tells all others of the backend to end, and enters those that no thread is in: a list. */
static struct comm *enter_others(struct comm *comm, enum status st)
{
    struct comm *list = NULL;
    (void)pthread_mutex_lock(&living.mutex);
    for (struct comm *other = living.first; other != NULL; other = other->next) {
        int none = ST_OK;
        if (other == comm || other->device.backend != comm->device.backend)
            continue;
        (void)atomic_compare_exchange_strong(&other->ending, &none, (int)st);
        if (pthread_mutex_trylock(&other->inside) != 0)
            continue;
        other->entered = list;
        list = other;
    }
    (void)pthread_mutex_unlock(&living.mutex);
    return list;
}

static void abort_one(struct comm *comm)
{
    if (comm->nccl != NULL)
        (void)ncclCommAbort(comm->nccl);
    comm->nccl = NULL;
}

/* Ends the communicator, which failed as st, and the others of the backend. Under `inside`. */
void nccl_end(struct comm *comm, enum status st)
{
    if (comm->nccl == NULL)
        return;
    const enum status also = st == ST_STALE || st == ST_DEVICE ? st : ST_PEER;
    struct comm *others = enter_others(comm, also);
    if (others != NULL)
        (void)ncclGroupStart();
    abort_one(comm);
    for (struct comm *other = others; other != NULL; other = other->entered)
        abort_one(other);
    if (others != NULL)
        (void)ncclGroupEnd();
    drain(comm);
    while (others != NULL) {
        struct comm *other = others;
        others = other->entered;
        drain(other);
        note_failure(other, also, why_ending(also));
        (void)pthread_mutex_unlock(&other->inside);
    }
}

enum status nccl_fail(struct comm *comm, enum status st, const char *why)
{
    note_failure(comm, st, why);
    nccl_end(comm, comm->failed);
    return comm->failed;
}

/* Whether any thread has told it to end; it has, then. */
bool nccl_ends_as_told(struct comm *comm)
{
    const enum status st = (enum status)atomic_load(&comm->ending);
    if (st != ST_OK)
        (void)nccl_fail(comm, st, why_ending(st));
    return st != ST_OK;
}

enum status nccl_fail_of(struct comm *comm, ncclResult_t result)
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

enum status nccl_enter(struct comm *comm, int64_t timeout_ms)
{
    if (timeout_ms < 1)
        return ST_INVALID;
    (void)pthread_mutex_lock(&comm->inside);
    if (comm->failed == ST_OK && !nccl_ends_as_told(comm))
        return ST_OK;
    const enum status st = comm->failed;
    (void)pthread_mutex_unlock(&comm->inside);
    return st;
}

/* An abort that came while the mutex was held, after the last look at the flag, is carried out
 * here. */
enum status nccl_leave(struct comm *comm, enum status st)
{
    (void)pthread_mutex_unlock(&comm->inside);
    if (atomic_load(&comm->ending) != ST_OK && pthread_mutex_trylock(&comm->inside) == 0) {
        (void)nccl_ends_as_told(comm);
        (void)pthread_mutex_unlock(&comm->inside);
    }
    return st;
}

/* Checks once for all that can end a wait. */
enum status nccl_look(struct comm *comm, int64_t deadline_ns)
{
    if (nccl_ends_as_told(comm))
        return comm->failed;
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
enum status nccl_settle(struct comm *comm, ncclResult_t result, int64_t timeout_ms)
{
    if (result == ncclSuccess)
        return ST_OK;
    if (result != ncclInProgress)
        return nccl_fail_of(comm, result);
    const int64_t begin_ns = clock_mono_ns();
    enum status st = nccl_look(comm, begin_ns + timeout_ms * 1000000);
    while (st == ST_AGAIN) {
        nccl_nap(begin_ns);
        st = nccl_look(comm, begin_ns + timeout_ms * 1000000);
    }
    return st;
}

enum status nccl_wait_inside(struct comm *comm, int64_t timeout_ms)
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
        nccl_nap(begin_ns);
        st = look_at_stream(comm);
    }
    if (st != ST_OK)
        return nccl_fail(comm, st, "the device failed");
    /* Reports errors that didn't hold up the stream. */
    st = comm->nccl == NULL ? ST_OK : nccl_look(comm, INT64_MAX);
    return st == ST_AGAIN ? ST_OK : st;
}

/* ---- the list ---- */

void nccl_be_living(struct comm *comm)
{
    (void)pthread_mutex_lock(&living.mutex);
    comm->next = living.first;
    living.first = comm;
    (void)pthread_mutex_unlock(&living.mutex);
}

void nccl_be_gone(const struct comm *comm)
{
    (void)pthread_mutex_lock(&living.mutex);
    for (struct comm **at = &living.first; *at != NULL; at = &(*at)->next) {
        if (*at == comm) {
            *at = comm->next;
            break;
        }
    }
    (void)pthread_mutex_unlock(&living.mutex);
}
