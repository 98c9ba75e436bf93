/* Probes between agents, on one loop: two of them, and what else may be at an address. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/net/probe.h"
#include "common/limits.h"
#include "tests/test.h"

struct world {
    uv_loop_t loop;
    struct probes *a, *b;
    unsigned answers;
    uint64_t id, bytes, took_us, reach_us;
    bool reached;
    char saw[LIMIT_SAW];
};

static void take_result(void *arg, const struct probe_result *result)
{
    struct world *w = arg;
    w->answers++;
    w->id = result->id;
    w->reached = result->reached;
    w->bytes = result->bytes;
    w->took_us = result->took_us;
    w->reach_us = result->reach_us;
    (void)snprintf(w->saw, sizeof(w->saw), "%s", result->saw);
}

static const struct port_range ANY_PORT;

static void open_world(struct world *w)
{
    *w = (struct world){ .answers = 0 };
    assert_int_equal(uv_loop_init(&w->loop), 0);
    assert_int_equal(probes_open(&w->loop, "127.0.0.1", ANY_PORT, take_result, w, &w->a), ST_OK);
    assert_int_equal(probes_open(&w->loop, "127.0.0.1", ANY_PORT, take_result, w, &w->b), ST_OK);
    assert_int_not_equal(probes_port(w->b), 0);
}

/* Nothing is left open, however it ends. */
static void close_world(struct world *w)
{
    probes_close(w->a);
    probes_close(w->b);
    (void)uv_run(&w->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&w->loop), 0);
}

static void wait_answers(struct world *w, unsigned count)
{
    while (w->answers < count)
        (void)uv_run(&w->loop, UV_RUN_ONCE);
}

/* A socket of this process that listens, and never accepts or says anything. */
static int mute_listener(uint16_t *out_port)
{
    struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t size = sizeof(name);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&name, size), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&name, &size), 0);
    *out_port = ntohs(name.sin_port);
    return fd;
}

static void another_agent_is_reached(void **state)
{
    struct world w;
    (void)state;
    open_world(&w);
    probes_start(w.a, 7, "127.0.0.1", probes_port(w.b));
    wait_answers(&w, 1);
    assert_true(w.reached);
    assert_int_equal(w.id, 7);
    assert_non_null(strstr(w.saw, "reached within"));
    assert_in_range(w.reach_us, 1, 1000000);
    assert_int_equal(w.bytes, 0);
    close_world(&w);
}

static void many_at_once_are_answered_each(void **state)
{
    struct world w;
    (void)state;
    open_world(&w);
    for (uint64_t i = 0; i < 100; i++)
        probes_start(i % 2 ? w.a : w.b, i, "127.0.0.1", probes_port(i % 2 ? w.b : w.a));
    wait_answers(&w, 100);
    assert_true(w.reached);
    close_world(&w);
}

static void a_port_that_takes_connections_and_says_nothing_is_not_reached(void **state)
{
    struct world w;
    uint16_t port;
    (void)state;
    open_world(&w);
    const int fd = mute_listener(&port);
    probes_start(w.a, 1, "127.0.0.1", port);
    wait_answers(&w, 1);
    assert_false(w.reached);
    assert_non_null(strstr(w.saw, "no answer within 1000 ms"));
    (void)close(fd);
    close_world(&w);
}

static void a_closed_port_is_not_reached_and_named(void **state)
{
    struct world w;
    uint16_t port;
    (void)state;
    open_world(&w);
    (void)close(mute_listener(&port));
    probes_start(w.a, 1, "127.0.0.1", port);
    wait_answers(&w, 1);
    assert_false(w.reached);
    assert_non_null(strstr(w.saw, "127.0.0.1 port"));
    assert_non_null(strstr(w.saw, "refused"));
    close_world(&w);
}

static void a_host_that_is_none_is_not_reached(void **state)
{
    struct world w;
    (void)state;
    open_world(&w);
    probes_start(w.a, 1, "host name with spaces", 80);
    wait_answers(&w, 1);
    assert_false(w.reached);
    probes_start(w.a, 2, "127.0.0.1", 0); /* nothing to ask */
    probes_start(NULL, 3, "127.0.0.1", 80);
    close_world(&w);
    assert_int_equal(w.answers, 1);
}

/* Strangers that connect and send nothing, or more than a probe does, keep nobody else out. */
static void strangers_keep_nobody_out(void **state)
{
    struct world w;
    int fds[PROBE_GUESTS_MAX + 20];
    (void)state;
    open_world(&w);
    struct sockaddr_in to = { .sin_family = AF_INET,
                              .sin_port = htons(probes_port(w.b)),
                              .sin_addr = { htonl(INADDR_LOOPBACK) } };
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
        static const char words[100] = "more than anybody wants to know";
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(fds[i] >= 0);
        assert_int_equal(connect(fds[i], (const struct sockaddr *)&to, sizeof(to)), 0);
        if (i % 3 == 0)
            assert_int_equal(send(fds[i], words, sizeof(words), MSG_NOSIGNAL), sizeof(words));
        (void)uv_run(&w.loop, UV_RUN_NOWAIT);
    }
    probes_start(w.a, 1, "127.0.0.1", probes_port(w.b));
    wait_answers(&w, 1);
    assert_true(w.reached);
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        (void)close(fds[i]);
    close_world(&w);
}

