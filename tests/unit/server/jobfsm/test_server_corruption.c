/* A rank that can't restore says which file is damaged: that alone is read before the decision. */
#include <stdio.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

#define FILE_1 2 /* of a fault and a task: 1 + its number */

/* A new generation forms; rank 1 says that this file of what it restores is damaged. */
static void report_file(struct bench *b, uint32_t shard)
{
    struct fsm_fault fault = { .kind = FSM_FAULT_DAMAGE, .rank = 1, .shard = shard };
    (void)snprintf(fault.phase, sizeof(fault.phase), "restore");
    (void)snprintf(fault.message, sizeof(fault.message), "shard-00001-of-00002.cairn: bad hash");
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    bench_all_exit(b);
    bench_tick(b, 5000);
    bench_place(b);
    bench_hello(b, 0);
    bench_hello(b, 1);
    const struct fsm_event event = {
        .kind = FSM_EV_FAULT, .generation = b->m.generation, .rank = 1, .fault = &fault
    };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

static void is_asked(const struct bench *b, uint64_t step, uint32_t shard)
{
    size_t found = 0;
    for (size_t i = 0; i < b->out.count; i++) {
        const struct fsm_action *act = &b->out.list[i];
        if (act->kind != FSM_ACT_STORE || act->task != FSM_TASK_VERIFY || act->step != step)
            continue;
        assert_int_equal(act->shard, shard);
        found++;
    }
    assert_int_equal(found, 1);
}

static void file_was_read(struct bench *b, uint64_t step, uint32_t shard, enum status status)
{
    const struct fsm_event event = { .kind = FSM_EV_STORE,
                                     .answer = { .task = FSM_TASK_VERIFY,
                                                 .shard = shard,
                                                 .step = step,
                                                 .generation = 1,
                                                 .status = status,
                                                 .message = status_string(status) } };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

static void a_file_that_is_damaged_decides(void **state)
{
    struct bench *b = *state;
    report_file(b, FILE_1);
    is_asked(b, 20, FILE_1);
    bench_all_exit(b);
    bench_tick(b, 5000);
    assert_false(fsm_wants_slots(&b->m, b->now));
    file_was_read(b, 20, FILE_1, ST_CORRUPT);
    assert_int_equal(bench_task(b, FSM_TASK_QUARANTINE)->step, 20);
    assert_null(bench_task(b, FSM_TASK_VERIFY));
    bench_place(b);
    bench_store(b, FSM_TASK_QUARANTINE, 20, 1, ST_OK);
    assert_int_equal(b->m.restore.step, 10);
    assert_int_equal(b->m.suspect_count, 0);
}

static void where_it_reads_well_the_node_is_suspected(void **state)
{
    struct bench *b = *state;
    report_file(b, FILE_1);
    bench_all_exit(b);
    bench_tick(b, 5000);
    assert_false(fsm_wants_slots(&b->m, b->now));
    file_was_read(b, 20, FILE_1, ST_OK);
    assert_null(bench_task(b, FSM_TASK_VERIFY));
    assert_true(bench_event(b, "verified"));
    assert_int_equal(b->m.suspect_count, 1);
    assert_string_equal(b->m.suspects[0], b->m.ranks[1].node);
    assert_false(fsm_find_ckpt(&b->m, 20, 1)->verified); /* the rest of it wasn't read */
    bench_tick(b, 5000);
    bench_place(b);
    assert_int_equal(b->m.restore.step, 20);
}

static void a_read_that_fails_is_asked_for_again(void **state)
{
    struct bench *b = *state;
    report_file(b, FILE_1);
    bench_all_exit(b);
    file_was_read(b, 20, FILE_1, ST_IO);
    assert_int_equal(fsm_find_ckpt(&b->m, 20, 1)->state, FSM_CKPT_GOOD);
    assert_non_null(strstr(b->m.reason, "the checkpoint store"));
    bench_tick(b, 5000);
    is_asked(b, 20, FILE_1);
    bench_tick(b, 5000);
    assert_null(bench_task(b, FSM_TASK_VERIFY)); /* it is being read */
    file_was_read(b, 20, FILE_1, ST_OK);
    assert_false(b->m.damage_suspected);
}

/* A generation that began while the file was read reported damage without a file. */
static void what_is_disputed_since_is_asked_for_once_the_file_was_read(void **state)
{
    struct bench *b = *state;
    report_file(b, FILE_1);
    bench_all_exit(b);
    b->m.damage_shard = 0;
    file_was_read(b, 20, FILE_1, ST_OK);
    assert_true(b->m.damage_suspected);
    bench_tick(b, 5000);
    is_asked(b, 20, 0);
}

static void is_read_whole(struct bench *b, uint32_t shard)
{
    report_file(b, shard);
    is_asked(b, 20, 0);
    bench_all_exit(b);
    bench_store(b, FSM_TASK_VERIFY, 20, 1, ST_OK);
    assert_false(b->m.damage_suspected);
    assert_true(fsm_find_ckpt(&b->m, 20, 1)->verified);
}

/* From a worker of before; or its tables are wrong, or its digest. */
static void without_a_file_all_is_read(void **state)
{
    is_read_whole(*state, 0);
}

static void a_file_that_it_does_not_have_is_none(void **state)
{
    is_read_whole(*state, 3);
}

/* 20 is read through 10: the bad bytes may be those of 10. */
static void of_what_it_is_read_through_the_same_file_is_read(void **state)
{
    struct bench *b = *state;
    struct fsm_ckpt *ckpt = &b->m.catalog[1];
    assert_int_equal(ckpt->step, 20);
    ckpt->parent_step = 10;
    ckpt->parent_generation = 1;
    report_file(b, FILE_1);
    is_asked(b, 20, FILE_1);
    is_asked(b, 10, FILE_1);
    bench_all_exit(b);
    file_was_read(b, 20, FILE_1, ST_OK);
    bench_tick(b, 5000);
    assert_false(fsm_wants_slots(&b->m, b->now));
    assert_int_equal(b->m.suspect_count, 0);
    file_was_read(b, 10, FILE_1, ST_CORRUPT);
    assert_int_equal(bench_tasks(b, FSM_TASK_QUARANTINE), 2);
    assert_int_equal(b->m.suspect_count, 0);
    assert_null(fsm_newest(&b->m));
}

/* A turn has room for some of them; the others follow with the answers. */
static void all_that_were_being_set_aside_at_a_start_are(void **state)
{
    struct bench *b = *state;
    const uint64_t many = 200;
    for (uint64_t step = 1001; step <= 1000 + many; step++) {
        struct fsm_ckpt ckpt = { .step = step,
                                 .generation = 1,
                                 .state =
                                     step % 4 == 0 ? FSM_CKPT_REMOVING : FSM_CKPT_QUARANTINING };
        assert_int_equal(fsm_add_ckpt(&b->m, &ckpt), ST_OK);
    }
    bench_all_exit(b);
    bench_restart(b, 1000);
    for (uint64_t answers = 0; answers < many; answers++) {
        struct fsm_ckpt *asked = NULL; /* the store answers one after the other */
        for (size_t i = 0; i < b->m.catalog_count && asked == NULL; i++)
            asked = b->m.catalog[i].removing ? &b->m.catalog[i] : NULL;
        if (asked == NULL)
            break;
        bench_store(b, asked->state == FSM_CKPT_REMOVING ? FSM_TASK_REMOVE : FSM_TASK_QUARANTINE,
                    asked->step, 1, ST_OK);
    }
    for (size_t i = 0; i < b->m.catalog_count; i++)
        assert_int_not_equal(b->m.catalog[i].state, FSM_CKPT_QUARANTINING);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_setup_saved, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_file_that_is_damaged_decides),
        TEST(where_it_reads_well_the_node_is_suspected),
        TEST(a_read_that_fails_is_asked_for_again),
        TEST(what_is_disputed_since_is_asked_for_once_the_file_was_read),
        TEST(without_a_file_all_is_read),
        TEST(a_file_that_it_does_not_have_is_none),
        TEST(of_what_it_is_read_through_the_same_file_is_read),
        TEST(all_that_were_being_set_aside_at_a_start_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
