#include "tests/unit/server/server_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/jobfsm/persist.h"
#include "tests/test.h"

#define JOB  "j-0123456789"
#define WALL 1800000000000

struct fsm_config bench_config(void)
{
    return (struct fsm_config){
        .ranks = 2, .keep_last = 3, .skip_nan = true, .hang_ms = 30000, .restarts = true
    };
}

void bench_open(struct bench *b, const struct fsm_config *config)
{
    *b = (struct bench){ .now = 1000000 };
    assert_int_equal(fsm_init(&b->m, JOB, config, b->now, WALL), ST_OK);
}

void bench_close(struct bench *b)
{
    fsm_release(&b->m);
}

void bench_reopen(struct bench *b, const struct fsm_config *config)
{
    bench_close(b);
    bench_open(b, config);
}

int bench_setup(void **state)
{
    struct fsm_config config = bench_config();
    struct bench *b = malloc(sizeof(*b));
    assert_non_null(b);
    bench_open(b, &config);
    *state = b;
    return 0;
}

int bench_setup_running(void **state)
{
    int rc = bench_setup(state);
    bench_run(*state, BENCH_STEPS);
    return rc;
}

int bench_setup_saved(void **state)
{
    int rc = bench_setup_running(state);
    bench_commit(*state, 10);
    bench_commit(*state, 20);
    return rc;
}

int bench_teardown(void **state)
{
    bench_close(*state);
    free(*state);
    return 0;
}

void bench_is_state(const struct bench *b, const char *name)
{
    assert_string_equal(fsm_state_name(b->m.state), name);
}

bool bench_avoids(const struct bench *b, const char *node)
{
    return exclusion_holds(&b->m.exclusions, node, EXCLUSION_FAILED, WALL + b->now);
}

enum status bench_apply(struct bench *b, struct fsm_event event)
{
    event.now = b->now;
    event.wall = WALL + b->now;
    enum status st = fsm_apply(&b->m, &event, &b->out);
    b->m.dirty = false;
    return st;
}

enum status bench_ask(struct bench *b, enum fsm_event_kind kind)
{
    return bench_apply(b, (struct fsm_event){ .kind = kind });
}

enum status bench_remove(struct bench *b, uint64_t step)
{
    return bench_apply(b,
                       (struct fsm_event){ .kind = FSM_EV_REMOVE_CKPT, .remove_ckpt = { step } });
}

void bench_tick(struct bench *b, int64_t ms)
{
    b->now += ms;
    assert_int_equal(bench_ask(b, FSM_EV_TICK), ST_OK);
}

void bench_load_ranks(struct fsm *m, const struct fsm *from)
{
    for (uint32_t i = 0; i < from->count; i++) {
        const struct fsm_rank_row row = fsm_rank_row(from, i);
        fsm_load_rank(m, i, &row);
    }
}

/* Restarts the machine from the journal as server/coord/load.c does. */
void bench_restart(struct bench *b, int64_t away_ms)
{
    struct fsm next;
    auto_buf struct buf text;
    buf_init(&text, 1 << 20);
    b->now += away_ms;
    assert_int_equal(fsm_encode(&b->m, &text), ST_OK);
    assert_int_equal(fsm_init(&next, JOB, &b->m.config, b->now, WALL + b->now), ST_OK);
    assert_int_equal(fsm_decode(&next, text.data), ST_OK);
    bench_load_ranks(&next, &b->m);
    for (size_t i = 0; i < b->m.catalog_count; i++) {
        struct fsm_ckpt row = b->m.catalog[i];
        row.verifying = row.removing = row.best = row.retained = false;
        row.reads = 0;
        assert_int_equal(fsm_add_ckpt(&next, &row), ST_OK);
    }
    for (int i = 0; i < FSM_SAVES_MAX; i++) {
        struct fsm_save row = { .state = b->m.saves[i].state,
                                .step = b->m.saves[i].step,
                                .generation = b->m.saves[i].generation,
                                .try_number = b->m.saves[i].try_number,
                                .base_step = b->m.saves[i].base_step,
                                .base_generation = b->m.saves[i].base_generation };
        if (row.state == FSM_SAVE_CHECKING)
            row.state = FSM_SAVE_COLLECTING; /* the journalled reports say it */
        if (row.state != FSM_SAVE_COLLECTING && row.state != FSM_SAVE_COMMITTING &&
            row.state != FSM_SAVE_DROPPING)
            continue;
        fsm_load_save(&next, &row);
        for (uint32_t r = 0; r < b->m.config.ranks; r++)
            if (b->m.ranks[r].save_flags[i] & FSM_RANK_REPORTED)
                fsm_load_report(&next, row.step, row.generation, r);
    }
    fsm_release(&b->m);
    b->m = next;
    fsm_resume(&b->m, b->now, WALL + b->now, &b->out);
}

