/*
 * The coordinator's end of the rendezvous, with ranks that say what their trainers would: who is
 * answered with what and when, and how many bytes that is.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coord/index.h"
#include "server/coord/state.h"
#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"

/* What came to a trainer. */
struct fake_rank {
    struct far_end far; /* first */
    Cairn__V1__TrainerOrder *joined;
    int answers;
    size_t bytes; /* of all RendezvousResult */
};

static void keep_met(struct coord_conn *conn, const struct coord_message *message)
{
    struct fake_rank *rank = (struct fake_rank *)conn;
    Cairn__V1__TrainerOrder *order =
        cairn__v1__trainer_order__unpack(NULL, message->size, message->data);
    assert_non_null(order);
    if (order->body_case != CAIRN__V1__TRAINER_ORDER__BODY_JOINED) {
        cairn__v1__trainer_order__free_unpacked(order, NULL);
        return;
    }
    if (rank->joined != NULL)
        cairn__v1__trainer_order__free_unpacked(rank->joined, NULL);
    rank->joined = order;
    rank->answers++;
    rank->bytes += message->size;
}

static void finish(struct coord_conn *conn, enum rpc_code code, const char *detail)
{
    struct fake_rank *rank = (struct fake_rank *)conn;
    (void)code;
    (void)detail;
    rank->far.finished = true;
}

static void attach(struct coord_world *w, struct fake_rank *rank, const struct coord_job *job,
                   uint32_t number)
{
    static const struct coord_conn_ops ops = { .send = keep_met, .finish = finish };
    far_open(&rank->far, job->m.token);
    rank->far.conn.ops = &ops;
    far_attach(w, &rank->far, job, number);
    coord_end_group(w);
}

static struct fake_rank *attach_all(struct coord_world *w, const struct coord_job *job)
{
    struct fake_rank *ranks = calloc(job->m.config.ranks, sizeof(*ranks));
    assert_non_null(ranks);
    for (uint32_t r = 0; r < job->m.config.ranks; r++)
        attach(w, &ranks[r], job, r);
    return ranks;
}

static void close_all(struct coord_world *w, struct fake_rank *ranks, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++) {
        if (w != NULL)
            far_close_trainer(w, &ranks[r].far);
        if (ranks[r].joined != NULL)
            cairn__v1__trainer_order__free_unpacked(ranks[r].joined, NULL);
    }
    free(ranks);
}

static void say(struct coord_world *w, struct fake_rank *rank, Cairn__V1__RendezvousJoin *join)
{
    Cairn__V1__TrainerMessage message = CAIRN__V1__TRAINER_MESSAGE__INIT;
    message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_JOIN;
    message.join = join;
    coord_trainer_message(w->coord, &rank->far.conn, &message);
    coord_end_group(w);
}

/* The port of a rank for one of its peers. */
static uint16_t port_of(uint32_t from, uint32_t to)
{
    return (uint16_t)(from * 7919 + to * 104729 + 1);
}

static void host_of(uint32_t rank, uint8_t out[4])
{
    const uint8_t host[4] = { 10, 1, (uint8_t)(rank >> 8), (uint8_t)rank };
    memcpy(out, host, sizeof(host));
}

/* What a trainer over IPv4 says; returns the bytes of that. */
static size_t come(struct coord_world *w, struct fake_rank *ranks, uint32_t rank, uint32_t count,
                   bool answered)
{
    uint16_t ports[LIMIT_RANKS];
    uint8_t host[4];
    host_of(rank, host);
    for (uint32_t r = 0; r < count; r++)
        ports[r] = port_of(rank, r);
    Cairn__V1__RendezvousJoin join = CAIRN__V1__RENDEZVOUS_JOIN__INIT;
    join.name = "workers";
    join.common = (ProtobufCBinaryData){ .len = sizeof(host), .data = host };
    join.items = (ProtobufCBinaryData){ .len = count * sizeof(ports[0]), .data = (uint8_t *)ports };
    join.answered = answered;
    say(w, &ranks[rank], &join);
    return cairn__v1__rendezvous_join__get_packed_size(&join);
}

