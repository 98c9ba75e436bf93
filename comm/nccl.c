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
 *  5. A communicator never comes back: each has a fresh id, from its own meeting.
 *  6. An abort of NCCL may wait for the whole device, so for what hangs of other communicators
 *     there. All of one backend are therefore ended together: those that no thread is in by one
 *     group of NCCL, the others by the threads that are in them, at the same time.
 *
 * Collectives are never captured into a graph: an abort would wait for that graph's end.
 */
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

#include "comm/nccl_internal.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/limits.h"
#include "common/reason.h"

#define FAREWELL_MS    INT64_C(2000)
#define DRAIN_MS       INT64_C(5000)
#define STALE_CHECK_MS INT64_C(100)     /* between two looks at the rendezvous during open */
#define SPIN_NS        INT64_C(1000000) /* a wait spins for so long, then it naps */
#define NAP_NS         20000L

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

static void nap(int64_t since_ns)
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
        nap(begin_ns);
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
static void nccl_end(struct comm *comm, enum status st)
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
static bool ends_as_told(struct comm *comm)
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
    if (comm->failed == ST_OK && !ends_as_told(comm))
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
        (void)ends_as_told(comm);
        (void)pthread_mutex_unlock(&comm->inside);
    }
    return st;
}

/* One look at all that can end a wait. */
enum status nccl_look(struct comm *comm, int64_t deadline_ns)
{
    if (ends_as_told(comm))
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
        nap(begin_ns);
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

/* The lowest member makes the id of its group and brings it to the meeting, the others bring
 * nothing; all of it comes to all, who look for their own group's. */
static enum status agree_on_id(struct comm *comm, const struct comm_options *options,
                               const struct comm_group *group, int64_t deadline_ns,
                               ncclUniqueId *out)
{
    struct rendezvous_part mine = { 0 };
    if (group->rank == 0 && group->size > 1) {
        const ncclResult_t result = ncclGetUniqueId(out);
        if (result != ncclSuccess)
            return nccl_fail_of(comm, result);
        mine = (struct rendezvous_part){ .common = out, .common_size = sizeof(*out) };
    }
    const int64_t wait_ms = left_ms(deadline_ns);
    if (wait_ms == 0)
        return ST_TIMED_OUT;
    auto_free struct rendezvous_got *got = calloc((size_t)options->size, sizeof(*got));
    if (got == NULL)
        return ST_NO_MEMORY;
    const struct rendezvous *rendezvous = options->rendezvous;
    const enum status st =
        rendezvous->meet(rendezvous->self, options->meeting, &mine, options->size, wait_ms, got);
    if (st != ST_OK || group->size == 1)
        return st;
    const struct rendezvous_got *first = &got[group->members[0]];
    if (first->common_size != sizeof(*out))
        return ST_PEER;
    memcpy(out, first->common, sizeof(*out));
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

static void be_living(struct comm *comm)
{
    (void)pthread_mutex_lock(&living.mutex);
    comm->next = living.first;
    living.first = comm;
    (void)pthread_mutex_unlock(&living.mutex);
}

/* From now on nobody enters it who doesn't hold it yet. */
static void be_gone(const struct comm *comm)
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

static void nccl_release(struct comm *comm)
{
    const struct comm_device *d = &comm->device;
    for (size_t i = 0; i < comm->bundle_used; i++) {
        if (comm->bundles[i].through != NULL)
            d->table->event_free(d->backend, comm->bundles[i].through);
    }
    if (comm->computed != NULL)
        d->table->event_free(d->backend, comm->computed);
    if (comm->done != NULL)
        d->table->event_free(d->backend, comm->done);
    (void)pthread_mutex_destroy(&comm->inside);
    free(comm);
}

/* Finds the others. */
static enum status nccl_join(struct comm *comm, const struct comm_options *options,
                             const struct comm_group *group)
{
    const int64_t deadline_ns = clock_mono_ns() + options->timeout_ms * 1000000;
    ncclUniqueId id;
    enum status st = agree_on_id(comm, options, group, deadline_ns, &id);
    if (st != ST_OK)
        return st;
    (void)pthread_mutex_lock(&comm->inside);
    be_living(comm);
    if (group->size > 1)
        st = nccl_form(comm, options, &id, deadline_ns);
    if (st != ST_OK)
        be_gone(comm);
    (void)pthread_mutex_unlock(&comm->inside);
    return st;
}

static enum status nccl_open(const struct comm_options *options, struct comm **out)
{
    const struct comm_device *d = &options->device;
    struct comm_group group;
    if (!comm_group_of(options, &group) || options->timeout_ms < 1 || d->table == NULL ||
        d->stream == NULL || d->table->stream_native == NULL)
        return ST_INVALID;
    struct comm *comm = calloc(1, sizeof(*comm));
    if (comm == NULL)
        return ST_NO_MEMORY;
    comm->rank = group.rank;
    comm->size = group.size;
    comm->device = *d;
    comm->stream = d->table->stream_native(d->stream);
    (void)pthread_mutex_init(&comm->inside, NULL);
    /* Also makes the device this thread's current one, which NCCL takes. */
    enum status st = d->table->event_new(d->backend, false, &comm->done);
    if (st == ST_OK && d->compute != NULL)
        st = d->table->event_new(d->backend, false, &comm->computed);
    if (st == ST_OK)
        st = apply_settings(options);
    if (st == ST_OK && options->size > 1)
        st = nccl_join(comm, options, &group);
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
    if (nccl_wait_inside(comm, FAREWELL_MS) != ST_OK)
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
    be_gone(comm);
    (void)pthread_mutex_lock(&comm->inside);
    if (comm->nccl != NULL && comm->failed == ST_OK && atomic_load(&comm->ending) == ST_OK &&
        comm->posts.count == 0 && say_farewell(comm)) {
        (void)ncclCommDestroy(comm->nccl);
        comm->nccl = NULL;
    }
    nccl_end(comm, comm->failed != ST_OK ? comm->failed : ST_PEER);
    (void)pthread_mutex_unlock(&comm->inside);
    nccl_release(comm);
}

/* ---- the table ---- */

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
    int none = ST_OK;
    (void)atomic_compare_exchange_strong(&comm->ending, &none, ST_STALE);
    if (pthread_mutex_trylock(&comm->inside) != 0)
        return;
    (void)ends_as_told(comm);
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
        .post_begin = nccl_post_begin,
        .post_send = nccl_post_send,
        .post_recv = nccl_post_recv,
        .post_end = nccl_post_end,
        .wait_one = nccl_wait_one,
        .all_reduce_f32 = nccl_all_reduce_f32,
        .wait = nccl_wait,
        .blamed = nccl_blamed,
        .why = nccl_why,
        .abort = nccl_abort,
        .close = nccl_close,
    };
    return &table;
}
