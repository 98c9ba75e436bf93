/* The calls of an open communicator: what is enqueued on its stream, and the order beside it. */
#include "comm/nccl_calls.h"

#include <nccl.h>

#include "comm/nccl_wait.h"
#include "common/check.h"
#include "common/limits.h"
#include "common/unconst.h"

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

enum status nccl_all_to_all_v(struct comm *comm, const struct comm_segment *send,
                              const struct comm_segment *recv, int64_t timeout_ms)
{
    enum status st = nccl_enter(comm, timeout_ms);
    if (st != ST_OK)
        return st;
    if (comm->size > 1)
        st = nccl_exchange(comm, send, recv, timeout_ms);
    return nccl_leave(comm, st);
}

/* True if the segments are equal parts of one array, for NCCL's own all-gather in place. */
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

enum status nccl_all_gather_v(struct comm *comm, const struct comm_segment *segments,
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

enum status nccl_send_to(struct comm *comm, int peer, const void *data, size_t size,
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

enum status nccl_recv_from(struct comm *comm, int peer, void *data, size_t size, int64_t timeout_ms)
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

enum status nccl_all_reduce_f32(struct comm *comm, float *data, size_t count, int64_t timeout_ms)
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

enum status nccl_wait(struct comm *comm, int64_t timeout_ms)
{
    enum status st = nccl_enter(comm, timeout_ms);
    return st == ST_OK ? nccl_leave(comm, nccl_wait_inside(comm, timeout_ms)) : st;
}

/* ---- posts ---- */

static struct nccl_bundle *take_bundle(struct comm *comm)
{
    struct nccl_bundle *bundle = comm->bundle_free;
    if (bundle == NULL) {
        CHECK(comm->bundle_used < COMM_POSTS_MAX + 1); /* each has a post, or is open */
        return &comm->bundles[comm->bundle_used++];
    }
    comm->bundle_free = bundle->next;
    bundle->ordered = false;
    return bundle;
}

static void drop_bundle(struct comm *comm, struct nccl_bundle *bundle)
{
    bundle->next = comm->bundle_free;
    comm->bundle_free = bundle;
}

enum status nccl_post_begin(struct comm *comm)
{
    const struct comm_device *d = &comm->device;
    enum status st = posts_begin(&comm->posts);
    if (st != ST_OK)
        return st;
    comm->open_bundle = take_bundle(comm);
    comm->message_count = 0;
    if (d->compute != NULL && comm->open_bundle->through == NULL)
        st = d->table->event_new(d->backend, false, &comm->open_bundle->through);
    if (st != ST_OK) {
        drop_bundle(comm, comm->open_bundle);
        (void)posts_end(&comm->posts);
    }
    return st;
}

static enum status nccl_post(struct comm *comm, const struct nccl_message *message,
                             struct comm_post *out)
{
    struct posts_place *place = NULL;
    if (!nccl_is_peer(comm, message->peer) || message->size == 0)
        return ST_INVALID;
    const enum status st = posts_take(&comm->posts, &place, out);
    if (st != ST_OK)
        return st;
    place->of = comm->open_bundle;
    comm->open_bundle->left++;
    comm->messages[comm->message_count++] = *message;
    return ST_OK;
}

enum status nccl_post_send(struct comm *comm, int peer, uint32_t channel, const void *data,
                           size_t size, struct comm_post *out)
{
    (void)channel; /* one order for all */

    const struct nccl_message message = { unconst(data), size, peer, true }; /* only read */
    return nccl_post(comm, &message, out);
}

enum status nccl_post_recv(struct comm *comm, int peer, uint32_t channel, void *data, size_t size,
                           struct comm_post *out)
{
    (void)channel;
    const struct nccl_message message = { data, size, peer, false };
    return nccl_post(comm, &message, out);
}

/* Makes later work on `then` wait for the work that is on `first` now. */
static enum status put_in_order(struct comm *comm, struct event *event, struct stream *first,
                                struct stream *then)
{
    const struct comm_device *d = &comm->device;
    enum status st = d->table->event_record(d->backend, event, first);
    if (st == ST_OK && then != NULL)
        st = d->table->event_wait(d->backend, event, then);
    return st == ST_OK ? ST_OK : nccl_fail(comm, st, "the device failed");
}

static enum status enqueue_bundle(struct comm *comm, int64_t timeout_ms)
{
    ncclResult_t result = ncclGroupStart();
    if (result != ncclSuccess)
        return nccl_fail_of(comm, result);
    for (size_t i = 0; i < comm->message_count; i++) {
        const struct nccl_message *p = &comm->messages[i];
        if (result != ncclSuccess && result != ncclInProgress)
            break;
        result = p->is_send
                     ? ncclSend(p->data, p->size, ncclUint8, p->peer, comm->nccl, comm->stream)
                     : ncclRecv(p->data, p->size, ncclUint8, p->peer, comm->nccl, comm->stream);
    }
    const ncclResult_t ended = ncclGroupEnd(); /* also after an error: the group is open */
    if (result == ncclSuccess || result == ncclInProgress)
        result = ended;
    return nccl_settle(comm, result, timeout_ms);
}

enum status nccl_post_end(struct comm *comm, int64_t timeout_ms)
{
    const struct comm_device *d = &comm->device;
    enum status st = nccl_enter(comm, timeout_ms);
    if (st != ST_OK)
        return st;
    st = posts_end(&comm->posts);
    if (st == ST_OK && comm->message_count == 0) {
        drop_bundle(comm, comm->open_bundle);
        return nccl_leave(comm, ST_OK);
    }
    if (st == ST_OK && d->compute != NULL)
        st = put_in_order(comm, comm->computed, d->compute, d->stream);
    if (st == ST_OK)
        st = enqueue_bundle(comm, timeout_ms);
    if (st == ST_OK && d->compute != NULL)
        st = put_in_order(comm, comm->open_bundle->through, d->stream, NULL);
    return nccl_leave(comm, st);
}

static enum status wait_for_place(struct comm *comm, struct posts_place *place)
{
    const struct comm_device *d = &comm->device;
    struct nccl_bundle *bundle = place->of;
    enum status st = nccl_look(comm, INT64_MAX);
    if (st != ST_OK && st != ST_AGAIN)
        return st;
    if (d->compute != NULL && !bundle->ordered) {
        st = d->table->event_wait(d->backend, bundle->through, d->compute);
        if (st != ST_OK)
            return nccl_fail(comm, st, "the device failed");
    }
    bundle->ordered = true;
    posts_drop(&comm->posts, place);
    if (--bundle->left == 0)
        drop_bundle(comm, bundle);
    return ST_OK;
}

enum status nccl_wait_one(struct comm *comm, const struct comm_post *post, int64_t timeout_ms)
{
    enum status st = nccl_enter(comm, timeout_ms);
    if (st != ST_OK)
        return st;
    struct posts_place *place = posts_find(&comm->posts, post);
    st = place == NULL ? ST_INVALID : wait_for_place(comm, place);
    return nccl_leave(comm, st);
}
