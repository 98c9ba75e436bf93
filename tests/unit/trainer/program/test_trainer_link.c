/* The session's link over a real server of the Training service: orders, ends, and what they mean.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/descriptors.h"
#include "rpc/server.h"
#include "tests/test.h"
#include "trainer/program/link.h"

#define TOKEN "secret-of-generation-7"

struct coordinator {
    Cairn__V1__Training_Service service; /* first: handlers are given it */
    struct rpc_descdb *descdb;
    struct rpc_server *server;
    char target[96], path[64], folder[32];
    _Atomic int finished; /* messages Finished that came */
};

/* Answers a hello with a plan of the same generation; generation 6 is refused. */
static void session(Cairn__V1__Training_Service *self, const Cairn__V1__TrainerMessage *in,
                    Cairn__V1__TrainerOrder_Closure reply, void *closure_data)
{
    (void)reply;
    struct coordinator *c = (struct coordinator *)self; /* its first member */
    struct rpc_call *call = closure_data;
    if (in == NULL) {
        rpc_call_finish(call, RPC_OK, NULL);
        return;
    }
    if (in->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY_FINISHED)
        c->finished++;
    if (in->body_case != CAIRN__V1__TRAINER_MESSAGE__BODY_HELLO)
        return;
    if (in->hello->generation == 6) {
        rpc_call_finish(call, RPC_FAILED_PRECONDITION, "generation 7 is the current one");
        return;
    }
    if (in->hello->generation == 5) {
        rpc_call_finish(call, RPC_UNAVAILABLE, "going down");
        return;
    }
    Cairn__V1__Plan plan = CAIRN__V1__PLAN__INIT;
    plan.generation = in->hello->generation;
    Cairn__V1__TrainerOrder order = CAIRN__V1__TRAINER_ORDER__INIT;
    order.body_case = CAIRN__V1__TRAINER_ORDER__BODY_PLAN;
    order.plan = &plan;
    (void)rpc_call_send(call, &order.base);
}

static enum rpc_code authorize(void *ctx, struct rpc_call *call, const char **out_detail)
{
    (void)ctx;
    if (rpc_call_has_token(call, TOKEN))
        return RPC_OK;
    *out_detail = "no such token";
    return RPC_UNAUTHENTICATED;
}

static void serve(struct coordinator *c)
{
    size_t size = 0;
    const uint8_t *data = proto_descriptors(&size);
    c->descdb = rpc_descdb_new();
    assert_int_equal(rpc_descdb_add(c->descdb, data, size), ST_OK);
    struct rpc_server_options options = { .descdb = c->descdb, .authorize = authorize };
    c->server = rpc_server_new(&options);
    c->service = (Cairn__V1__Training_Service)CAIRN__V1__TRAINING__INIT();
    c->service.session = session;
    assert_int_equal(rpc_server_add_service(c->server, &c->service.base, NULL), ST_OK);
    assert_int_equal(rpc_server_listen_unix(c->server, c->path), ST_OK);
    rpc_server_start(c->server);
}

static void unserve(struct coordinator *c)
{
    rpc_server_stop_begin(c->server, 0);
    rpc_server_free(c->server);
    rpc_descdb_free(c->descdb);
}

static int set_up(void **state)
{
    struct coordinator *c = calloc(1, sizeof(*c));
    assert_non_null(c);
    (void)snprintf(c->folder, sizeof(c->folder), "/tmp/test_link_XXXXXX");
    assert_non_null(mkdtemp(c->folder));
    (void)snprintf(c->path, sizeof(c->path), "%s/sock", c->folder);
    (void)snprintf(c->target, sizeof(c->target), "unix:%s", c->path);
    serve(c);
    *state = c;
    return 0;
}

static int tear_down(void **state)
{
    struct coordinator *c = *state;
    unserve(c);
    assert_int_equal(rmdir(c->folder), 0); /* nothing stays in it */
    free(c);
    return 0;
}

static struct trainer_link *new_link(const struct coordinator *c, const char *token)
{
    struct trainer_link *link = NULL;
    const struct trainer_link_options how = { .target = c->target, .token = token };
    assert_int_equal(trainer_link_new(&how, &link), ST_OK);
    return link;
}

static enum status say_hello(const struct session_link *table, uint32_t generation)
{
    Cairn__V1__TrainerHello hello = CAIRN__V1__TRAINER_HELLO__INIT;
    hello.generation = generation;
    Cairn__V1__TrainerMessage message = CAIRN__V1__TRAINER_MESSAGE__INIT;
    message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_HELLO;
    message.hello = &hello;
    return table->send(table->self, &message);
}

static void expect_plan(const struct session_link *table, uint32_t generation)
{
    Cairn__V1__TrainerOrder *order = NULL;
    assert_int_equal(table->recv(table->self, 10000, &order), ST_OK);
    assert_int_equal(order->body_case, CAIRN__V1__TRAINER_ORDER__BODY_PLAN);
    assert_int_equal(order->plan->generation, generation);
    cairn__v1__trainer_order__free_unpacked(order, NULL);
}

