/*
 * NCCL behind the comm table: how a communicator is opened and closed. Its invariants are in
 * nccl_wait.c, what is enqueued is in nccl_calls.c.
 */
#include "comm/nccl.h"

#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/group.h"
#include "comm/nccl_calls.h"
#include "comm/nccl_wait.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/limits.h"

#define FAREWELL_MS    INT64_C(2000)
#define STALE_CHECK_MS INT64_C(100) /* between two looks at the rendezvous during open */

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

/* Agrees on the id of this rank's group. The lowest member makes it and brings it to the round,
 * the others bring nothing. All ids come to all ranks, and each picks its own group's. */
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
        rendezvous->join(rendezvous->self, options->round_name, &mine, options->size, wait_ms, got);
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
        nccl_nap(begin_ns);
        st = nccl_look(comm, INT64_MAX);
    }
    return st;
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
    nccl_be_living(comm);
    if (group->size > 1)
        st = nccl_form(comm, options, &id, deadline_ns);
    if (st != ST_OK)
        nccl_be_gone(comm);
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
    /* This call also makes the device the thread's current one, which NCCL uses. */
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

/* Finalizes, which flushes and meets the others; a rank that does not come is not waited for. */
static bool say_farewell(struct comm *comm)
{
    if (nccl_wait_inside(comm, FAREWELL_MS) != ST_OK)
        return false;
    const int64_t begin_ns = clock_mono_ns();
    ncclResult_t result = ncclCommFinalize(comm->nccl);
    while (result == ncclInProgress && clock_mono_ns() - begin_ns < FAREWELL_MS * 1000000) {
        nccl_nap(begin_ns);
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
    nccl_be_gone(comm);
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

/* NCCL doesn't tell which rank is to blame. */
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
    (void)nccl_ends_as_told(comm);
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
