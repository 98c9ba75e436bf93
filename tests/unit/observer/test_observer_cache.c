/* Jobs and rows that many follow: a stand-in for the coordinator counts what it is asked. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "observer/curves/cache.h"
#include "proto/descriptors.h"
#include "rpc/server.h"
#include "tests/test.h"

enum { PAGE = 1000, FOLLOWERS = 10 };

/* ---- the stand-in ---- */

static struct {
    atomic_uint jobs;       /* calls of GetJob */
    atomic_ullong rows;     /* that the job has; the one of step 1 first */
    atomic_ullong last;     /* more of them, once it was said that it ended */
    atomic_bool over, gone; /* it has ended; there is none of that name */
} said;

static void say_job(void *call)
{
    Cairn__V1__Job job = CAIRN__V1__JOB__INIT;
    static char id[] = "j-1";
    (void)atomic_fetch_add(&said.jobs, 1);
    if (atomic_load(&said.gone)) {
        rpc_call_finish(call, RPC_NOT_FOUND, "no such job");
        return;
    }
    job.id = id;
    job.state = CAIRN__V1__JOB_STATE__RUNNING;
    if (atomic_load(&said.over)) {
        job.state = CAIRN__V1__JOB_STATE__SUCCEEDED;
        (void)atomic_fetch_add(&said.rows, atomic_exchange(&said.last, 0));
    }
    (void)rpc_call_send(call, &job.base);
}

static void say_rows(uint64_t from, void *call)
{
    static Cairn__V1__MetricRow rows[PAGE];
    static Cairn__V1__MetricRow *list[PAGE];
    Cairn__V1__ReadMetricsReply reply = CAIRN__V1__READ_METRICS_REPLY__INIT;
    const uint64_t all = atomic_load(&said.rows);
    from = from > 0 ? from : 1;
    for (uint64_t step = from; step <= all && reply.n_rows < PAGE; step++) {
        list[reply.n_rows] = &rows[reply.n_rows];
        rows[reply.n_rows] = (Cairn__V1__MetricRow)CAIRN__V1__METRIC_ROW__INIT;
        rows[reply.n_rows].step = step;
        rows[reply.n_rows++].generation = 1;
    }
    reply.rows = list;
    reply.generation = 1;
    reply.next_step = from + reply.n_rows;
    reply.more = reply.next_step <= all;
    (void)rpc_call_send(call, &reply.base);
}

static void answer(ProtobufCService *service, unsigned index, const ProtobufCMessage *in,
                   ProtobufCClosure reply, void *call)
{
    const char *name = service->descriptor->methods[index].name;
    (void)reply;
    if (strcmp(name, "GetJob") == 0) {
        say_job(call);
    } else {
        assert_string_equal(name, "ReadMetrics");
        say_rows(((const Cairn__V1__ReadMetricsRequest *)in)->from_step, call);
    }
}

struct world {
    char home[32];
    struct rpc_descdb *db;
    struct rpc_server *server;
    struct coordinator *coordinator;
    struct cache *cache;
};

static int set_up(void **state)
{
    static ProtobufCService control = { &cairn__v1__control__descriptor, answer, NULL };
    static struct world world;
    char address[LIMIT_PATH];
    struct paths paths;
    size_t size = 0;
    const uint8_t *descriptors = proto_descriptors(&size);
    world = (struct world){ .home = "/tmp/cairn-cache-XXXXXX" };
    assert_non_null(mkdtemp(world.home));
    assert_int_equal(setenv("CAIRN_HOME", world.home, 1), 0);
    assert_int_equal(paths_open(&paths), ST_OK);
    atomic_store(&said.jobs, 0);
    atomic_store(&said.rows, 0);
    atomic_store(&said.last, 0);
    atomic_store(&said.over, false);
    atomic_store(&said.gone, false);
    rpc_init();
    world.db = rpc_descdb_new();
    assert_int_equal(rpc_descdb_add(world.db, descriptors, size), ST_OK);
    const struct rpc_server_options options = { .descdb = world.db };
    world.server = rpc_server_new(&options);
    assert_int_equal(rpc_server_add_service(world.server, &control, NULL), ST_OK);
    assert_int_equal(paths_socket(&paths, address, sizeof(address)), ST_OK);
    assert_int_equal(rpc_server_listen_unix(world.server, address + strlen("unix:")), ST_OK);
    rpc_server_start(world.server);
    assert_int_equal(coordinator_open(&paths, &world.coordinator), ST_OK);
    assert_int_equal(cache_new(world.coordinator, &world.cache), ST_OK);
    *state = &world;
    return 0;
}