/* ---- one event ---- */

static struct fsm_event of_rank(const struct bench *b, enum fsm_event_kind kind, uint32_t rank)
{
    return (struct fsm_event){ .kind = kind, .generation = b->m.generation, .rank = rank };
}

static void send(struct bench *b, struct fsm_event event)
{
    assert_int_equal(bench_apply(b, event), ST_OK);
}

void bench_place_on(struct bench *b, const char *const *nodes)
{
    const char *names[LIMIT_RANKS];
    uint32_t slots[LIMIT_RANKS], count = 0;
    const uint32_t vacant = fsm_vacant_ranks(&b->m);
    for (uint32_t i = 0; i < b->m.config.ranks && count < vacant; i++) {
        if (i < b->m.size && !b->m.ranks[i].gone)
            continue;
        names[count] = nodes[i];
        slots[count++] = i;
    }
    send(b,
         (struct fsm_event){ .kind = FSM_EV_PLACED, .placed = { names, slots, count, "token" } });
}

void bench_place(struct bench *b)
{
    const char *nodes[LIMIT_RANKS];
    for (uint32_t i = 0; i < b->m.config.ranks; i++)
        nodes[i] = "node";
    bench_place_on(b, nodes);
}

void bench_probe(struct bench *b, enum status status)
{
    send(b, (struct fsm_event){
                .kind = FSM_EV_STORE,
                .answer = { .task = FSM_TASK_PROBE, .status = status, .message = "the store" } });
}

void bench_hello(struct bench *b, uint32_t rank)
{
    struct fsm_event event = of_rank(b, FSM_EV_HELLO, rank);
    event.hello.pid = 100 + rank;
    send(b, event);
}

void bench_attach(struct bench *b, uint32_t rank, uint64_t step)
{
    struct fsm_event event = of_rank(b, FSM_EV_HELLO, rank);
    event.hello.pid = 100 + rank;
    event.hello.attached = true;
    event.hello.step = step;
    send(b, event);
}

void bench_session_lost(struct bench *b, uint32_t rank)
{
    send(b, of_rank(b, FSM_EV_SESSION_LOST, rank));
}

void bench_ready(struct bench *b, uint32_t rank, uint64_t total)
{
    struct fsm_event event = of_rank(b, FSM_EV_READY, rank);
    event.ready.total_steps = total;
    event.ready.steps_per_epoch = 10;
    send(b, event);
}

void bench_counter(struct bench *b, uint32_t rank, uint64_t step, const char *phase,
                   uint64_t counter)
{
    struct fsm_event event = of_rank(b, FSM_EV_PROGRESS, rank);
    event.progress = (struct fsm_progress){ .step = step, .phase = phase, .counter = counter };
    send(b, event);
}

void bench_progress(struct bench *b, uint32_t rank, uint64_t step, const char *phase)
{
    bench_counter(b, rank, step, phase, step * 100 + (uint64_t)b->now);
}

void bench_audited(struct bench *b, uint64_t step)
{
    struct fsm_event event = of_rank(b, FSM_EV_PROGRESS, 0);
    event.progress = (struct fsm_progress){
        .step = step, .phase = "audit", .counter = step, .collective = "", .audited = step
    };
    send(b, event);
}

void bench_fault(struct bench *b, uint32_t rank, enum fsm_fault_kind kind, uint64_t step)
{
    struct fsm_fault fault = { .kind = kind, .rank = FSM_ALL_RANKS, .step = step };
    (void)snprintf(fault.phase, sizeof(fault.phase), "forward");
    (void)snprintf(fault.message, sizeof(fault.message), "told by rank %u", rank);
    struct fsm_event event = of_rank(b, FSM_EV_FAULT, rank);
    event.fault = &fault;
    send(b, event);
}

void bench_fault_of_node(struct bench *b, uint32_t rank, enum fsm_fault_kind kind)
{
    struct fsm_fault fault = { .kind = kind, .rank = FSM_ALL_RANKS, .of_node = true };
    (void)snprintf(fault.phase, sizeof(fault.phase), "forming");
    (void)snprintf(fault.message, sizeof(fault.message), "/data: no such file");
    struct fsm_event event = of_rank(b, FSM_EV_FAULT, rank);
    event.fault = &fault;
    send(b, event);
}

void bench_exit(struct bench *b, uint32_t rank, enum fsm_exit how, int code)
{
    struct fsm_event event = of_rank(b, FSM_EV_EXITED, rank);
    event.exited = (struct fsm_exited){
        .how = how, .code = code, .message = "it went", .finished = how == FSM_EXIT_FINISHED
    };
    send(b, event);
}

void bench_begin(struct bench *b, uint32_t rank, uint64_t step)
{
    struct fsm_event event = of_rank(b, FSM_EV_SAVE_BEGIN, rank);
    event.save_begin.step = step;
    send(b, event);
}