static void orders_come_back_over_one_stream_after_another(void **state)
{
    struct trainer_link *link = new_link(*state, TOKEN);
    const struct session_link *table = trainer_link_table(link);
    Cairn__V1__TrainerOrder *order = NULL;
    assert_int_equal(table->recv(table->self, 0, &order), ST_CLOSED); /* none is open */
    assert_int_equal(say_hello(table, 7), ST_CLOSED);
    for (uint32_t generation = 7; generation < 10; generation++) {
        assert_int_equal(table->open(table->self, 10000), ST_OK);
        assert_int_equal(say_hello(table, generation), ST_OK);
        expect_plan(table, generation);
        assert_int_equal(table->recv(table->self, 1, &order), ST_TIMED_OUT);
    }
    table->close(table->self, 0);
    assert_int_equal(table->recv(table->self, 0, &order), ST_CLOSED);
    trainer_link_free(link);
}

static void what_was_sent_last_comes_before_the_end(void **state)
{
    struct coordinator *c = *state;
    Cairn__V1__Finished finished = CAIRN__V1__FINISHED__INIT;
    Cairn__V1__TrainerMessage message = CAIRN__V1__TRAINER_MESSAGE__INIT;
    message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_FINISHED;
    message.finished = &finished;
    for (int round = 1; round <= 200; round++) {
        struct trainer_link *link = new_link(c, TOKEN);
        const struct session_link *table = trainer_link_table(link);
        assert_int_equal(table->open(table->self, 10000), ST_OK);
        assert_int_equal(say_hello(table, 7), ST_OK);
        assert_int_equal(table->send(table->self, &message), ST_OK);
        table->close(table->self, 10000);
        assert_int_equal(c->finished, round);
        trainer_link_free(link);
    }
}

static void a_generation_that_is_refused_is_stale(void **state)
{
    struct trainer_link *link = new_link(*state, TOKEN);
    const struct session_link *table = trainer_link_table(link);
    Cairn__V1__TrainerOrder *order = NULL;
    assert_int_equal(table->open(table->self, 10000), ST_OK);
    assert_int_equal(say_hello(table, 6), ST_OK);
    assert_int_equal(table->recv(table->self, 10000, &order), ST_STALE);
    trainer_link_free(link);
}

static void a_token_of_another_generation_is_stale(void **state)
{
    struct trainer_link *link = new_link(*state, "secret-of-generation-6");
    const struct session_link *table = trainer_link_table(link);
    Cairn__V1__TrainerOrder *order = NULL;
    enum status st = table->open(table->self, 10000);
    if (st == ST_OK) /* a refusal may show only in the first recv */
        st = table->recv(table->self, 10000, &order);
    assert_int_equal(st, ST_STALE);
    trainer_link_free(link);
}

static void a_coordinator_that_goes_is_found_again(void **state)
{
    struct coordinator *c = *state;
    struct trainer_link *link = new_link(c, TOKEN);
    const struct session_link *table = trainer_link_table(link);
    Cairn__V1__TrainerOrder *order = NULL;
    assert_int_equal(table->open(table->self, 10000), ST_OK);
    assert_int_equal(say_hello(table, 5), ST_OK);
    assert_int_equal(table->recv(table->self, 10000, &order), ST_CLOSED);
    assert_int_equal(table->open(table->self, 10000), ST_OK);
    unserve(c);
    assert_int_equal(table->recv(table->self, 10000, &order), ST_CLOSED);
    assert_int_not_equal(table->open(table->self, 100), ST_OK);
    assert_int_not_equal(table->open(table->self, 100), ST_STALE);
    serve(c);
    assert_int_equal(table->open(table->self, 20000), ST_OK);
    assert_int_equal(say_hello(table, 7), ST_OK);
    expect_plan(table, 7);
    trainer_link_free(link);
}

static void *interrupt(void *arg)
{
    const struct session_link *table = arg;
    table->interrupt(table->self);
    return NULL;
}

static void an_interrupt_wakes_the_receiver_or_the_next_one(void **state)
{
    struct trainer_link *link = new_link(*state, TOKEN);
    const struct session_link *table = trainer_link_table(link);
    Cairn__V1__TrainerOrder *order = NULL;
    table->interrupt(table->self); /* while there is no stream */
    assert_int_equal(table->open(table->self, 10000), ST_OK);
    assert_int_equal(table->recv(table->self, 600000, &order), ST_TIMED_OUT);
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, interrupt, (void *)(uintptr_t)table), 0);
        assert_int_equal(table->recv(table->self, 600000, &order), ST_TIMED_OUT);
        assert_int_equal(pthread_join(thread, NULL), 0);
    }
    trainer_link_free(link);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(orders_come_back_over_one_stream_after_another),
        TEST(what_was_sent_last_comes_before_the_end),
        TEST(a_generation_that_is_refused_is_stale),
        TEST(a_token_of_another_generation_is_stale),
        TEST(a_coordinator_that_goes_is_found_again),
        TEST(an_interrupt_wakes_the_receiver_or_the_next_one),
    };
    rpc_init();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rpc_shutdown();
    return failed;
}
