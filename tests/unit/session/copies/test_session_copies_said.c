/* What a session tells the coordinator of its copies in memory. */
#include "tests/unit/session/session_bench.h"

static void how_often_copies_are_taken_is_said_and_what_they_take(void **state)
{
    (void)state;
    struct bench *b = bench_new(1);
    struct session_ready ready = ready_of_100;
    char why[] = "node a: full";
    assert_int_equal(session_fsm_hello(&b->fsm, ""), ST_OK);
    session_fsm_link_up(&b->fsm);
    assert_says(b, HELLO);
    hear_plan(b, 1, 4, 0);
    ready.memory_every = 4;
    ready.memory_reason = why;
    assert_int_equal(session_fsm_ready(&b->fsm, &ready), ST_OK);
    why[0] = 'x';
    b->fsm.memory_bytes = 77;
    assert_says(b, READY);
    assert_int_equal(b->out.ready.memory_every, 4);
    assert_int_equal(b->out.ready.memory_bytes, 77);
    assert_string_equal(b->out.ready.memory_reason, "node a: full");
    b->fsm.ready.memory_every = 8; /* session_set_memory_every */
    assert_int_equal(session_fsm_due(&b->fsm, 4), SESSION_DUE_NOTHING);
    assert_int_equal(session_fsm_due(&b->fsm, 8), SESSION_DUE_COPY);
    b->now_ms += SESSION_HEARTBEAT_MS;
    assert_non_null(say(b));
    assert_int_equal(b->out.kind, SESSION_OUT_PROGRESS);
    assert_int_equal(b->out.progress_message.memory_every, 8);
    assert_string_equal(b->out.progress_message.memory_reason, "");
    bench_free(b);
}

/* As a generation begins there is room, and when the files are made there is none: another job's
 * copies came between. */
static void a_copy_file_that_could_not_be_made_is_said_with_progress(void **state)
{
    (void)state;
    const struct reason why = { "a copy file can't be made" };
    for (int told = 0; told < 2; told++) {
        struct bench *b = bench_new(1);
        struct session_ready ready = ready_of_100;
        assert_int_equal(session_fsm_hello(&b->fsm, ""), ST_OK);
        session_fsm_link_up(&b->fsm);
        assert_says(b, HELLO);
        hear_plan(b, 1, 4, 0);
        ready.memory_every = 4;
        ready.memory_reason = told ? "node a: full" : NULL;
        assert_int_equal(session_fsm_ready(&b->fsm, &ready), ST_OK);
        assert_says(b, READY);
        session_fsm_copies_alone(&b->fsm, &why);
        for (int beat = 0; beat < 2; beat++) { /* a message may be lost with its stream */
            b->now_ms += SESSION_HEARTBEAT_MS;
            assert_non_null(say(b));
            assert_int_equal(b->out.kind, SESSION_OUT_PROGRESS);
            assert_string_equal(b->out.progress_message.memory_reason, told ? "" : why.text);
        }
        bench_free(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(how_often_copies_are_taken_is_said_and_what_they_take),
        cmocka_unit_test(a_copy_file_that_could_not_be_made_is_said_with_progress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
