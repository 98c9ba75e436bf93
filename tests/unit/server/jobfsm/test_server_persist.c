/* The journalled part of a job's state machine as JSON, and back. */
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "server/coord/state.h"
#include "server/jobfsm/persist.h"
#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

static void the_state_survives_the_journal(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    bench_commit(b, 50);
    bench_fault(b, 1, FSM_FAULT_NUMERIC, 57);
    bench_all_exit(b);
    bench_run(b, 1000);
    bench_fault(b, 1, FSM_FAULT_NUMERIC, 57);
    bench_all_exit(b);
    bench_tick(b, 2000);
    bench_run(b, 1000);
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);

    struct buf text;
    buf_init(&text, 1 << 20);
    assert_int_equal(fsm_encode(&b->m, &text), ST_OK);
    struct fsm back;
    assert_int_equal(fsm_init(&back, b->m.id, &b->m.config, 1, 1), ST_OK);
    assert_int_equal(fsm_decode(&back, text.data), ST_OK);
    bench_load_ranks(&back, &b->m);
    assert_int_equal(back.gone_count, b->m.gone_count);
    assert_int_equal(back.state, b->m.state);
    assert_int_equal(back.generation, 3);
    assert_int_equal(back.intent, FSM_INTENT_PAUSE);
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
    assert_memory_equal(back.accounts.lost_ms, b->m.accounts.lost_ms,
                        sizeof(back.accounts.lost_ms));
    struct buf again;
    buf_init(&again, 1 << 20);
    assert_int_equal(fsm_encode(&back, &again), ST_OK);
    assert_string_equal(text.data, again.data);
    buf_release(&text);
    buf_release(&again);
    fsm_release(&back);
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
    struct fsm_config config = bench_config();
    (void)state;
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        struct fsm m;
        assert_int_equal(fsm_init(&m, "j-1", &config, 1, 1), ST_OK);
        assert_int_equal(fsm_decode(&m, broken[i]), ST_CORRUPT);
        fsm_release(&m);
    }
}

static void ranks_of_an_older_journal_are_in_the_text(void **state)
{
    static const char text[] =
        "{\"state\":4,\"ranks\":[{\"node\":\"a\",\"slot\":3,\"gone\":false,\"holder\":1},"
        "{\"node\":\"b\",\"slot\":0,\"gone\":true,\"holder\":0}]}";
    struct fsm_config config = bench_config();
    struct fsm m;
    (void)state;
    assert_int_equal(fsm_encoded_ranks(text), 2);
    assert_int_equal(fsm_init(&m, "j-1", &config, 1, 1), ST_OK);
    assert_int_equal(fsm_decode(&m, text), ST_OK);
    const struct fsm_rank_row row = fsm_rank_row(&m, 0);
    assert_string_equal(row.node, "a");
    assert_int_equal(row.slot, 3);
    assert_int_equal(row.holder, 1);
    assert_false(row.gone);
    assert_string_equal(m.ranks[1].node, "b");
    assert_int_equal(m.gone_count, 1);
    fsm_release(&m);
}

/* Fills a text with control characters, each of which is written as six. */
static void fill(char *text, size_t capacity)
{
    memset(text, 1, capacity - 1);
    text[capacity - 1] = '\0';
}

static void fill_fault(struct fsm_fault *fault)
{
    fault->step = fault->good_step = UINT64_MAX / 2;
    fill(fault->phase, sizeof(fault->phase));
    fill(fault->message, sizeof(fault->message));
}

/* Every list as long as it may be, and every text as long as it can be. */
static void the_largest_state_has_room(void **state)
{
    struct bench *b = *state;
    struct fsm *m = &b->m;
    struct fsm_config config = bench_config();
    config.ranks = config.most = LIMIT_RANKS;
    bench_reopen(b, &config);
    bench_place(b);
    bench_probe(b, ST_OK);
    assert_int_equal(m->size, LIMIT_RANKS);
    assert_true(exclusion_resize(&m->exclusions, 4 * LIMIT_NODES));
    for (uint32_t i = 0; i < m->exclusions.count; i++) {
        struct exclusion *one = &m->exclusions.list[i];
        *one = (struct exclusion){ .why = EXCLUSION_PINS, .kind = UINT32_MAX };
        fill(one->node, sizeof(one->node));
        one->since = INT64_MAX;
        one->agent = INT64_MAX;
    }
    m->restore.memory_size = LIMIT_RANKS;
    m->restore.holders = calloc(LIMIT_RANKS, sizeof(*m->restore.holders));
    assert_non_null(m->restore.holders);
    memset(m->restore.holders, 0xff, LIMIT_RANKS * sizeof(*m->restore.holders));
    m->suspect_count = FSM_SUSPECTS_MAX;
    for (int i = 0; i < FSM_SUSPECTS_MAX; i++)
        fill(m->suspects[i], LIMIT_NAME);
    m->numeric.skip_count = FSM_SKIPS_MAX;
    memset(m->numeric.skip, 0x7f, sizeof(m->numeric.skip));
    fill(m->reason, sizeof(m->reason));
    fill_fault(&m->cause);
    fill_fault(&m->first_cause);
    fill(m->recovery.node, sizeof(m->recovery.node));
    fill(m->recovery.phase, sizeof(m->recovery.phase));
    fill(m->recovery.message, sizeof(m->recovery.message));
    memset(m->recovery.ms, 0x7f, sizeof(m->recovery.ms));

    auto_buf struct buf text, recovery;
    buf_init(&text, COORD_STATE_BYTES_MAX);
    buf_init(&recovery, COORD_RECOVERY_BYTES);
    assert_int_equal(fsm_encode(m, &text), ST_OK);
    assert_int_equal(fsm_encode_recovery(&m->recovery, &recovery), ST_OK);
    struct fsm back;
    assert_int_equal(fsm_init(&back, m->id, &m->config, 1, 1), ST_OK);
    assert_int_equal(fsm_decode(&back, text.data), ST_OK);
    assert_int_equal(back.exclusions.count, 4 * LIMIT_NODES);
    fsm_release(&back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_state_survives_the_journal, bench_setup,
                                        bench_teardown),
        cmocka_unit_test(a_broken_state_is_refused),
        cmocka_unit_test_setup_teardown(the_largest_state_has_room, bench_setup, bench_teardown),
        cmocka_unit_test(ranks_of_an_older_journal_are_in_the_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
