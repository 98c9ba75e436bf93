/* A worker that runs two processes of the program: what they are told alike, and the copy that they
 * fill in together, though they don't talk to each other. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "session/copies/copy_folder.h"
#include "tests/unit/trainer/relay/relay_world.h"

#define BOTH 2

struct pair {
    struct relay_world *r;
    struct program p[BOTH];
};

static bool is_ready(const struct relay_news *news)
{
    return news->ready;
}

static bool has_failed(const struct relay_news *news)
{
    return news->failed;
}

static bool is_done(const struct relay_news *news)
{
    return news->done;
}

static struct pair get_started(void)
{
    struct pair pair = { .r = relay_world_new_of(1, BOTH) };
    for (uint32_t i = 0; i < BOTH; i++)
        program_get_ready_as(pair.r, i, &pair.p[i], 0);
    (void)await_news(pair.r, is_ready);
    return pair;
}

static void pair_free(struct pair *pair)
{
    for (int i = 0; i < BOTH; i++)
        program_close(&pair->p[i]);
    relay_world_free(pair->r);
}

static enum cairn_due finish_step(struct program *p, uint64_t step)
{
    atomic_store(&p->page->step, step);
    if (atomic_load(&p->page->next_due) > step)
        return CAIRN_DUE_NOTHING;
    assert_int_equal(program_say_step(p, WIRE_DUE, step), 0);
    return (enum cairn_due)((const struct wire_due *)(const void *)p->body)->due;
}

static void fill(struct program *p, uint64_t step)
{
    assert_int_equal(program_say_step(p, WIRE_BEGIN, step), 0);
    program_fill(p);
    assert_int_equal(program_say_copied(p, step), 0);
}

static void save_both(struct pair *pair, uint64_t step)
{
    for (int i = 0; i < BOTH; i++)
        fill(&pair->p[i], step);
}

static size_t count_copies(const struct pair *pair)
{
    struct session_copy *copies = NULL;
    size_t count = 0;
    assert_int_equal(copy_folder_list(pair->r->copies, JOB, &copies, &count), ST_OK);
    free(copies);
    return count;
}

static void each_process_is_a_rank(void **state)
{
    (void)state;
    struct pair pair = { .r = relay_world_new_of(1, BOTH) };
    for (uint32_t i = 0; i < BOTH; i++) {
        struct program *p = &pair.p[i];
        program_connect_as(pair.r, i, p);
        program_greet(p);
        const struct wire_welcome *welcome = (const struct wire_welcome *)(const void *)p->body;
        assert_int_equal(welcome->rank, i);
        assert_int_equal(welcome->size, BOTH);
        assert_int_equal(welcome->processes, BOTH);
    }
    pair_free(&pair);
}

static void who_is_behind_is_told_what_was_due(void **state)
{
    (void)state;
    struct pair pair = get_started();
    for (uint64_t step = 1; step <= 3; step++) /* it is three steps ahead, and saves nothing */
        assert_int_equal(finish_step(&pair.p[0], step), CAIRN_DUE_COPY);
    for (uint64_t step = 1; step <= 3; step++)
        assert_int_equal(finish_step(&pair.p[1], step), CAIRN_DUE_COPY);
    assert_int_equal(finish_step(&pair.p[1], 5), CAIRN_DUE_SAVE);
    assert_int_equal(finish_step(&pair.p[0], 4), CAIRN_DUE_NOTHING); /* the other has passed it */
    assert_int_equal(finish_step(&pair.p[0], 5), CAIRN_DUE_SAVE);
    pair_free(&pair);
}

