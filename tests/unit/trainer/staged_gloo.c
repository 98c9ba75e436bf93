#include "tests/unit/trainer/staged_gloo.h"

#include <stdlib.h>

#include "kernels/backend.h"
#include "tests/test.h"

struct message { /* a post that wasn't waited for yet; host NULL: none */
    struct comm_post post;
    void *host, *device;
    size_t size;
    bool comes;
};

struct comm {
    struct comm *gloo;
    struct comm_device device;
    int rank, size;
    struct message messages[COMM_POSTS_MAX];
};

static struct stream *messages_stream(const struct comm *comm)
{
    return comm->device.compute != NULL ? comm->device.compute : comm->device.stream;
}

static enum status copy(const struct comm *comm, void *to, const void *from, size_t size,
                        struct stream *stream)
{
    const struct comm_device *d = &comm->device;
    enum status st = d->table->vector.copy(d->backend, to, from, size, stream);
    return st == ST_OK ? d->table->stream_sync(d->backend, stream) : st;
}

static enum status open_comm(const struct comm_options *options, struct comm **out)
{
    struct comm *comm = calloc(1, sizeof(*comm));
    assert_non_null(comm);
    comm->device = options->device;
    comm->rank = options->rank;
    comm->size = options->members == NULL ? options->size : options->member_count;
    for (int i = 0; options->members != NULL && i < options->member_count; i++) {
        if (options->members[i] == options->rank)
            comm->rank = i;
    }
    enum status st = comm_gloo()->open(options, &comm->gloo);
    if (st != ST_OK) {
        free(comm);
        return st;
    }
    *out = comm;
    return ST_OK;
}

static void abort_comm(struct comm *comm)
{
    comm_gloo()->abort(comm->gloo);
}

static void close_comm(struct comm *comm)
{
    if (comm == NULL)
        return;
    comm_gloo()->close(comm->gloo);
    for (int i = 0; i < COMM_POSTS_MAX; i++)
        free(comm->messages[i].host);
    free(comm);
}

/* ---- collectives ---- */

static struct comm_segment *host_segments(const struct comm *comm, const struct comm_segment *of)
{
    struct comm_segment *host = calloc((size_t)comm->size, sizeof(*host));
    assert_non_null(host);
    for (int r = 0; r < comm->size; r++) {
        host[r].size = of[r].size;
        host[r].data = of[r].size > 0 ? malloc(of[r].size) : NULL;
        assert_true(of[r].size == 0 || host[r].data != NULL);
    }
    return host;
}

static void free_segments(const struct comm *comm, struct comm_segment *host)
{
    for (int r = 0; r < comm->size; r++)
        free(host[r].data);
    free(host);
}

/* Copies rank r's segment; out: to the host. */
static enum status move(const struct comm *comm, const struct comm_segment *device,
                        const struct comm_segment *host, int r, bool out)
{
    if (device[r].size == 0)
        return ST_OK;
    return out ? copy(comm, host[r].data, device[r].data, device[r].size, comm->device.stream)
               : copy(comm, device[r].data, host[r].data, device[r].size, comm->device.stream);
}

static enum status all_to_all_v(struct comm *comm, const struct comm_segment *send,
                                const struct comm_segment *recv, int64_t timeout_ms)
{
    struct comm_segment *out = host_segments(comm, send), *in = host_segments(comm, recv);
    enum status st = ST_OK;
    for (int r = 0; st == ST_OK && r < comm->size; r++)
        st = r == comm->rank ? ST_OK : move(comm, send, out, r, true);
    if (st == ST_OK)
        st = comm_gloo()->all_to_all_v(comm->gloo, out, in, timeout_ms);
    for (int r = 0; st == ST_OK && r < comm->size; r++)
        st = r == comm->rank ? ST_OK : move(comm, recv, in, r, false);
    free_segments(comm, out);
    free_segments(comm, in);
    return st;
}

static enum status all_gather_v(struct comm *comm, const struct comm_segment *segments,
                                int64_t timeout_ms)
{
    struct comm_segment *host = host_segments(comm, segments);
    enum status st = move(comm, segments, host, comm->rank, true);
    if (st == ST_OK)
        st = comm_gloo()->all_gather_v(comm->gloo, host, timeout_ms);
    for (int r = 0; st == ST_OK && r < comm->size; r++)
        st = r == comm->rank ? ST_OK : move(comm, segments, host, r, false);
    free_segments(comm, host);
    return st;
}

static enum status wait_comm(struct comm *comm, int64_t timeout_ms)
{
    const struct comm_device *d = &comm->device;
    (void)timeout_ms;
    return d->table->stream_sync(d->backend, d->stream);
}

/* ---- posts ---- */

static enum status post_begin(struct comm *comm)
{
    return comm_gloo()->post_begin(comm->gloo);
}

static struct message *new_message(struct comm *comm, void *device, size_t size, bool comes)
{
    struct message *m = comm->messages;
    while (m < comm->messages + COMM_POSTS_MAX && m->host != NULL)
        m++;
    assert_true(m < comm->messages + COMM_POSTS_MAX);
    *m = (struct message){ .host = malloc(size), .device = device, .size = size, .comes = comes };
    assert_non_null(m->host);
    return m;
}

/* Posts a send. As on nccl, there is one order for all channels. */
static enum status post_send(struct comm *comm, int peer, uint32_t channel, const void *data,
                             size_t size, struct comm_post *out)
{
    (void)channel;
    struct message *m = new_message(comm, NULL, size, false);
    enum status st = copy(comm, m->host, data, size, messages_stream(comm));
    if (st == ST_OK)
        st = comm_gloo()->post_send(comm->gloo, peer, 0, m->host, size, &m->post);
    *out = m->post;
    return st;
}

static enum status post_recv(struct comm *comm, int peer, uint32_t channel, void *data, size_t size,
                             struct comm_post *out)
{
    (void)channel;
    struct message *m = new_message(comm, data, size, true);
    enum status st = comm_gloo()->post_recv(comm->gloo, peer, 0, m->host, size, &m->post);
    *out = m->post;
    return st;
}

static enum status post_end(struct comm *comm, int64_t timeout_ms)
{
    return comm_gloo()->post_end(comm->gloo, timeout_ms);
}

static enum status wait_one(struct comm *comm, const struct comm_post *post, int64_t timeout_ms)
{
    struct message *m = comm->messages;
    while (m < comm->messages + COMM_POSTS_MAX &&
           (m->host == NULL || m->post.place != post->place || m->post.number != post->number))
        m++;
    assert_true(m < comm->messages + COMM_POSTS_MAX);
    enum status st = comm_gloo()->wait_one(comm->gloo, post, timeout_ms);
    if (st == ST_OK && m->comes)
        st = copy(comm, m->device, m->host, m->size, messages_stream(comm));
    if (st != ST_OK)
        return st; /* the buffer is gloo's until close */
    free(m->host);
    m->host = NULL;
    return ST_OK;
}

static const struct comm_table table = {
    .name = "staged gloo",
    .on_stream = true,
    .post_begin = post_begin,
    .post_send = post_send,
    .post_recv = post_recv,
    .post_end = post_end,
    .wait_one = wait_one,
    .open = open_comm,
    .all_to_all_v = all_to_all_v,
    .all_gather_v = all_gather_v,
    .wait = wait_comm,
    .abort = abort_comm,
    .close = close_comm,
};

const struct comm_table *staged_gloo(void)
{
    return &table;
}
