#include "tests/unit/comm/nccl_fixture.h"

#include "comm/nccl.h"
#include "common/check.h"
#include "tests/gpu/async_device.h"
#include "tests/gpu/fake_nccl.h"
#include "tests/test.h"

void nccl_open_device(struct nccl_rank *r)
{
    const struct backend_options options = { .threads = 1 };
    r->table = async_device();
    CHECK(r->table->open(&options, &r->backend) == ST_OK);
    CHECK(r->table->stream_new(r->backend, &r->stream) == ST_OK);
    CHECK(r->table->stream_new(r->backend, &r->compute) == ST_OK);
}

void nccl_close_device(struct nccl_rank *r)
{
    r->table->stream_free(r->backend, r->compute);
    r->table->stream_free(r->backend, r->stream);
    r->table->close(r->backend);
}

enum status nccl_open_some(struct nccl_rank *r, const struct comm_some *some, struct stream *stream,
                           struct comm **out)
{
    const struct comm_options options = { .rendezvous = &r->rendezvous,
                                          .round_name = some->round_name,
                                          .rank = r->rank,
                                          .size = r->size,
                                          .members = some->members,
                                          .member_count = some->member_count,
                                          .connected = some->connected,
                                          .timeout_ms = r->timeout_ms,
                                          .device = { .table = r->table,
                                                      .backend = r->backend,
                                                      .stream = stream,
                                                      .compute = r->compute } };
    return comm_nccl()->open(&options, out);
}

void *nccl_run_rank(void *arg)
{
    static const char *const settings[] = { "NCCL_SOCKET_IFNAME=lo" };
    struct nccl_rank *r = arg;
    nccl_open_device(r);
    const struct comm_options options = { .rendezvous = &r->rendezvous,
                                          .round_name = "workers",
                                          .rank = r->rank,
                                          .size = r->size,
                                          .timeout_ms = r->timeout_ms,
                                          .device = { .table = r->table,
                                                      .backend = r->backend,
                                                      .stream = r->stream,
                                                      .settings = settings,
                                                      .setting_count = 1,
                                                      .blocks_max = 4 } };
    r->opened = comm_nccl()->open(&options, &r->comm);
    if (r->opened == ST_OK && r->body != NULL)
        r->st = r->body(r);
    comm_nccl()->close(r->comm);
    nccl_close_device(r);
    return NULL;
}

void nccl_run_some(struct nccl_rank *ranks, int present, int size, int64_t timeout_ms,
                   enum status (*body)(struct nccl_rank *rank), void *arg)
{
    struct shared_rendezvous *shared = shared_rendezvous_new();
    for (int r = 0; r < present; r++) {
        ranks[r] = (struct nccl_rank){ .rendezvous = shared_rendezvous_of(shared, r),
                                       .rank = r,
                                       .size = size,
                                       .timeout_ms = timeout_ms,
                                       .body = body,
                                       .arg = arg };
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, nccl_run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < present; r++)
        assert_int_equal(pthread_join(ranks[r].thread, NULL), 0);
    shared_rendezvous_free(shared);
}

void nccl_run_well(int size, enum status (*body)(struct nccl_rank *rank), void *arg)
{
    struct nccl_rank ranks[NCCL_RANKS_MAX];
    const struct fake_nccl_counts before = fake_nccl_counts();
    nccl_run_some(ranks, size, size, NCCL_LONG_MS, body, arg);
    for (int r = 0; r < size; r++) {
        assert_int_equal(ranks[r].opened, ST_OK);
        assert_int_equal(ranks[r].st, ST_OK);
    }
    const struct fake_nccl_counts after = fake_nccl_counts();
    const int formed = size > 1 ? size : 0;
    assert_int_equal(after.formed - before.formed, formed);
    assert_int_equal(after.destroyed - before.destroyed, formed);
    assert_int_equal(after.aborted, before.aborted);
    assert_int_equal(after.live, 0);
}
