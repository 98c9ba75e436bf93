/* What a job waits for now, in each situation that it can be in; and all that it is, as JSON. */
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/jobfsm/inspect/blocked.h"
#include "server/jobfsm/inspect/dump.h"
#include "server/jobfsm/moves.h"
#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

/* Asserts what blocks the job, and a part of the text. */
static void is_blocked(const struct bench *b, enum fsm_block by, const char *part)
{
    struct fsm_blocked blocked;
    fsm_blocked(&b->m, b->now, &blocked);
    if (blocked.by != by || strstr(blocked.text, part) == NULL)
        fail_msg("%s: \"%s\", not %s: \"%s\"", fsm_block_name(blocked.by), blocked.text,
                 fsm_block_name(by), part);
}

static void a_job_that_waits_for_slots_and_the_store(void **state)
{
    struct bench *b = *state;
    is_blocked(b, FSM_BLOCK_SLOTS, "");
    bench_place(b);
    bench_is_state(b, "PLACING");
    is_blocked(b, FSM_BLOCK_STORE, "asked whether it takes a file");
    bench_probe(b, ST_IO);
    is_blocked(b, FSM_BLOCK_STORE, "takes no file; it is asked again in 5.0 s");
    b->now += 5000;
    is_blocked(b, FSM_BLOCK_SLOTS, "");
}

static void a_generation_that_forms_names_the_worker_that_is_least_far(void **state)
{
    struct bench *b = *state;
    bench_place(b);
    bench_probe(b, ST_OK);
    is_blocked(b, FSM_BLOCK_FORMING, "0 of 2 workers are ready; rank 0 on node");
    is_blocked(b, FSM_BLOCK_FORMING, "its agent has not started it yet; it counts as failed in 60");
    bench_hello(b, 0);
    is_blocked(b, FSM_BLOCK_FORMING, "rank 1 on node");
    bench_hello(b, 1);
    is_blocked(b, FSM_BLOCK_FORMING, "it prepares");
    bench_ready(b, 0, 100);
    is_blocked(b, FSM_BLOCK_FORMING, "1 of 2 workers are ready; rank 1");
    bench_ready(b, 1, 100);
    bench_is_state(b, "RUNNING");
    is_blocked(b, FSM_BLOCK_NONE, "");
}

static void workers_that_end_are_counted(void **state)
{
    struct bench *b = *state;
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    bench_is_state(b, "RECOVERING");
    is_blocked(b, FSM_BLOCK_WORKERS, "1 of 2 workers of generation 1 is being ended; ");
    is_blocked(b, FSM_BLOCK_WORKERS, "rank 1 on node");
    is_blocked(b, FSM_BLOCK_WORKERS, "it counts as gone in 15.0 s");
    b->now += 14000;
    is_blocked(b, FSM_BLOCK_WORKERS, "it counts as gone in 1.0 s");
}

static void a_save_that_a_store_fails_holds_back_the_next_generation(void **state)
{
    struct bench *b = *state;
    bench_counter(b, 0, 10, "forward", 5);
    bench_counter(b, 1, 10, "forward", 5);
    bench_save_until(b, 10, FSM_SAVE_COMMITTING);
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_is_state(b, "RECOVERING");
    is_blocked(b, FSM_BLOCK_SAVE,
               "the checkpoint of step 10 is not done: its manifest is being published");
    bench_store(b, FSM_TASK_PUBLISH, 10, 1, ST_IO);
    is_blocked(b, FSM_BLOCK_SAVE, "it failed once: ");
    is_blocked(b, FSM_BLOCK_SAVE, "; the store is asked again in 0.5 s");
    bench_tick(b, 600);
    bench_store(b, FSM_TASK_PUBLISH, 10, 1, ST_IO);
    is_blocked(b, FSM_BLOCK_SAVE, "it failed several times");
}

static void a_time_until_the_next_try(void **state)
{
    struct bench *b = *state;
    for (int i = 0; i < 2 && b->m.state == FSM_RUNNING; i++) { /* the second waits */
        bench_fault(b, 0, FSM_FAULT_MEMORY, 5);
        bench_all_exit(b);
        if (b->m.retry_at <= b->now)
            bench_run(b, BENCH_STEPS);
    }
    bench_is_state(b, "RECOVERING");
    assert_true(b->m.retry_at > b->now);
    is_blocked(b, FSM_BLOCK_BACKOFF, "it waits before it tries again, after");
    bench_tick(b, b->m.retry_at - b->now);
    is_blocked(b, FSM_BLOCK_SLOTS, "");
}

static void a_checkpoint_that_is_damaged_is_read_first(void **state)
{
    struct bench *b = *state;
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    bench_all_exit(b);
    bench_run(b, BENCH_STEPS);
    bench_fault(b, 1, FSM_FAULT_DAMAGE, 20);
    bench_all_exit(b);
    bench_tick(b, b->m.retry_at > b->now ? b->m.retry_at - b->now : 0);
    is_blocked(b, FSM_BLOCK_CHECKPOINT, "the checkpoint of step 20");
}