void bench_report(struct bench *b, uint32_t rank, uint64_t step)
{
    struct fsm_event event = of_rank(b, FSM_EV_SAVE_REPORT, rank);
    event.save_report.step = step;
    send(b, event);
}

void bench_save_fails(struct bench *b, uint32_t rank, uint64_t step)
{
    struct fsm_event event = of_rank(b, FSM_EV_SAVE_FAILED, rank);
    event.save_failed.step = step;
    event.save_failed.full = true;
    event.save_failed.removed = true;
    event.save_failed.message = "no space";
    send(b, event);
}

void bench_passed(struct bench *b, uint32_t rank, uint64_t step, uint64_t at)
{
    struct fsm_event event = of_rank(b, FSM_EV_SAVE_PASSED, rank);
    event.save_passed.step = step;
    event.save_passed.at = at;
    send(b, event);
}

/* ---- the store ---- */

void bench_store(struct bench *b, enum fsm_task task, uint64_t step, uint32_t generation,
                 enum status status)
{
    uint32_t try_number = fsm_folder_try(&b->m, step, generation);
    struct fsm_ckpt ckpt = { .step = step,
                             .generation = generation,
                             .try_number = try_number,
                             .shards = b->m.config.ranks,
                             .state = FSM_CKPT_GOOD,
                             .bytes = 1000,
                             .wall_ms = b->now };
    (void)snprintf(ckpt.digest, sizeof(ckpt.digest), "%032llx", (unsigned long long)step);
    send(b, (struct fsm_event){ .kind = FSM_EV_STORE,
                                .answer = { .task = task,
                                            .step = step,
                                            .generation = generation,
                                            .try_number = try_number,
                                            .status = status,
                                            .message = status_string(status),
                                            .ckpt = &ckpt } });
}

void bench_read(struct bench *b, uint32_t rank, uint64_t step, uint32_t generation,
                enum status status)
{
    const uint32_t ranks = b->m.config.ranks;
    send(b, (struct fsm_event){ .kind = FSM_EV_READ_BACK,
                                .generation = b->m.generation,
                                .rank = rank,
                                .read_back = { .step = step,
                                               .generation = generation,
                                               .shard = (rank + ranks - 1) % ranks,
                                               .bytes = 500,
                                               .done = true,
                                               .status = status,
                                               .message = status_string(status) } });
}

void bench_read_all(struct bench *b, uint64_t step)
{
    for (uint32_t i = 0; i < b->m.config.ranks; i++)
        bench_read(b, i, step, 1, ST_OK);
}

void bench_reread(struct bench *b, uint64_t step, uint32_t shard, enum status status)
{
    send(b, (struct fsm_event){ .kind = FSM_EV_STORE,
                                .answer = { .task = FSM_TASK_VERIFY,
                                            .step = step,
                                            .generation = 1,
                                            .shard = shard + 1,
                                            .status = status,
                                            .message = status_string(status) } });
}

void bench_publish(struct bench *b, const struct fsm_ckpt *ckpt)
{
    struct fsm_ckpt published = *ckpt;
    published.try_number = fsm_folder_try(&b->m, ckpt->step, ckpt->generation);
    send(b, (struct fsm_event){ .kind = FSM_EV_STORE,
                                .answer = { .task = FSM_TASK_PUBLISH,
                                            .step = ckpt->step,
                                            .generation = ckpt->generation,
                                            .try_number = published.try_number,
                                            .status = ST_OK,
                                            .message = "",
                                            .ckpt = &published } });
}

/* ---- many events ---- */

void bench_run(struct bench *b, uint64_t total)
{
    bench_place(b);
    if (b->m.state == FSM_PLACING)
        bench_probe(b, ST_OK);
    for (uint32_t i = 0; i < b->m.config.ranks; i++)
        bench_hello(b, i);
    for (uint32_t i = 0; i < b->m.config.ranks; i++)
        bench_ready(b, i, total);
    bench_is_state(b, "RUNNING");
}

void bench_go_on(struct bench *b)
{
    for (uint32_t i = 0; i < b->m.size; i++)
        bench_hello(b, i);
    for (uint32_t i = 0; i < b->m.size; i++)
        bench_ready(b, i, BENCH_STEPS);
    bench_is_state(b, "RUNNING");
}