static int tear_down(void **state)
{
    struct world *world = *state;
    char command[64];
    cache_free(world->cache);
    coordinator_close(world->coordinator);
    rpc_server_stop_begin(world->server, 1000);
    rpc_server_free(world->server);
    rpc_descdb_free(world->db);
    rpc_shutdown();
    (void)snprintf(command, sizeof(command), "rm -r %s", world->home);
    return system(command); /* NOLINT(cert-env33-c): a folder of its own */
}

/* ---- who follows ---- */

static void *follow(void *arg)
{
    struct world *world = arg;
    auto_buf struct buf text;
    struct rpc_result result;
    bool over = true;
    buf_init(&text, 65536);
    const enum status st = cache_job(world->cache, "j-1", &text, &over, &result);
    return st == ST_OK && !over && text.size > 0 ? arg : NULL;
}

static void many_who_follow_a_job_ask_for_it_once(void **state)
{
    pthread_t threads[FOLLOWERS];
    for (size_t i = 0; i < FOLLOWERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, follow, *state), 0);
    for (size_t i = 0; i < FOLLOWERS; i++) {
        void *good = NULL;
        assert_int_equal(pthread_join(threads[i], &good), 0);
        assert_ptr_equal(good, *state);
    }
    assert_int_equal(atomic_load(&said.jobs), 1);
    (void)usleep((CACHE_FRESH_MS + 100) * 1000);
    assert_ptr_equal(follow(*state), *state);
    assert_int_equal(atomic_load(&said.jobs), 2);
}

static void a_job_that_is_not_there_is_told_to_all(void **state)
{
    struct world *world = *state;
    auto_buf struct buf text;
    buf_init(&text, 65536);
    atomic_store(&said.gone, true);
    for (int i = 0; i < 3; i++) {
        struct rpc_result result = { .code = RPC_OK };
        bool over = false;
        assert_int_not_equal(cache_job(world->cache, "j-1", &text, &over, &result), ST_OK);
        assert_int_equal(result.code, RPC_NOT_FOUND);
        assert_string_equal(result.detail, "no such job");
    }
    assert_int_equal(atomic_load(&said.jobs), 1);
    assert_int_equal(text.size, 0);
}

/* How many rows he got. */
static uint64_t next_rows(struct world *world, struct cache_place *place)
{
    auto_buf struct buf text;
    struct rpc_result result;
    const uint64_t before = place->next_step;
    buf_init(&text, (size_t)16 << 20);
    assert_int_equal(cache_new_rows(world->cache, "j-1", place, &text, &result), ST_OK);
    assert_int_equal(text.size > 0, place->next_step > before);
    return place->next_step - before;
}

static void who_lacks_many_rows_hears_that_there_are_more(void **state)
{
    struct cache_place place = { .next_step = 1 };
    atomic_store(&said.rows, 2 * CACHE_NEW_ROWS + 5);
    assert_int_equal(next_rows(*state, &place), CACHE_NEW_ROWS);
    assert_true(place.more);
    assert_int_equal(next_rows(*state, &place), CACHE_NEW_ROWS);
    assert_true(place.more);
    assert_int_equal(next_rows(*state, &place), 5);
    assert_false(place.more);
    assert_int_equal(next_rows(*state, &place), 0);
    assert_false(place.more);
}

/* Rows that came after they were asked for, and before the job was seen at its end. */
static void last_rows_of_a_job_are_not_missed(void **state)
{
    struct world *world = *state;
    struct cache_place place = { .next_step = 1 };
    auto_buf struct buf text;
    struct rpc_result result;
    bool over = false;
    buf_init(&text, 65536);
    atomic_store(&said.rows, 3);
    assert_int_equal(next_rows(world, &place), 3);
    atomic_store(&said.last, 4);
    atomic_store(&said.over, true);
    assert_int_equal(cache_job(world->cache, "j-1", &text, &over, &result), ST_OK);
    assert_true(over);
    assert_int_equal(next_rows(world, &place), 4);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(many_who_follow_a_job_ask_for_it_once),
        CASE(a_job_that_is_not_there_is_told_to_all),
        CASE(who_lacks_many_rows_hears_that_there_are_more),
        CASE(last_rows_of_a_job_are_not_missed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