static void assert_met(const struct fake_rank *ranks, uint32_t rank, uint32_t count)
{
    assert_non_null(ranks[rank].joined);
    const Cairn__V1__RendezvousResult *joined = ranks[rank].joined->joined;
    assert_string_equal(joined->name, "workers");
    assert_int_equal(joined->status, ST_OK);
    assert_int_equal(joined->n_commons, count);
    assert_int_equal(joined->items.len, count * sizeof(uint16_t));
    for (uint32_t r = 0; r < count; r++) {
        uint8_t host[4];
        uint16_t port;
        host_of(r, host);
        memcpy(&port, joined->items.data + r * sizeof(port), sizeof(port));
        assert_int_equal(joined->commons[r].len, sizeof(host));
        assert_memory_equal(joined->commons[r].data, host, sizeof(host));
        assert_int_equal(port, port_of(r, rank));
    }
}

static struct coord_job *submit(struct coord_world *w, struct far_end *agent, uint32_t ranks)
{
    char text[1024];
    struct coord_job *job = NULL;
    struct reason reason;
    far_open(agent, "");
    Cairn__V1__AgentHello hello = far_agent_hello("n", "boot-1");
    hello.slots = LIMIT_SLOTS;
    far_say_hello(w, agent, &hello);
    (void)snprintf(text, sizeof(text),
                   "name: wide\nmodel: {arch: mlp, classes: 10}\n"
                   "data: {train: {format: synthetic, samples: 10000}}\n"
                   "train: {duration: 50 steps, global_batch: %u, lanes: %u,\n"
                   "  optimizer: {name: sgd, lr: 0.1}, seed: 1}\n"
                   "workers: {count: %u}\ncheckpoint: {every: 5 steps, store: /store}\n",
                   ranks, ranks, ranks);
    assert_int_equal(coord_submit_text(w, text, &job, &reason), ST_OK);
    coord_pass(w, 1);
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
    return job;
}

/* ---- all come ---- */

/* What goes through the coordinator in all. */
static size_t bytes_of_meeting(struct coord_world *w, uint32_t count)
{
    struct far_end agent;
    struct coord_job *job = submit(w, &agent, count);
    struct fake_rank *ranks = attach_all(w, job);
    size_t bytes = 0;
    for (uint32_t r = 0; r < count; r++) {
        assert_int_equal(ranks[r].answers, 0);
        bytes += come(w, ranks, r, count, false);
    }
    for (uint32_t r = 0; r < count; r++) {
        assert_int_equal(ranks[r].answers, 1);
        assert_met(ranks, r, count);
        bytes += ranks[r].bytes;
    }
    close_all(w, ranks, count);
    far_close_agent(w, &agent);
    return bytes;
}

static void a_job_of_256_ranks_meets_with_one_message_each(void **state)
{
    const size_t bytes = bytes_of_meeting(*state, 256);
    print_message("256 ranks: %zu bytes\n", bytes);
    assert_true(bytes < (size_t)256 * 256 * 12);
}

static void as_many_ranks_as_a_job_may_have_meet(void **state)
{
    const size_t bytes = bytes_of_meeting(*state, LIMIT_RANKS);
    print_message("%d ranks: %zu bytes\n", LIMIT_RANKS, bytes);
    assert_true(bytes < (size_t)LIMIT_RANKS * LIMIT_RANKS * 12);
}

/* ---- lost sessions, a restart ---- */

static void who_lost_its_session_before_the_answer_gets_it_afterwards(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    struct coord_job *job = submit(w, &agent, 3);
    struct fake_rank *ranks = attach_all(w, job);
    (void)come(w, ranks, 0, 3, false);
    (void)come(w, ranks, 1, 3, false);
    far_close_trainer(w, &ranks[1].far);
    (void)come(w, ranks, 2, 3, false);
    assert_int_equal(ranks[0].answers + ranks[2].answers, 2);
    assert_int_equal(ranks[1].answers, 0);
    attach(w, &ranks[1], job, 1);
    (void)come(w, ranks, 1, 3, false);
    assert_met(ranks, 1, 3);
    assert_int_equal(ranks[0].answers + ranks[2].answers, 2); /* nobody is told twice */
    far_close_trainer(w, &ranks[0].far);
    attach(w, &ranks[0], job, 0);
    (void)come(w, ranks, 0, 3, true);
    assert_int_equal(ranks[0].answers, 1);
    close_all(w, ranks, 3);
    far_close_agent(w, &agent);
}