static void a_copy_is_complete_once_both_are_through(void **state)
{
    (void)state;
    struct pair pair = get_started();
    uint64_t area[BOTH];
    for (int i = 0; i < BOTH; i++) {
        assert_int_equal(finish_step(&pair.p[i], 5), CAIRN_DUE_SAVE);
        assert_int_equal(program_say_step(&pair.p[i], WIRE_BEGIN, 5), 0);
        area[i] = ((const struct wire_file *)(const void *)pair.p[i].body)->area;
        program_fill(&pair.p[i]);
    }
    assert_int_equal(area[0], 0);
    assert_int_equal(area[1], 1 << 20); /* 280,000 bytes and more: a chunk */
    assert_int_equal(program_say_copied(&pair.p[0], 5), 0);
    assert_int_equal(program_say_copied(&pair.p[0], 5), CAIRN_INVALID); /* it is through */
    assert_int_equal(count_copies(&pair), 0);
    program_close(&pair.p[0]); /* its part is there */
    assert_int_equal(program_say_copied(&pair.p[1], 5), 0);
    assert_int_equal(count_copies(&pair), 1);
    await(pair.r->w, &pair.r->w->c.reports, 1);
    assert_int_equal(pair.r->w->c.report.raw_bytes, 70000 * 4 + (2 << 20));
    pair_free(&pair);
}

static void who_trains_on_without_saving_undoes_that_copy_only(void **state)
{
    (void)state;
    struct pair pair = get_started();
    assert_int_equal(finish_step(&pair.p[0], 1), CAIRN_DUE_COPY);
    assert_int_equal(program_say_step(&pair.p[0], WIRE_BEGIN, 1), 0);
    assert_int_equal(finish_step(&pair.p[1], 2), CAIRN_DUE_COPY); /* it has passed step 1 */
    assert_int_equal(program_say_step(&pair.p[1], WIRE_BEGIN, 2), 0);
    program_fill(&pair.p[1]);
    assert_int_equal(program_say_copied(&pair.p[0], 1), 0); /* as a save that was dropped */
    assert_int_equal(count_copies(&pair), 0);
    assert_int_equal(program_say_copied(&pair.p[1], 2), 0);
    assert_int_equal(finish_step(&pair.p[0], 2), CAIRN_DUE_COPY);
    fill(&pair.p[0], 2);
    assert_int_equal(count_copies(&pair), 1);
    pair_free(&pair);
}

static void what_one_gives_up_both_begin_again(void **state)
{
    (void)state;
    struct pair pair = get_started();
    const struct wire_copied failed = { .step = 4, .status = CAIRN_NO_MEMORY };
    for (int i = 0; i < BOTH; i++)
        assert_int_equal(finish_step(&pair.p[i], 4), CAIRN_DUE_COPY);
    assert_int_equal(program_say_step(&pair.p[0], WIRE_BEGIN, 4), 0);
    assert_int_equal(program_ask(&pair.p[0], WIRE_COPIED, &failed, sizeof(failed)), 0);
    assert_int_equal(program_say_step(&pair.p[1], WIRE_BEGIN, 4), CAIRN_AGAIN); /* that attempt */
    assert_int_equal(count_copies(&pair), 0);
    save_both(&pair, 4);
    assert_int_equal(count_copies(&pair), 1);
    pair_free(&pair);
}

static void who_dies_in_a_save_leaves_no_copy(void **state)
{
    (void)state;
    struct pair pair = get_started();
    for (int i = 0; i < BOTH; i++) {
        assert_int_equal(finish_step(&pair.p[i], 5), CAIRN_DUE_SAVE);
        assert_int_equal(program_say_step(&pair.p[i], WIRE_BEGIN, 5), 0);
        program_fill(&pair.p[i]);
    }
    program_close(&pair.p[1]);
    program_connect_as(pair.r, 1, &pair.p[1]);
    program_greet(&pair.p[1]); /* by then that was noticed */
    assert_int_equal(program_say_copied(&pair.p[0], 5), 0);
    assert_int_equal(count_copies(&pair), 0);
    assert_int_equal(pair.r->w->c.begins, 0);
    pair_free(&pair);
}

