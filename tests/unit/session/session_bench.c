#include "tests/unit/session/session_bench.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"

const struct session_ready ready_of_100 = {
    .total_steps = 100, .steps_per_epoch = 10, .save_every = 10, .pins = "{\"cpu\":\"x\"}"
};

struct bench *bench_new(uint32_t rank)
{
    struct bench *b = calloc(1, sizeof(*b));
    CHECK(b != NULL);
    b->now_ms = 1000;
    b->progress.phase = "forward";
    assert_int_equal(session_core_init(&b->core, JOB, 7, rank, 4711, b->now_ms), ST_OK);
    return b;
}

void bench_free(struct bench *b)
{
    session_core_release(&b->core);
    free(b);
}

const Cairn__V1__TrainerMessage *say(struct bench *b)
{
    if (!session_core_next(&b->core, &b->progress, b->now_ms, &b->out))
        return NULL;
    session_core_sent(&b->core, &b->out, b->now_ms);
    return &b->out.message;
}

const Cairn__V1__TrainerMessage *say_news(struct bench *b)
{
    const Cairn__V1__TrainerMessage *message = say(b);
    if (message != NULL && message->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY_PROGRESS)
        message = say(b);
    return message;
}

void hear(struct bench *b, const Cairn__V1__TrainerOrder *order)
{
    uint8_t bytes[4096];
    const size_t size = cairn__v1__trainer_order__get_packed_size(order);
    CHECK(size <= sizeof(bytes));
    (void)cairn__v1__trainer_order__pack(order, bytes);
    session_core_order(&b->core, cairn__v1__trainer_order__unpack(NULL, size, bytes), b->now_ms);
}

void hear_plan(struct bench *b, uint32_t rank, uint32_t size, uint64_t save_at)
{
    uint32_t shares[4] = { 2, 1, 1, 4 };
    Cairn__V1__SaveAt at = CAIRN__V1__SAVE_AT__INIT, *list[1] = { &at };
    Cairn__V1__Plan plan = CAIRN__V1__PLAN__INIT;
    Cairn__V1__TrainerOrder order = CAIRN__V1__TRAINER_ORDER__INIT;
    plan.job = (char *)(uintptr_t)JOB;
    plan.generation = 7;
    plan.rank = rank;
    plan.size = size;
    plan.shares = shares;
    plan.n_shares = size;
    at.step = save_at;
    plan.saves = list;
    plan.n_saves = save_at > 0;
    order.body_case = CAIRN__V1__TRAINER_ORDER__BODY_PLAN;
    order.plan = &plan;
    hear(b, &order);
}

void hear_folder(struct bench *b, uint64_t step, const char *dir)
{
    Cairn__V1__SaveFolder folder = CAIRN__V1__SAVE_FOLDER__INIT;
    Cairn__V1__TrainerOrder order = CAIRN__V1__TRAINER_ORDER__INIT;
    folder.step = step;
    folder.dir = (char *)(uintptr_t)dir;
    order.body_case = CAIRN__V1__TRAINER_ORDER__BODY_SAVE_FOLDER;
    order.save_folder = &folder;
    hear(b, &order);
}

void hear_ack(struct bench *b, uint64_t step)
{
    Cairn__V1__SaveAck ack = CAIRN__V1__SAVE_ACK__INIT;
    Cairn__V1__TrainerOrder order = CAIRN__V1__TRAINER_ORDER__INIT;
    ack.step = step;
    order.body_case = CAIRN__V1__TRAINER_ORDER__BODY_SAVE_ACK;
    order.save_ack = &ack;
    hear(b, &order);
}

void hear_done(struct bench *b, uint64_t step, bool committed)
{
    Cairn__V1__SaveDone done = CAIRN__V1__SAVE_DONE__INIT;
    Cairn__V1__TrainerOrder order = CAIRN__V1__TRAINER_ORDER__INIT;
    done.step = step;
    done.committed = committed;
    order.body_case = CAIRN__V1__TRAINER_ORDER__BODY_SAVE_DONE;
    order.save_done = &done;
    hear(b, &order);
}

