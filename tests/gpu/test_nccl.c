/*
 * NCCL on a device: ranks are processes that share one GPU, each a host of its own for NCCL
 * (device_shared). The exact reduction's bits over numbers of ranks; a peer that is killed or
 * stopped, while a captured graph is alive; a new generation in the same processes.
 *
 * Needs a GPU and the module; skipped (77), with the reason, where there is none.
 */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/reducer.h"
#include "comm/reducer_order.h"
#include "common/check.h"
#include "common/limits.h"
#include "kernels/module.h"
#include "tests/test.h"
#include "tests/unit/comm/comm_fixture.h"

#define RANKS_MAX 4
#define LONG_MS   60000
#define SHORT_MS  20000
#define LANES     6
#define COUNT     ((size_t)1 << 20)
#define BUCKETS   3
#define SKIPPED   77

/* What the processes share. */
struct scene {
    struct shared_rendezvous *shared;
    atomic_int formed, waiting;
    _Atomic uint64_t hash[RANKS_MAX];
};

struct rank {
    struct scene *scene;
    int rank, size;
    const uint32_t *shares;
    const struct module *module;
    const struct backend_table *table;
    struct backend *backend;
    struct stream *compute, *stream;
    struct comm *comm;
};

static struct scene *scene_new(void)
{
    struct scene *scene =
        mmap(NULL, sizeof(*scene), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(scene != MAP_FAILED);
    memset(scene, 0, sizeof(*scene));
    scene->shared = shared_rendezvous_new();
    return scene;
}

static void scene_free(struct scene *scene)
{
    shared_rendezvous_free(scene->shared);
    (void)munmap(scene, sizeof(*scene));
}

/* ---- in a rank's process ---- */

static bool open_device(struct rank *r)
{
    struct reason reason;
    if (module_load("cuda", 0, &r->module, &reason) != ST_OK) {
        (void)printf("skipped: %s\n", reason.text);
        return false;
    }
    if (r->module->comm == NULL) {
        (void)printf("skipped: the module was built without NCCL\n");
        return false;
    }
    const struct backend_options options = { .threads = 1 };
    r->table = r->module->backend;
    return r->table->open(&options, &r->backend) == ST_OK &&
           r->table->stream_new(r->backend, &r->compute) == ST_OK &&
           r->table->stream_new(r->backend, &r->stream) == ST_OK;
}

static void close_device(struct rank *r)
{
    r->table->stream_free(r->backend, r->stream);
    r->table->stream_free(r->backend, r->compute);
    r->table->close(r->backend);
}

static enum status form(struct rank *r, uint64_t generation)
{
    char round_name[RENDEZVOUS_NAME];
    (void)snprintf(round_name, sizeof(round_name), "%llu", (unsigned long long)generation);
    const struct rendezvous rendezvous = shared_rendezvous_of(r->scene->shared, r->rank);
    const struct comm_options options = { .rendezvous = &rendezvous,
                                          .round_name = round_name,
                                          .rank = r->rank,
                                          .size = r->size,
                                          .timeout_ms = LONG_MS,
                                          .device = { .table = r->table,
                                                      .backend = r->backend,
                                                      .stream = r->stream,
                                                      .blocks_max = 4,
                                                      .device_shared = true } };
    return r->module->comm->open(&options, &r->comm);
}

static float value_of(uint32_t lane, size_t i)
{
    const uint32_t z = ((uint32_t)i * 0x9E3779B9u) ^ (lane * 0x85EBCA6Bu + 0x165667B1u);
    return (float)(int32_t)(z * 0x7feb352du) / 2147483648.0f * ((z & 7) != 0 ? 1.0f : 1024.0f);
}

static uint64_t hash_of(const float *values, size_t count)
{
    const uint8_t *bytes = (const uint8_t *)values;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < count * sizeof(*values); i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static enum status fill_lane(struct rank *r, float *lane, uint32_t number, float *host)
{
    for (size_t i = 0; i < COUNT; i++)
        host[i] = value_of(number, i);
    enum status st =
        r->table->vector.copy(r->backend, lane, host, COUNT * sizeof(*host), r->compute);
    return st == ST_OK ? r->table->stream_sync(r->backend, r->compute) : st;
}

static enum status one_step(struct rank *r, struct reducer *reducer, float *host)
{
    uint32_t order[LIMIT_LANES], first = 0;
    reducer_spread(r->shares, (uint32_t)r->size, order);
    for (int p = 0; p < r->rank; p++)
        first += r->shares[p];
    enum status st = ST_OK;
    reducer_begin(reducer);
    for (uint32_t i = 0; st == ST_OK && i < r->shares[r->rank]; i++) {
        st = fill_lane(r, reducer_lane(reducer, 0), order[first + i], host);
        if (st == ST_OK && i + 1 < r->shares[r->rank])
            st = reducer_lane_done(reducer, 0);
    }
    for (size_t b = BUCKETS; st == ST_OK && b-- > 0;)
        reducer_bucket_done(reducer, b);
    int64_t exposed_ns = 0;
    if (st == ST_OK)
        st = reducer_wait(reducer, &exposed_ns);
    if (st == ST_OK) {
        st = r->table->vector.copy(r->backend, host, reducer_sum(reducer), COUNT * sizeof(*host),
                                   r->compute);
    }
    return st == ST_OK ? r->table->stream_sync(r->backend, r->compute) : st;
}

static int reduce_body(struct rank *r)
{
    static const size_t buckets[BUCKETS] = { 0, 4 * 65536, 9 * 65536 };
    CHECK(form(r, 1) == ST_OK);
    const struct reducer_options options = { .table = r->module->comm,
                                             .comm = r->comm,
                                             .rank = r->rank,
                                             .size = r->size,
                                             .shares = r->shares,
                                             .count = COUNT,
                                             .bucket_begin = buckets,
                                             .bucket_count = BUCKETS,
                                             .timeout_ms = LONG_MS,
                                             .device = r->table,
                                             .backend = r->backend,
                                             .compute = r->compute,
                                             .communication = r->stream };
    struct reducer *reducer = NULL;
    float *host = malloc(COUNT * sizeof(*host));
    CHECK(host != NULL);
    CHECK(reducer_open(&options, &reducer) == ST_OK);
    enum status st = ST_OK;
    for (int step = 0; st == ST_OK && step < 3; step++)
        st = one_step(r, reducer, host);
    atomic_store(&r->scene->hash[r->rank], hash_of(host, COUNT));
    reducer_close(reducer);
    r->module->comm->close(r->comm);
    free(host);
    return st == ST_OK ? 0 : 1;
}

/* A captured graph that stays alive: an abort must not wait for it, nor break it. */
static int capture_graph(struct rank *r, float *data)
{
    int graph = -1;
    CHECK(r->table->capture_begin(r->backend, r->compute) == ST_OK);
    CHECK(r->table->vector.fill(r->backend, data, 7, 1024, r->compute) == ST_OK);
    CHECK(r->table->capture_end(r->backend, r->compute, &graph) == ST_OK);
    return graph;
}

/* The nth time that all come here. */
static void join(struct rank *r, int nth)
{
    (void)atomic_fetch_add(&r->scene->formed, 1);
    while (atomic_load(&r->scene->formed) < nth * r->size)
        (void)sched_yield();
}

static enum status reduce_and_wait(struct rank *r, float *memory, size_t count)
{
    const enum status st = r->module->comm->all_reduce_f32(r->comm, memory, count, LONG_MS);
    return st == ST_OK ? r->module->comm->wait(r->comm, LONG_MS) : st;
}

static void *abort_soon(void *arg)
{
    struct rank *r = arg;
    while (atomic_load(&r->scene->waiting) < r->size - 1)
        (void)sched_yield();
    r->module->comm->abort(r->comm);
    return NULL;
}

/* The last rank leaves by the signal; the others' exchange must end, and they form anew. NCCL
 * connects with the first collective, so there is one before. */
static int lose_one(struct rank *r, int signal, bool aborts)
{
    void *memory = NULL;
    CHECK(r->table->alloc(r->backend, COUNT * sizeof(float), &memory) == ST_OK);
    const int graph = capture_graph(r, memory);
    CHECK(form(r, 1) == ST_OK);
    join(r, 1);
    CHECK(reduce_and_wait(r, memory, COUNT) == ST_OK);
    join(r, 2);
    if (r->rank == r->size - 1)
        (void)raise(signal);
    pthread_t other;
    if (aborts)
        CHECK(pthread_create(&other, NULL, abort_soon, r) == 0);
    (void)atomic_fetch_add(&r->scene->waiting, 1);
    enum status st = r->module->comm->all_reduce_f32(r->comm, memory, COUNT, SHORT_MS);
    if (st == ST_OK)
        st = r->module->comm->wait(r->comm, SHORT_MS);
    if (aborts)
        CHECK(pthread_join(other, NULL) == 0);
    (void)printf("rank %d: %s (%s)\n", r->rank, status_string(st), r->module->comm->why(r->comm));
    const bool right = st == (aborts ? ST_STALE : ST_PEER);
    r->module->comm->close(r->comm);
    CHECK(r->table->replay(r->backend, graph, r->compute) == ST_OK);
    CHECK(r->table->stream_sync(r->backend, r->compute) == ST_OK);
    r->size--;
    CHECK(form(r, 2) == ST_OK);
    st = reduce_and_wait(r, memory, 1024);
    float sum = 0;
    CHECK(r->table->vector.copy(r->backend, &sum, memory, sizeof(sum), r->compute) == ST_OK);
    CHECK(r->table->stream_sync(r->backend, r->compute) == ST_OK);
    r->module->comm->close(r->comm);
    r->table->free(r->backend, memory);
    return right && st == ST_OK && sum == 7.0f * (float)r->size ? 0 : 1;
}

static int killed_body(struct rank *r)
{
    return lose_one(r, SIGKILL, false);
}

static int stopped_body(struct rank *r)
{
    return lose_one(r, SIGSTOP, true);
}

static int nothing_body(struct rank *r)
{
    (void)r;
    return 0;
}

/* ---- in the test's process, which never touches the device ---- */

static pid_t start(struct scene *scene, int rank, int size, const uint32_t *shares,
                   int (*body)(struct rank *r))
{
    (void)fflush(stdout);
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid > 0)
        return pid;
    struct rank r = { .scene = scene, .rank = rank, .size = size, .shares = shares };
    if (!open_device(&r)) {
        (void)fflush(stdout);
        _exit(SKIPPED);
    }
    const int code = body(&r);
    close_device(&r);
    (void)fflush(stdout);
    _exit(code);
}

static int end(pid_t pid)
{
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static uint64_t reduce(int size, const uint32_t *shares)
{
    struct scene *scene = scene_new();
    pid_t pid[RANKS_MAX];
    for (int r = 0; r < size; r++)
        pid[r] = start(scene, r, size, shares, reduce_body);
    for (int r = 0; r < size; r++)
        assert_int_equal(end(pid[r]), 0);
    for (int r = 1; r < size; r++)
        assert_true(atomic_load(&scene->hash[r]) == atomic_load(&scene->hash[0]));
    const uint64_t hash = atomic_load(&scene->hash[0]);
    scene_free(scene);
    return hash;
}

static void the_reduction_gives_the_same_bits_for_one_to_four_ranks(void **state)
{
    (void)state;
    static const uint32_t shares[][RANKS_MAX] = { { 6 },       { 3, 3 },    { 4, 2 },
                                                  { 2, 2, 2 }, { 1, 4, 1 }, { 2, 1, 1, 2 } };
    static const int sizes[] = { 1, 2, 2, 3, 3, 4 };
    const uint64_t one = reduce(1, shares[0]);
    for (size_t i = 1; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        assert_true(reduce(sizes[i], shares[i]) == one);
}

static void lose_last(int (*body)(struct rank *r), int code)
{
    struct scene *scene = scene_new();
    pid_t pid[3];
    for (int r = 0; r < 3; r++)
        pid[r] = start(scene, r, 3, NULL, body);
    assert_int_equal(end(pid[0]), 0);
    assert_int_equal(end(pid[1]), 0);
    (void)kill(pid[2], SIGKILL); /* if it is only stopped */
    assert_int_equal(end(pid[2]), code);
    scene_free(scene);
}

static void a_killed_peer_ends_the_wait_and_the_rest_form_anew(void **state)
{
    (void)state;
    lose_last(killed_body, -SIGKILL);
}

static void abort_frees_whoever_waits_for_a_stopped_peer(void **state)
{
    (void)state;
    lose_last(stopped_body, -SIGKILL);
}

int main(void)
{
    struct scene *scene = scene_new();
    const int code = end(start(scene, 0, 1, NULL, nothing_body));
    scene_free(scene);
    if (code != 0)
        return code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reduction_gives_the_same_bits_for_one_to_four_ranks),
        cmocka_unit_test(a_killed_peer_ends_the_wait_and_the_rest_form_anew),
        cmocka_unit_test(abort_frees_whoever_waits_for_a_stopped_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
