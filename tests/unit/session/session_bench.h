/*
 * For tests of the session's state machine: what it says, and orders that it hears.
 */
#pragma once

#include "session/fsm.h"
#include "tests/test.h"
#include "tests/unit/session/session_orders.h"

struct bench {
    struct session_fsm fsm;
    struct session_out out;
    struct session_progress progress;
    int64_t now_ms;
};

struct bench *bench_new(uint32_t rank);
void bench_free(struct bench *b);
/* The next message, which is taken; NULL: there is none. */
const Cairn__V1__TrainerMessage *say(struct bench *b);
/* The next message but for progress, which is taken on the way. */
const Cairn__V1__TrainerMessage *say_news(struct bench *b);
/* Takes ownership of order. */
void hear(struct bench *b, Cairn__V1__TrainerOrder *order);
void hear_plan(struct bench *b, uint32_t rank, uint32_t size, uint64_t save_at);
void reconnect(struct bench *b);
/* Joined, ready at step, everything said. */
struct bench *trained(uint32_t rank, uint64_t step);
Cairn__V1__SaveReport *report_of(uint64_t step);
int begin_save(struct bench *b, uint64_t step);
/* Begins a save, says so and hears the folder: the saver has work. */
void give_folder(struct bench *b, uint64_t step);
void pass_ms(struct bench *b, int64_t ms);
void add_rows(struct bench *b, uint64_t from, uint64_t to);

#define assert_says(b, what)                                                                       \
    do {                                                                                           \
        const Cairn__V1__TrainerMessage *said_ = say_news(b);                                      \
        assert_non_null(said_);                                                                    \
        assert_int_equal(said_->body_case, CAIRN__V1__TRAINER_MESSAGE__BODY_##what);               \
    } while (0)

#define assert_silent(b) assert_null(say_news(b))

/* 100 steps, saved every 10. */
extern const struct session_ready ready_of_100;