/* Two had their answers, one had not; all say again what they brought. */
static void a_restarted_coordinator_has_it_all_again(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    struct coord_job *job = submit(w, &agent, 3);
    char id[16];
    (void)snprintf(id, sizeof(id), "%s", job->id);
    struct fake_rank *ranks = attach_all(w, job);
    for (uint32_t r = 0; r < 3; r++)
        (void)come(w, ranks, r, 3, false);
    for (uint32_t r = 0; r < 3; r++)
        far_close_trainer(w, &ranks[r].far);
    far_close_agent(w, &agent);
    close_all(NULL, ranks, 3);
    coord_restart(w);
    job = coord_job_at(w->coord, id);
    assert_non_null(job);
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
    ranks = attach_all(w, job);
    (void)come(w, ranks, 0, 3, true);
    (void)come(w, ranks, 1, 3, false);
    assert_int_equal(ranks[1].answers, 0);
    (void)come(w, ranks, 2, 3, true);
    assert_met(ranks, 1, 3);
    assert_int_equal(ranks[0].answers + ranks[2].answers, 0);
    close_all(w, ranks, 3);
}

/* ---- bounds ---- */

static void assert_refused(struct coord_world *w, struct fake_rank *rank,
                           Cairn__V1__RendezvousJoin *join, enum status st)
{
    const int answers = rank->answers;
    say(w, rank, join);
    assert_int_equal(rank->answers, answers + 1);
    assert_int_equal(rank->joined->joined->status, st);
    assert_string_equal(rank->joined->joined->name, join->name);
}

static void what_can_be_no_meeting_is_refused_at_once(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    uint8_t data[RENDEZVOUS_COMMON_MAX + 1] = { 0 };
    struct coord_job *job = submit(w, &agent, 2);
    struct fake_rank *ranks = attach_all(w, job);
    Cairn__V1__RendezvousJoin join = CAIRN__V1__RENDEZVOUS_JOIN__INIT;
    assert_refused(w, &ranks[0], &join, ST_INVALID); /* no name */
    join.name = "a name that is longer than a name may be";
    assert_refused(w, &ranks[0], &join, ST_INVALID);
    join.name = "workers";
    join.common = (ProtobufCBinaryData){ .len = sizeof(data), .data = data };
    assert_refused(w, &ranks[0], &join, ST_INVALID);
    join.common.len = 0;
    join.items = (ProtobufCBinaryData){ .len = 3, .data = data };
    assert_refused(w, &ranks[0], &join, ST_INVALID);
    join.items.len = (size_t)2 * (RENDEZVOUS_ITEM_MAX + 1);
    assert_refused(w, &ranks[0], &join, ST_INVALID);
    assert_null(job->rounds);
    join.items.len = 4;
    say(w, &ranks[0], &join);
    join.items.len = 2; /* not what the other has */
    assert_refused(w, &ranks[1], &join, ST_INVALID);
    char names[RENDEZVOUS_ROUNDS][2] = { { 0 } };
    for (int i = 1; i < RENDEZVOUS_ROUNDS; i++) {
        names[i][0] = (char)('a' + i);
        join.name = names[i];
        say(w, &ranks[0], &join);
    }
    join.name = "one more";
    assert_refused(w, &ranks[0], &join, ST_FULL);
    close_all(w, ranks, 2);
    far_close_agent(w, &agent);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, coord_setup, coord_teardown)
    const struct CMUnitTest tests[] = {
        CASE(a_job_of_256_ranks_meets_with_one_message_each),
        CASE(as_many_ranks_as_a_job_may_have_meet),
        CASE(who_lost_its_session_before_the_answer_gets_it_afterwards),
        CASE(a_restarted_coordinator_has_it_all_again),
        CASE(what_can_be_no_meeting_is_refused_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
