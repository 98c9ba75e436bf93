/* The journalled part of a job's state machine as JSON, and back. */
#include "server/machine/codec.h"
#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

static void the_state_survives_the_journal(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    bench_commit(b, 50);
    bench_fault(b, 1, MACHINE_FAULT_NUMERIC, 57);
    bench_all_exit(b);
    bench_run(b, 1000);
    bench_fault(b, 1, MACHINE_FAULT_NUMERIC, 57);
    bench_all_exit(b);
    bench_tick(b, 2000);
    bench_run(b, 1000);
    assert_int_equal(bench_ask(b, MACHINE_EV_PAUSE), ST_OK);

    struct buf text;
    buf_init(&text, 1 << 20);
    assert_int_equal(machine_encode(&b->m, &text), ST_OK);
    struct machine back;
    assert_int_equal(machine_init(&back, b->m.id, &b->m.config, 1, 1), ST_OK);
    assert_int_equal(machine_decode(&back, text.data), ST_OK);
    bench_load_ranks(&back, &b->m);
    assert_int_equal(back.gone_count, b->m.gone_count);
    assert_int_equal(back.state, b->m.state);
    assert_int_equal(back.generation, 3);
    assert_int_equal(back.intent, MACHINE_INTENT_PAUSE);
    assert_int_equal(back.restore.step, 50);
    assert_int_equal(back.numeric.skip_count, 1);
    assert_int_equal(back.numeric.skip[0], 57);
    assert_int_equal(back.due.announced[0].step + back.due.announced[1].step +
                         back.due.announced[2].step + back.due.announced[3].step,
                     b->m.due.announced[0].step + b->m.due.announced[1].step +
                         b->m.due.announced[2].step + b->m.due.announced[3].step);
    assert_string_equal(back.token, "token");
    assert_string_equal(back.ranks[1].node, "node");
    assert_int_equal(back.ranks[1].slot, 1);
    assert_memory_equal(back.accounts.lost_ms, b->m.accounts.lost_ms, sizeof back.accounts.lost_ms);
    struct buf again;
    buf_init(&again, 1 << 20);
    assert_int_equal(machine_encode(&back, &again), ST_OK);
    assert_string_equal(text.data, again.data);
    buf_release(&text);
    buf_release(&again);
    machine_release(&back);
}

static void a_broken_state_is_refused(void **state)
{
    static const char *const broken[] = {
        "",
        "[]",
        "{}",
        "{\"ranks\":[]}",
        "{\"state\":99,\"ranks\":[]}",
        "{\"state\":\"x\",\"ranks\":[]}",
        "{\"state\":1,\"ranks\":[{},{},{}]}",
        "{\"state\":1,\"skip\":[{\"n\":\"a\"}],\"ranks\":[]}",
    };
    struct machine_config config = bench_config();
    (void)state;
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        struct machine m;
        assert_int_equal(machine_init(&m, "j-1", &config, 1, 1), ST_OK);
        assert_int_equal(machine_decode(&m, broken[i]), ST_CORRUPT);
        machine_release(&m);
    }
}

static void ranks_of_an_older_journal_are_in_the_text(void **state)
{
    static const char text[] =
        "{\"state\":4,\"ranks\":[{\"node\":\"a\",\"slot\":3,\"gone\":false,\"holder\":1},"
        "{\"node\":\"b\",\"slot\":0,\"gone\":true,\"holder\":0}]}";
    struct machine_config config = bench_config();
    struct machine m;
    (void)state;
    assert_int_equal(machine_encoded_ranks(text), 2);
    assert_int_equal(machine_init(&m, "j-1", &config, 1, 1), ST_OK);
    assert_int_equal(machine_decode(&m, text), ST_OK);
    const struct machine_rank_row row = machine_rank_row(&m, 0);
    assert_string_equal(row.node, "a");
    assert_int_equal(row.slot, 3);
    assert_int_equal(row.holder, 1);
    assert_false(row.gone);
    assert_string_equal(m.ranks[1].node, "b");
    assert_int_equal(m.gone_count, 1);
    machine_release(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_state_survives_the_journal, bench_setup,
                                        bench_teardown),
        cmocka_unit_test(a_broken_state_is_refused),
        cmocka_unit_test(ranks_of_an_older_journal_are_in_the_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
