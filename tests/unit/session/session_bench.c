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
    assert_int_equal(session_fsm_init(&b->fsm, JOB, 7, rank, 4711, b->now_ms), ST_OK);
    return b;
}

void bench_free(struct bench *b)
{
    session_fsm_release(&b->fsm);
    free(b);
}

const Cairn__V1__TrainerMessage *say(struct bench *b)
{
    if (!session_fsm_next(&b->fsm, &b->progress, b->now_ms, &b->out))
        return NULL;
    session_fsm_sent(&b->fsm, &b->out, b->now_ms);
    return &b->out.message;
}

const Cairn__V1__TrainerMessage *say_news(struct bench *b)
{
    const Cairn__V1__TrainerMessage *message = say(b);
    if (message != NULL && message->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY_PROGRESS)
        message = say(b);
    return message;
}

void hear(struct bench *b, Cairn__V1__TrainerOrder *order)
{
    session_fsm_order(&b->fsm, order, b->now_ms);
}

void hear_plan(struct bench *b, uint32_t rank, uint32_t size, uint64_t save_at)
{
    uint32_t shares[4] = { 2, 1, 1, 4 };
    Cairn__V1__SaveAt at = CAIRN__V1__SAVE_AT__INIT, *list[1] = { &at };
    Cairn__V1__Plan plan = CAIRN__V1__PLAN__INIT;
    at.step = save_at;
    plan.saves = list;
    plan.n_saves = save_at > 0;
    hear(b, plan_order(&plan, 7, rank, shares, size));
}

void reconnect(struct bench *b)
{
    session_fsm_link_down(&b->fsm, b->now_ms);
    assert_null(say(b));
    session_fsm_link_up(&b->fsm);
    assert_says(b, HELLO);
}

struct bench *trained(uint32_t rank, uint64_t step)
{
    struct bench *b = bench_new(rank);
    assert_int_equal(session_fsm_hello(&b->fsm, ""), ST_OK);
    session_fsm_link_up(&b->fsm);
    assert_says(b, HELLO);
    hear_plan(b, rank, 4, 0);
    struct session_ready ready = ready_of_100;
    ready.step = step;
    assert_int_equal(session_fsm_ready(&b->fsm, &ready), ST_OK);
    assert_says(b, READY);
    assert_silent(b);
    return b;
}

Cairn__V1__SaveReport *report_of(uint64_t step)
{
    struct ckpt_hash hashes[2] = { { { 1 } }, { { 2 } } };
    struct ckpt_piece_extent extents[2] = {
        { .buffer = 0, .first = 3, .count = 2, .hashes = hashes }, { .buffer = 0, .first = 5 }
    };
    struct ckpt_report report = { .step = step,
                                  .generation = 7,
                                  .file = "shard-00000-of-00004.cairn",
                                  .size = 12345,
                                  .extents = extents,
                                  .extent_count = 2 };
    Cairn__V1__SaveReport *made = session_report_new(&report, 5);
    assert_non_null(made);
    return made;
}

int begin_save(struct bench *b, uint64_t step)
{
    int index = -1;
    assert_int_equal(session_fsm_save_begin(&b->fsm, step, false, &index), ST_OK);
    session_fsm_save_copied(&b->fsm, index, true);
    return index;
}

void give_folder(struct bench *b, uint64_t step)
{
    (void)begin_save(b, step);
    assert_says(b, SAVE_BEGIN);
    hear(b, folder_order(step, "/store"));
}

void pass_ms(struct bench *b, int64_t ms)
{
    b->now_ms += ms;
    session_fsm_tick(&b->fsm, b->now_ms);
}

void add_rows(struct bench *b, uint64_t from, uint64_t to)
{
    for (uint64_t step = from; step <= to; step++) {
        struct session_row row = { .step = step, .loss = 0.5f, .phase_count = 1 };
        row.phase[0].name = "forward";
        row.phase[0].ms = 3;
        row.has_eval = step % 2 == 0;
        row.eval_correct = step;
        session_fsm_row(&b->fsm, &row, 1);
    }
}