void bench_save_until(struct bench *b, uint64_t step, enum fsm_save_state state)
{
    uint32_t generation = b->m.generation;
    for (uint32_t i = 0; i < b->m.config.ranks; i++)
        bench_begin(b, i, step);
    if (state >= FSM_SAVE_COLLECTING)
        bench_store(b, FSM_TASK_FOLDER, step, generation, ST_OK);
    for (uint32_t i = 0; i < b->m.config.ranks && state >= FSM_SAVE_CHECKING; i++)
        bench_report(b, i, step);
    if (state >= FSM_SAVE_COMMITTING)
        bench_store(b, FSM_TASK_CHECK, step, generation, ST_OK);
    if (state >= FSM_SAVE_COMMITTED)
        bench_store(b, FSM_TASK_PUBLISH, step, generation, ST_OK);
}

void bench_commit(struct bench *b, uint64_t step)
{
    for (uint32_t i = 0; i < b->m.config.ranks; i++)
        bench_progress(b, i, step, "forward");
    bench_save_until(b, step, FSM_SAVE_COMMITTED);
}

void bench_all_exit(struct bench *b)
{
    uint32_t generation = b->m.generation;
    for (uint32_t i = 0; i < b->m.config.ranks; i++)
        if (!b->m.ranks[i].gone && b->m.generation == generation)
            bench_exit(b, i, FSM_EXIT_SIGNAL, 9);
}

/* ---- what came of the last one ---- */

const struct fsm_action *bench_act(const struct bench *b, enum fsm_action_kind kind, size_t n)
{
    for (size_t i = 0; i < b->out.count; i++)
        if (b->out.list[i].kind == kind && n-- == 0)
            return &b->out.list[i];
    return NULL;
}

const struct fsm_action *bench_task(const struct bench *b, enum fsm_task task)
{
    for (size_t i = 0; i < b->out.count; i++)
        if (b->out.list[i].kind == FSM_ACT_STORE && b->out.list[i].task == task)
            return &b->out.list[i];
    return NULL;
}

size_t bench_tasks(const struct bench *b, enum fsm_task task)
{
    size_t count = 0;
    for (size_t i = 0; i < b->out.count; i++)
        count += b->out.list[i].kind == FSM_ACT_STORE && b->out.list[i].task == task;
    return count;
}

size_t bench_count(const struct bench *b, enum fsm_action_kind kind)
{
    size_t count = 0;
    for (size_t i = 0; i < b->out.count; i++)
        count += b->out.list[i].kind == kind;
    return count;
}

const char *bench_told(const struct bench *b, const char *what)
{
    for (size_t i = 0; i < b->out.count; i++)
        if (b->out.list[i].kind == FSM_ACT_EVENT && strcmp(b->out.list[i].what, what) == 0)
            return b->out.list[i].message;
    return NULL;
}

bool bench_event(const struct bench *b, const char *what)
{
    return bench_told(b, what) != NULL;
}

int bench_setup_park(void **state)
{
    int rc = bench_setup(state);
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    config.ranks = BENCH_PARK_RANKS;
    config.restarts = false;
    bench_reopen(b, &config);
    bench_run(b, BENCH_STEPS);
    for (uint32_t i = 0; i < BENCH_PARK_RANKS; i++)
        bench_progress(b, i, 57, "forward");
    return rc;
}

void bench_say_parked(struct bench *b, uint32_t rank)
{
    struct fsm_event event = { .kind = FSM_EV_PARKED, .rank = rank, .generation = b->m.generation };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

void bench_lose_one(struct bench *b)
{
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    for (uint32_t i = 0; i < BENCH_PARK_RANKS; i++) {
        if (i != 1)
            bench_say_parked(b, i);
    }
}

void bench_form_again(struct bench *b)
{
    bench_place(b);
    if (b->m.state == FSM_PLACING)
        bench_probe(b, ST_OK);
    bench_is_state(b, "FORMING");
}

uint64_t bench_save_before_leaving(struct bench *b, uint32_t ranks)
{
    assert_null(bench_act(b, FSM_ACT_PARK, 0));
    const struct fsm_action *save = bench_act(b, FSM_ACT_SAVE_AT, 0);
    assert_non_null(save);
    assert_true(save->exit);
    assert_non_null(bench_told(b, "resizing"));
    const uint64_t step = save->step;
    bench_tick(b, 1000);
    assert_null(bench_act(b, FSM_ACT_SAVE_AT, 0)); /* it is announced */
    for (uint32_t i = 0; i < ranks; i++)
        bench_progress(b, i, step, "forward");
    for (uint32_t i = 0; i < ranks; i++)
        bench_begin(b, i, step);
    bench_store(b, FSM_TASK_FOLDER, step, 1, ST_OK);
    for (uint32_t i = 0; i < ranks; i++)
        bench_report(b, i, step);
    bench_store(b, FSM_TASK_CHECK, step, 1, ST_OK);
    bench_store(b, FSM_TASK_PUBLISH, step, 1, ST_OK);
    for (uint32_t i = 0; i < ranks; i++)
        bench_exit(b, i, FSM_EXIT_CODE, 0);
    bench_form_again(b);
    return step;
}