static void of_a_range_of_ports_the_last_that_is_free_is_taken(void **state)
{
    struct world w;
    uint16_t port;
    (void)state;
    open_world(&w);
    const int fd = mute_listener(&port);
    probes_close(w.a);
    const struct port_range ports = { (uint16_t)(port - 50), port };
    assert_int_equal(probes_open(&w.loop, "127.0.0.1", ports, take_result, &w, &w.a), ST_OK);
    assert_in_range(probes_port(w.a), port - 50, port - 1);
    (void)close(fd);
    close_world(&w);
}

static const uint8_t TOKEN[MEASURE_TOKEN] = "a token, so long";

static struct measure_ask ask_of(const struct world *w)
{
    return (struct measure_ask){ .id = 9,
                                 .host = "127.0.0.1",
                                 .port = probes_port(w->b),
                                 .token = TOKEN,
                                 .ms = 100,
                                 .bytes_max = MEASURE_BYTES_MAX };
}

static void what_arrives_is_measured(void **state)
{
    struct world w;
    (void)state;
    open_world(&w);
    struct measure_ask ask = ask_of(&w);
    probes_expect(w.b, TOKEN);
    probes_measure(w.a, &ask);
    wait_answers(&w, 1);
    assert_true(w.reached);
    assert_int_equal(w.id, 9);
    assert_in_range(w.bytes, 1, MEASURE_BYTES_MAX);
    assert_in_range(w.took_us, 1, 2000000);
    ask.bytes_max = 1000000; /* and no more than was asked for */
    probes_measure(w.a, &ask);
    wait_answers(&w, 2);
    assert_true(w.reached);
    assert_int_equal(w.bytes, 1000000);
    close_world(&w);
}

/* A stranger can't have an agent take data. */
static void data_without_the_token_are_not_taken(void **state)
{
    struct world w;
    (void)state;
    open_world(&w);
    const struct measure_ask ask = ask_of(&w);
    probes_measure(w.a, &ask); /* nothing is expected */
    wait_answers(&w, 1);
    assert_false(w.reached);
    probes_expect(w.b, (const uint8_t *)"another one, too");
    probes_measure(w.a, &ask);
    wait_answers(&w, 2);
    assert_false(w.reached);
    assert_int_equal(w.bytes, 0);
    close_world(&w);
}

static void data_that_nobody_takes_end_in_time(void **state)
{
    struct world w;
    uint16_t port;
    (void)state;
    open_world(&w);
    const int fd = mute_listener(&port);
    struct measure_ask ask = ask_of(&w);
    ask.port = port;
    probes_measure(w.a, &ask);
    wait_answers(&w, 1);
    assert_false(w.reached);
    assert_non_null(strstr(w.saw, "none arrived"));
    (void)close(fd);
    close_world(&w);
}

static void measurements_have_bounds_and_may_be_closed(void **state)
{
    struct world w;
    (void)state;
    open_world(&w);
    struct measure_ask ask = ask_of(&w);
    probes_expect(w.b, TOKEN);
    for (int i = 0; i < 2 * MEASURES_MAX; i++)
        probes_measure(w.a, &ask);
    wait_answers(&w, MEASURES_MAX); /* the others are left unanswered */
    probes_measure(w.a, &ask);
    ask.host = "localhost";
    probes_measure(w.a, &ask);
    for (int i = 0; i < 5; i++)
        (void)uv_run(&w.loop, UV_RUN_NOWAIT);
    close_world(&w);
    assert_in_range(w.answers, MEASURES_MAX, MEASURES_MAX + 2);
}

static void it_may_be_closed_at_any_time(void **state)
{
    struct world w;
    (void)state;
    open_world(&w);
    for (uint64_t i = 0; i < 20; i++)
        probes_start(w.a, i, i % 2 ? "127.0.0.1" : "localhost", probes_port(w.b));
    for (int i = 0; i < 3; i++)
        (void)uv_run(&w.loop, UV_RUN_NOWAIT);
    close_world(&w);
    assert_true(w.answers <= 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_agent_is_reached),
        cmocka_unit_test(many_at_once_are_answered_each),
        cmocka_unit_test(a_port_that_takes_connections_and_says_nothing_is_not_reached),
        cmocka_unit_test(a_closed_port_is_not_reached_and_named),
        cmocka_unit_test(a_host_that_is_none_is_not_reached),
        cmocka_unit_test(strangers_keep_nobody_out),
        cmocka_unit_test(of_a_range_of_ports_the_last_that_is_free_is_taken),
        cmocka_unit_test(what_arrives_is_measured),
        cmocka_unit_test(data_without_the_token_are_not_taken),
        cmocka_unit_test(data_that_nobody_takes_end_in_time),
        cmocka_unit_test(measurements_have_bounds_and_may_be_closed),
        cmocka_unit_test(it_may_be_closed_at_any_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