void hear_save_at(struct bench *b, uint64_t step, bool exits)
{
    Cairn__V1__SaveAt at = CAIRN__V1__SAVE_AT__INIT;
    Cairn__V1__TrainerOrder order = CAIRN__V1__TRAINER_ORDER__INIT;
    at.step = step;
    at.then = exits ? CAIRN__V1__SAVE_AT__THEN__EXIT : CAIRN__V1__SAVE_AT__THEN__CONTINUE;
    order.body_case = CAIRN__V1__TRAINER_ORDER__BODY_SAVE_AT;
    order.save_at = &at;
    hear(b, &order);
}

void hear_kv(struct bench *b, uint64_t id, enum status st, const char *value, int64_t sum)
{
    Cairn__V1__KvReply reply = CAIRN__V1__KV_REPLY__INIT;
    Cairn__V1__TrainerOrder order = CAIRN__V1__TRAINER_ORDER__INIT;
    reply.id = id;
    reply.status = st;
    reply.value.data = (uint8_t *)(uintptr_t)value;
    reply.value.len = strlen(value);
    reply.sum = sum;
    order.body_case = CAIRN__V1__TRAINER_ORDER__BODY_KV;
    order.kv = &reply;
    hear(b, &order);
}

void hear_metric_ack(struct bench *b, uint64_t through)
{
    Cairn__V1__MetricAck ack = CAIRN__V1__METRIC_ACK__INIT;
    Cairn__V1__TrainerOrder order = CAIRN__V1__TRAINER_ORDER__INIT;
    ack.through_step = through;
    order.body_case = CAIRN__V1__TRAINER_ORDER__BODY_METRIC_ACK;
    order.metric_ack = &ack;
    hear(b, &order);
}

void reconnect(struct bench *b)
{
    session_core_link_down(&b->core, b->now_ms);
    assert_null(say(b));
    session_core_link_up(&b->core);
    assert_says(b, HELLO);
}

struct bench *trained(uint32_t rank, uint64_t step)
{
    struct bench *b = bench_new(rank);
    assert_int_equal(session_core_hello(&b->core, ""), ST_OK);
    session_core_link_up(&b->core);
    assert_says(b, HELLO);
    hear_plan(b, rank, 4, 0);
    struct session_ready ready = ready_of_100;
    ready.step = step;
    assert_int_equal(session_core_ready(&b->core, &ready), ST_OK);
    assert_says(b, READY);
    assert_silent(b);
    return b;
}

Cairn__V1__SaveReport *report_of(uint64_t step)
{
    struct ckpt_hash hashes[2] = { { { 1 } }, { { 2 } } };
    struct ckpt_piece_run runs[2] = { { .buffer = 0, .first = 3, .count = 2, .hashes = hashes },
                                      { .buffer = 0, .first = 5 } };
    struct ckpt_report report = { .step = step,
                                  .generation = 7,
                                  .file = "shard-00000-of-00004.cairn",
                                  .size = 12345,
                                  .runs = runs,
                                  .run_count = 2 };
    Cairn__V1__SaveReport *made = session_report_new(&report, 5);
    assert_non_null(made);
    return made;
}

int begin_save(struct bench *b, uint64_t step)
{
    int index = -1;
    assert_int_equal(session_core_save_begin(&b->core, step, false, &index), ST_OK);
    session_core_save_copied(&b->core, index, true);
    return index;
}

void pass_ms(struct bench *b, int64_t ms)
{
    b->now_ms += ms;
    session_core_tick(&b->core, b->now_ms);
}

void add_rows(struct bench *b, uint64_t from, uint64_t to)
{
    for (uint64_t step = from; step <= to; step++) {
        struct session_row row = { .step = step, .loss = 0.5f, .phase_count = 1 };
        row.phase[0].name = "forward";
        row.phase[0].ms = 3;
        row.has_eval = step % 2 == 0;
        row.eval_correct = step;
        session_core_row(&b->core, &row, 1);
    }
}