static void the_program_is_done_once_both_have_heard_so(void **state)
{
    (void)state;
    struct pair pair = get_started();
    struct relay_news news;
    for (int i = 0; i < BOTH; i++)
        assert_int_equal(finish_step(&pair.p[i], 20), CAIRN_DUE_SAVE);
    save_both(&pair, 20);
    assert_int_equal(program_settle(&pair.p[1], 20), 20);
    relay_look(pair.r->relay, &news);
    assert_true(news.of[1].done && !news.of[0].done && !news.done);
    assert_int_equal(program_settle(&pair.p[0], 20), 20);
    assert_int_equal(await_news(pair.r, is_done).step, 20);
    pair_free(&pair);
}

/* One process said so before the ranks had met, and was refused; the other one after that. */
static void who_waits_for_a_save_that_waits_for_it_begins_again(void **state)
{
    (void)state;
    struct pair pair = get_started();
    for (int i = 0; i < BOTH; i++)
        assert_int_equal(finish_step(&pair.p[i], 20), CAIRN_DUE_SAVE);
    fill(&pair.p[0], 20);
    assert_int_equal(program_settle(&pair.p[1], 20), 0);
    fill(&pair.p[1], 20);
    for (int i = 0; i < BOTH; i++)
        assert_int_equal(program_settle(&pair.p[i], 20), 20);
    (void)await_news(pair.r, is_done);
    pair_free(&pair);
}

static void an_exit_that_is_taken_back_is_so_for_both(void **state)
{
    (void)state;
    struct pair pair = get_started();
    struct coordinator *c = &pair.r->w->c;
    (void)pthread_mutex_lock(&c->mutex);
    c->commits = false; /* another rank has passed the step */
    order_save_at(c, 5, true);
    (void)pthread_mutex_unlock(&c->mutex);
    const int64_t end_ms = clock_mono_ms(clock_system()) + LONG_MS;
    struct session_exit exit;
    while (!session_exit(pair.r->session, &exit) && clock_mono_ms(clock_system()) < end_ms)
        (void)usleep(1000);
    for (int i = 0; i < BOTH; i++)
        assert_int_equal(finish_step(&pair.p[i], 5), CAIRN_DUE_SAVE_AND_EXIT);
    save_both(&pair, 5);
    (void)pthread_mutex_lock(&c->mutex);
    order_stay(c, 5);
    (void)pthread_mutex_unlock(&c->mutex);
    int32_t status = CAIRN_AGAIN;
    while (status == CAIRN_AGAIN && clock_mono_ms(clock_system()) < end_ms)
        status = program_say_step(&pair.p[0], WIRE_SETTLE, 5);
    assert_int_equal(status, CAIRN_REFUSED);
    assert_int_equal(finish_step(&pair.p[0], 6), CAIRN_DUE_COPY); /* it trains on */
    assert_int_equal(program_say_step(&pair.p[1], WIRE_SETTLE, 5), CAIRN_REFUSED);
    pair_free(&pair);
}

static void processes_that_differ_fail_with_both_named(void **state)
{
    (void)state;
    struct pair pair = { .r = relay_world_new_of(1, BOTH) };
    program_get_ready_as(pair.r, 0, &pair.p[0], 0);
    program_get_ready_as(pair.r, 1, &pair.p[1], 3);
    const struct relay_news news = await_news(pair.r, has_failed);
    assert_non_null(strstr(news.why.text, "rank 0 and rank 1 begin at different steps"));
    pair_free(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_process_is_a_rank),
        cmocka_unit_test(who_is_behind_is_told_what_was_due),
        cmocka_unit_test(a_copy_is_complete_once_both_are_through),
        cmocka_unit_test(who_trains_on_without_saving_undoes_that_copy_only),
        cmocka_unit_test(what_one_gives_up_both_begin_again),
        cmocka_unit_test(who_dies_in_a_save_leaves_no_copy),
        cmocka_unit_test(the_program_is_done_once_both_have_heard_so),
        cmocka_unit_test(who_waits_for_a_save_that_waits_for_it_begins_again),
        cmocka_unit_test(an_exit_that_is_taken_back_is_so_for_both),
        cmocka_unit_test(processes_that_differ_fail_with_both_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
