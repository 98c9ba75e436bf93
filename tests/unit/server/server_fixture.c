#include "tests/unit/server/server_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"

struct jm_config bench_config(void)
{
    return (struct jm_config){ .ranks = 2, .keep_last = 3, .skip_nan = true, .hang_ms = 30000 };
}

void bench_open(struct bench *b, const struct jm_config *config)
{
    *b = (struct bench){ .now = 1000000 };
    struct job_event at = { .now = b->now, .wall = 1800000000000 };
    assert_int_equal(jm_init(&b->m, "j-0123456789", config, &at), ST_OK);
}

void bench_close(struct bench *b)
{
    jm_release(&b->m);
}

int bench_setup(void **state)
{
    struct bench *b = malloc(sizeof *b);
    struct jm_config config = bench_config();
    bench_open(b, &config);
    *state = b;
    return 0;
}

int bench_teardown(void **state)
{
    bench_close(*state);
    free(*state);
    return 0;
}

void bench_is_state(const struct bench *b, const char *name)
{
    assert_string_equal(job_state_name(b->m.state), name);
}

enum status bench_step(struct bench *b, struct job_event event)
{
    event.now = b->now;
    event.wall = 1800000000000 + b->now;
    enum status st = job_step(&b->m, &event, &b->out);
    b->m.dirty = false;
    return st;
}

enum status bench_ask(struct bench *b, enum job_event_kind kind)
{
    return bench_step(b, (struct job_event){ .kind = kind });
}

void bench_tick(struct bench *b, int64_t ms)
{
    b->now += ms;
    assert_int_equal(bench_step(b, (struct job_event){ .kind = EV_TICK }), ST_OK);
}

static struct job_event of_rank(const struct bench *b, enum job_event_kind kind, uint32_t rank)
{
    return (struct job_event){ .kind = kind, .generation = b->m.generation, .rank = rank };
}

static void send(struct bench *b, struct job_event event)
{
    assert_int_equal(bench_step(b, event), ST_OK);
}

void bench_place(struct bench *b)
{
    const char *nodes[LIMIT_RANKS];
    uint32_t slots[LIMIT_RANKS];
    for (uint32_t i = 0; i < b->m.config.ranks; i++) {
        nodes[i] = "node";
        slots[i] = i;
    }
    struct job_event event = {
        .kind = EV_PLACED, .nodes = nodes, .slots = slots, .token = "token"
    };
    send(b, event);
}

void bench_probe(struct bench *b, enum status status)
{
    send(b, (struct job_event){ .kind = EV_PROBED, .status = status, .message = "the store" });
}

void bench_hello(struct bench *b, uint32_t rank)
{
    struct job_event event = of_rank(b, EV_HELLO, rank);
    event.pid = 100 + rank;
    send(b, event);
}

void bench_ready(struct bench *b, uint32_t rank, uint64_t total)
{
    struct job_event event = of_rank(b, EV_READY, rank);
    event.total_steps = total;
    event.steps_per_epoch = 10;
    send(b, event);
}

void bench_progress(struct bench *b, uint32_t rank, uint64_t step, const char *phase)
{
    struct job_event event = of_rank(b, EV_PROGRESS, rank);
    event.step = step;
    event.phase = phase;
    event.counter = step * 100 + (uint64_t)b->now;
    send(b, event);
}

void bench_fault(struct bench *b, uint32_t rank, enum jm_fault_kind kind, uint64_t step)
{
    struct jm_fault fault = { .kind = kind, .rank = JM_ALL, .step = step };
    (void)snprintf(fault.phase, sizeof fault.phase, "forward");
    (void)snprintf(fault.message, sizeof fault.message, "told by rank %u", rank);
    struct job_event event = of_rank(b, EV_FAULT, rank);
    event.fault = &fault;
    send(b, event);
}

void bench_exit(struct bench *b, uint32_t rank, enum jm_exit how, int code)
{
    struct job_event event = of_rank(b, EV_EXITED, rank);
    event.exit = how;
    event.code = code;
    event.message = "it went";
    event.finished = how == EXIT_FINISHED;
    send(b, event);
}

void bench_save(struct bench *b, enum job_event_kind kind, uint32_t rank, uint64_t step)
{
    struct job_event event = of_rank(b, kind, rank);
    event.step = step;
    event.message = "no space";
    event.full = true;
    event.flag = true; /* removed */
    event.at = step + 5;
    send(b, event);
}

void bench_store(struct bench *b, enum job_event_kind kind, uint64_t step, uint32_t generation,
                 enum status status)
{
    struct jm_ckpt ckpt = { .step = step,
                            .generation = generation,
                            .shards = b->m.config.ranks,
                            .state = CKPT_GOOD,
                            .bytes = 1000,
                            .wall_ms = b->now };
    (void)snprintf(ckpt.digest, sizeof ckpt.digest, "%032llx", (unsigned long long)step);
    struct job_event event = { .kind = kind,
                               .step = step,
                               .of_generation = generation,
                               .status = status,
                               .message = status_string(status),
                               .ckpt = &ckpt };
    send(b, event);
}

void bench_run(struct bench *b, uint64_t total)
{
    bench_place(b);
    if (b->m.state == JOB_PLACING)
        bench_probe(b, ST_OK);
    for (uint32_t i = 0; i < b->m.config.ranks; i++)
        bench_hello(b, i);
    for (uint32_t i = 0; i < b->m.config.ranks; i++)
        bench_ready(b, i, total);
    assert_string_equal(job_state_name(b->m.state), "RUNNING");
}

void bench_commit(struct bench *b, uint64_t step)
{
    uint32_t generation = b->m.generation;
    for (uint32_t i = 0; i < b->m.config.ranks; i++) {
        bench_progress(b, i, step, "forward");
        bench_save(b, EV_SAVE_BEGIN, i, step);
    }
    bench_store(b, EV_FOLDER_DONE, step, generation, ST_OK);
    for (uint32_t i = 0; i < b->m.config.ranks; i++)
        bench_save(b, EV_SAVE_REPORT, i, step);
    bench_store(b, EV_CHECK_DONE, step, generation, ST_OK);
    bench_store(b, EV_PUBLISH_DONE, step, generation, ST_OK);
}

void bench_all_exit(struct bench *b)
{
    uint32_t generation = b->m.generation;
    for (uint32_t i = 0; i < b->m.config.ranks; i++)
        if (!b->m.ranks[i].gone && b->m.generation == generation)
            bench_exit(b, i, EXIT_SIGNAL, 9);
}

const struct jm_action *bench_act(const struct bench *b, enum jm_action_kind kind, size_t n)
{
    for (size_t i = 0; i < b->out.count; i++)
        if (b->out.list[i].kind == kind && n-- == 0)
            return &b->out.list[i];
    return NULL;
}

size_t bench_count(const struct bench *b, enum jm_action_kind kind)
{
    size_t count = 0;
    for (size_t i = 0; i < b->out.count; i++)
        count += b->out.list[i].kind == kind;
    return count;
}

bool bench_event(const struct bench *b, const char *kind)
{
    for (size_t i = 0; i < b->out.count; i++)
        if (b->out.list[i].kind == ACT_EVENT && strcmp(b->out.list[i].text, kind) == 0)
            return true;
    return false;
}