static void parked_workers_wait_for_a_slot_or_for_a_word(void **state)
{
    struct bench *b = *state;
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    assert_int_equal(fsm_gen(&b->m), FSM_GEN_PARKING);
    is_blocked(b, FSM_BLOCK_WORKERS, "3 of 4 workers of generation 1 have not parked yet");
    bench_say_parked(b, 0);
    is_blocked(b, FSM_BLOCK_WORKERS, "2 of 4");
    bench_say_parked(b, 2);
    bench_say_parked(b, 3);
    assert_int_equal(fsm_gen(&b->m), FSM_GEN_KEPT);
    is_blocked(b, FSM_BLOCK_SLOTS, "");
}

/* Fewer workers are wanted, and after a restart nobody knows yet who of them has the state. */
static void a_restart_waits_for_parked_workers_to_say_what_they_have(void **state)
{
    struct bench *b = *state;
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_say_parked(b, 0);
    bench_say_parked(b, 2);
    bench_say_parked(b, 3);
    b->m.config.min = 2;
    bench_restart(b, 1000);
    b->m.config.ranks = 2;
    is_blocked(b, FSM_BLOCK_STATE, "rank 0 on node");
    is_blocked(b, FSM_BLOCK_STATE, "has not said again which state it has");
}

static void a_job_at_rest_waits_for_nothing(void **state)
{
    struct bench *b = *state;
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    bench_all_exit(b);
    bench_tick(b, 20000);
    is_blocked(b, FSM_BLOCK_NONE, "");
}

/* ---- all of it ---- */

static const char *text_at(const json_t *root, const char *part, const char *key)
{
    return json_string_value(json_object_get(json_object_get(root, part), key));
}

static void a_dump_has_what_is_journalled_and_what_is_not_and_no_secret(void **state)
{
    struct bench *b = *state;
    (void)snprintf(b->m.token, sizeof(b->m.token), "a-secret");
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    json_t *root = fsm_dump(&b->m, b->now);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_object_get(root, "state")), "RECOVERING");
    assert_string_equal(text_at(root, "now", "gen"), "PARKING");
    assert_string_equal(text_at(root, "now", "blocked_by"), "workers");
    const json_t *now = json_object_get(root, "now"), *ranks = json_object_get(root, "ranks");
    assert_int_equal(json_integer_value(json_object_get(now, "ending.hard_at")), 5000);
    assert_int_equal(json_array_size(ranks), BENCH_PARK_RANKS);
    const json_t *dead = json_array_get(ranks, 1);
    assert_string_equal(json_string_value(json_object_get(dead, "worker")), "GONE");
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(root, "journalled"), "generation")), 1);
    char *text = json_dumps(root, 0);
    assert_non_null(text);
    assert_null(strstr(text, "a-secret"));
    free(text);
    json_decref(root);
}

/* ---- moves ---- */

/* Asserts that the call ends the process as a bug does. */
static void is_a_bug(void (*call)(struct fsm *m), struct fsm *m)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)close(2);
        (void)signal(SIGABRT, SIG_DFL);
        call(m);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void form_while_it_runs(struct fsm *m)
{
    fsm_move_by(m, FSM_FORMING, "form_generation");
}

static void save_by_another_function(struct fsm *m)
{
    fsm_move_by(m, FSM_SAVING, "fsm_on_placed");
}

static void park_while_the_job_does_not_recover(struct fsm *m)
{
    m->ending.to = FSM_RECOVERING;
    m->ending.parks = true;
    m->ending.hard_at = 1;
    fsm_gen_moved_by(m, "park");
}

static void commit_what_was_not_decided(struct fsm *m)
{
    struct fsm_save save = { .state = FSM_SAVE_COLLECTING, .step = 5, .generation = 1 };
    (void)m;
    fsm_save_move_by(&save, FSM_SAVE_COMMITTED, "fsm_on_publish_done");
}

static void go_back_to_its_start(struct fsm *m)
{
    m->ranks[0].ready = m->ranks[0].assigned = m->ranks[0].joined = false;
    fsm_worker_moved(m, 0);
}

static void a_move_that_is_in_no_table_is_a_bug(void **state)
{
    struct bench *b = *state;
    is_a_bug(form_while_it_runs, &b->m);
    is_a_bug(save_by_another_function, &b->m);
    is_a_bug(park_while_the_job_does_not_recover, &b->m);
    is_a_bug(commit_what_was_not_decided, &b->m);
    is_a_bug(go_back_to_its_start, &b->m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_job_that_waits_for_slots_and_the_store, bench_setup,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(a_generation_that_forms_names_the_worker_that_is_least_far,
                                        bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(workers_that_end_are_counted, bench_setup_running,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(a_save_that_a_store_fails_holds_back_the_next_generation,
                                        bench_setup_running, bench_teardown),
        cmocka_unit_test_setup_teardown(a_time_until_the_next_try, bench_setup_running,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(a_checkpoint_that_is_damaged_is_read_first,
                                        bench_setup_saved, bench_teardown),
        cmocka_unit_test_setup_teardown(parked_workers_wait_for_a_slot_or_for_a_word,
                                        bench_setup_park, bench_teardown),
        cmocka_unit_test_setup_teardown(a_restart_waits_for_parked_workers_to_say_what_they_have,
                                        bench_setup_park, bench_teardown),
        cmocka_unit_test_setup_teardown(a_job_at_rest_waits_for_nothing, bench_setup_running,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(a_dump_has_what_is_journalled_and_what_is_not_and_no_secret,
                                        bench_setup_park, bench_teardown),
        cmocka_unit_test_setup_teardown(a_move_that_is_in_no_table_is_a_bug, bench_setup_running,
                                        bench_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
