/* The worker's end of libcairn, with a program that keeps to the protocol, and one that doesn't. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "session/copies/copy_folder.h"
#include "tests/unit/trainer/relay/relay_world.h"

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

static bool has_words(const struct relay_news *news)
{
    return news->words.text[0] != '\0';
}

/* A program that is about to train from that step on, and knows when something is due. */
static void get_started(struct relay_world *r, struct program *p, uint64_t step)
{
    program_get_ready(r, p, step);
    (void)await_news(r, is_ready);
    atomic_store(&p->page->step, step);
}

static enum cairn_due ask_due(struct program *p, uint64_t step)
{
    assert_int_equal(program_say_step(p, WIRE_DUE, step), 0);
    return (enum cairn_due)((const struct wire_due *)(const void *)p->body)->due;
}

/* A step that is finished; returns what is due. */
static enum cairn_due finish_step(struct program *p, uint64_t step)
{
    const int64_t end_ms = clock_mono_ms(clock_system()) + LONG_MS;
    atomic_store(&p->page->step, step);
    while (atomic_load(&p->page->next_due) > step && clock_mono_ms(clock_system()) < end_ms)
        (void)usleep(1000);
    assert_in_range(atomic_load(&p->page->next_due), 0, step);
    return ask_due(p, step);
}

static void save_step(struct program *p, uint64_t step)
{
    assert_int_equal(program_say_step(p, WIRE_BEGIN, step), 0);
    program_fill(p);
    assert_int_equal(program_say_copied(p, step), 0);
}

static void whoever_says_hello_learns_where_it_stands(void **state)
{
    (void)state;
    struct relay_world *r = relay_world_new(1);
    struct program p, other;
    program_connect(r, &p);
    program_greet(&p);
    const struct wire_welcome *welcome = (const struct wire_welcome *)(const void *)p.body;
    assert_int_equal(welcome->generation, 4);
    assert_int_equal(welcome->size, 1);
    assert_int_equal(welcome->source, WIRE_NOTHING);
    assert_string_equal(welcome->job, JOB);
    assert_int_not_equal(ftruncate(p.file_fd, 0), 0); /* the worker looks at it, too */
    const struct wire_hello hello = { .version = WIRE_VERSION };
    program_connect(r, &other);
    assert_int_equal(program_ask(&other, WIRE_HELLO, &hello, sizeof(hello)), CAIRN_REFUSED);
    program_close(&other);
    program_close(&p);
    program_connect(r, &p); /* the first one is gone */
    program_greet(&p);
    program_close(&p);
    relay_world_free(r);
}

static void a_library_of_another_version_is_refused(void **state)
{
    (void)state;
    struct relay_world *r = relay_world_new(1);
    struct program p;
    const struct wire_hello hello = { .version = WIRE_VERSION + 1 };
    program_connect(r, &p);
    assert_int_equal(program_ask(&p, WIRE_HELLO, &hello, sizeof(hello)), CAIRN_OTHER_VERSION);
    assert_int_equal(program_ask(&p, WIRE_HELLO, &hello, sizeof(hello)), -1);
    program_close(&p);
    relay_world_free(r);
}

static void what_it_saves_is_committed_and_it_may_end(void **state)
{
    (void)state;
    struct relay_world *r = relay_world_new(1);
    struct program p;
    get_started(r, &p, 0);
    assert_int_equal(finish_step(&p, 1), CAIRN_DUE_COPY);
    save_step(&p, 1);
    assert_int_equal(finish_step(&p, 5), CAIRN_DUE_SAVE);
    save_step(&p, 5);
    assert_int_equal(program_settle(&p, 5), 5);
    struct relay_news news;
    relay_look(r->relay, &news);
    assert_false(news.done);
    assert_int_equal(news.step, 5);
    /* the folder is that of every step */
    assert_int_equal(io_system()->list(NULL, r->w->c.dir, remove_name, r->w->c.dir), ST_OK);
    assert_int_equal(finish_step(&p, 20), CAIRN_DUE_SAVE);
    save_step(&p, 20);
    assert_int_equal(program_settle(&p, 20), 20);
    news = await_news(r, is_done);
    assert_int_equal(news.step, 20);
    assert_false(news.failed);
    assert_int_equal(r->w->c.ready_total, 20);
    assert_int_equal(r->w->c.reports, 2);
    program_close(&p);
    relay_world_free(r);
}

static size_t count_copies(const struct relay_world *r)
{
    struct session_copy *copies = NULL;
    size_t count = 0;
    assert_int_equal(copy_folder_list(r->copies, JOB, &copies, &count), ST_OK);
    free(copies);
    return count;
}

static void a_copy_that_was_not_complete_is_never_used(void **state)
{
    (void)state;
    struct relay_world *r = relay_world_new(1);
    struct program p;
    get_started(r, &p, 0);
    assert_int_equal(finish_step(&p, 5), CAIRN_DUE_SAVE);
    assert_int_equal(program_say_step(&p, WIRE_BEGIN, 5), 0);
    program_fill(&p);
    program_close(&p); /* it dies */
    program_connect(r, &p);
    program_greet(&p); /* by then that was noticed */
    assert_int_equal(count_copies(r), 0);
    assert_int_equal(r->w->c.begins, 0);
    program_close(&p);
    relay_world_free(r);
}

static void what_is_not_due_cannot_begin(void **state)
{
    (void)state;
    struct relay_world *r = relay_world_new(1);
    struct program p;
    program_connect(r, &p);
    program_greet(&p);
    assert_int_equal(program_say_step(&p, WIRE_BEGIN, 5), CAIRN_INVALID);
    assert_int_equal(program_say_step(&p, WIRE_SETTLE, 5), CAIRN_INVALID);
    program_close(&p);
    get_started(r, &p, 3);
    assert_int_equal(program_say_step(&p, WIRE_BEGIN, 4), CAIRN_INVALID);
    assert_int_equal(program_say_step(&p, WIRE_DUE, 21), CAIRN_INVALID);
    assert_int_equal(program_say_step(&p, WIRE_DUE, 3), 0); /* where it began */
    assert_int_equal(((const struct wire_due *)(const void *)p.body)->due, CAIRN_DUE_NOTHING);
    assert_int_equal(finish_step(&p, 4), CAIRN_DUE_COPY);
    assert_int_equal(program_say_copied(&p, 4), CAIRN_INVALID);
    assert_int_equal(program_say_step(&p, WIRE_BEGIN, 4), 0);
    assert_int_equal(program_say_step(&p, WIRE_BEGIN, 4), CAIRN_INVALID);
    assert_int_equal(program_say_copied(&p, 5), CAIRN_INVALID);
    const struct wire_copied failed = { .step = 4, .status = CAIRN_NO_MEMORY };
    assert_int_equal(program_ask(&p, WIRE_COPIED, &failed, sizeof(failed)), 0);
    assert_int_equal(count_copies(r), 0);
    program_close(&p);
    relay_world_free(r);
}

static void a_request_that_there_is_not_ends_the_connection_and_the_rank(void **state)
{
    (void)state;
    static const uint8_t bytes[40];
    const struct {
        enum wire_kind kind;
        size_t size;
    } wrong[] = { { WIRE_DUE, 7 }, { WIRE_LAYOUT, 3 }, { (enum wire_kind)77, 0 }, { 0, 16 } };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct relay_world *r = relay_world_new(1);
        struct program p;
        program_connect(r, &p); /* of one that hasn't said hello nobody takes note */
        assert_int_equal(program_ask(&p, wrong[i].kind, bytes, wrong[i].size), -1);
        program_close(&p);
        program_connect(r, &p);
        program_greet(&p);
        assert_int_equal(program_ask(&p, wrong[i].kind, bytes, wrong[i].size), -1);
        const struct relay_news news = await_news(r, has_failed);
        assert_non_null(strstr(news.why.text, "a request that there is not"));
        program_close(&p);
        relay_world_free(r);
    }
}

static void a_layout_that_cannot_be_is_explained(void **state)
{
    (void)state;
    struct relay_world *r = relay_world_new(1);
    struct program p;
    struct {
        struct wire_layout layout;
        struct wire_entry entry;
    } said = { .layout = { .count = 1 }, .entry = { .name = "w", .dtype = 99, .kind = 1 } };
    program_connect(r, &p);
    program_greet(&p);
    assert_int_equal(program_ask(&p, WIRE_LAYOUT, &said, sizeof(said)), CAIRN_INVALID);
    assert_non_null(strstr((const char *)p.body, "w"));
    said.layout.count = UINT64_MAX / sizeof(struct wire_entry) + 2;
    assert_int_equal(program_ask(&p, WIRE_LAYOUT, &said, sizeof(said)), -1);
    (void)await_news(r, has_failed);
    program_close(&p);
    relay_world_free(r);
}

static void give_order(struct relay_world *r, uint64_t step, bool stays)
{
    (void)pthread_mutex_lock(&r->w->c.mutex);
    if (stays)
        order_stay(&r->w->c, step);
    else
        order_save_at(&r->w->c, step, true);
    (void)pthread_mutex_unlock(&r->w->c.mutex);
}

static void once_an_exit_is_taken_back_saves_go_on(void **state)
{
    (void)state;
    struct relay_world *r = relay_world_new(2);
    struct program p;
    get_started(r, &p, 0);
    assert_int_equal(finish_step(&p, 1), CAIRN_DUE_COPY);
    save_step(&p, 1);
    (void)sleep(1); /* the rounds about older copies */
    (void)pthread_mutex_lock(&r->w->c.mutex);
    r->w->c.meets_silent = true; /* the other rank sees the exit taken back before it is patient */
    (void)pthread_mutex_unlock(&r->w->c.mutex);
    give_order(r, 9, false);
    const int64_t end_ms = clock_mono_ms(clock_system()) + LONG_MS;
    while (ask_due(&p, 2) != CAIRN_DUE_NOTHING && clock_mono_ms(clock_system()) < end_ms)
        (void)usleep(10000); /* until an older copy is to be saved */
    give_order(r, 9, true);
    while (ask_due(&p, 3) == CAIRN_DUE_NOTHING && clock_mono_ms(clock_system()) < end_ms)
        (void)usleep(10000);
    assert_int_equal(ask_due(&p, 5), CAIRN_DUE_SAVE);
    save_step(&p, 5);
    program_close(&p);
    relay_world_free(r);
}

static void a_program_that_is_at_its_last_step_already_saves_it(void **state)
{
    (void)state;
    for (uint64_t from = 19; from <= 20; from++) {
        struct relay_world *r = relay_world_new(2);
        struct program p;
        program_get_ready(r, &p, from);
        atomic_store(&p.page->step, 20); /* maybe before the ranks have met */
        (void)await_news(r, is_ready);
        assert_int_equal(finish_step(&p, 20), CAIRN_DUE_SAVE);
        save_step(&p, 20);
        program_close(&p);
        relay_world_free(r);
    }
}

static void a_program_that_shrinks_its_copy_fails_and_nobody_else(void **state)
{
    (void)state;
    struct relay_world *r = relay_world_new(1);
    struct program p;
    get_started(r, &p, 0);
    assert_int_equal(finish_step(&p, 5), CAIRN_DUE_SAVE);
    assert_int_equal(program_say_step(&p, WIRE_BEGIN, 5), 0);
    program_fill(&p);
    assert_int_equal(ftruncate(p.file_fd, 0), 0);
    (void)program_say_copied(&p, 5);
    const struct relay_news news = await_news(r, has_failed);
    assert_non_null(strstr(news.why.text, "has shrunk a file that it shares with its worker"));
    assert_int_equal(r->w->c.reports, 0); /* nothing of it is saved */
    program_close(&p);
    relay_world_free(r);
}

static int32_t say_last(struct program *p, uint64_t step)
{
    struct wire_last last = { .step = step, .reason = "the loss rises" };
    return program_ask(p, WIRE_LAST, &last, sizeof(last));
}

/* Whether the coordinator answers no rounds; what was asked is asked anew, on another link. */
static void keep_silent(struct relay_world *r, bool silent)
{
    (void)pthread_mutex_lock(&r->w->c.mutex);
    r->w->c.meets_silent = silent;
    if (!silent)
        lose(&r->w->c);
    (void)pthread_mutex_unlock(&r->w->c.mutex);
}

static void a_program_may_end_before_its_last_step(void **state)
{
    (void)state;
    struct relay_world *r = relay_world_new(2);
    struct program p;
    get_started(r, &p, 0);
    assert_int_equal(finish_step(&p, 7), CAIRN_DUE_COPY);
    assert_int_equal(say_last(&p, 21), CAIRN_INVALID); /* beyond the last one */
    assert_int_equal(say_last(&p, 6), CAIRN_INVALID);  /* passed */
    keep_silent(r, true);
    assert_int_equal(say_last(&p, 7), CAIRN_AGAIN); /* rank 1 hasn't said it */
    assert_int_equal(say_last(&p, 8), CAIRN_INVALID);
    keep_silent(r, false);
    while (say_last(&p, 7) == CAIRN_AGAIN) {
    }
    assert_int_equal(p.head.status, 0);
    assert_int_equal(r->w->c.ready_total, 20);
    assert_int_equal(r->w->c.last_step, 7);
    assert_string_equal(r->w->c.last_reason, "the loss rises");
    assert_int_equal(ask_due(&p, 7), CAIRN_DUE_SAVE);
    assert_int_equal(program_say_step(&p, WIRE_DUE, 8), CAIRN_INVALID);
    save_step(&p, 7);
    while (program_say_step(&p, WIRE_SETTLE, 7) == CAIRN_AGAIN) {
    }
    (void)await_news(r, is_done);
    program_close(&p);
    relay_world_free(r);
}

/* The hash of the replicated tensors lies behind four numbers. */
static void describe_otherwise(const char *name, uint8_t *common)
{
    if (strcmp(name, "layout") == 0)
        common[32] ^= 1;
}

static void ranks_that_describe_different_states_fail_with_both_named(void **state)
{
    (void)state;
    struct relay_world *r = relay_world_new(2);
    struct program p;
    r->w->c.other = describe_otherwise;
    program_get_ready(r, &p, 0);
    const struct relay_news news = await_news(r, has_failed);
    assert_non_null(
        strstr(news.why.text, "rank 0 and rank 1 describe different replicated tensors"));
    program_close(&p);
    relay_world_free(r);
}

static void two_ranks_save_a_half_each_and_their_own(void **state)
{
    (void)state;
    struct relay_world *r = relay_world_new(2);
    struct program p;
    get_started(r, &p, 0);
    assert_int_equal(finish_step(&p, 5), CAIRN_DUE_SAVE);
    save_step(&p, 5);
    await(r->w, &r->w->c.reports, 1);
    /* One chunk of floats, which rank 0 has, and its area: 280,000 bytes and more of its own. */
    assert_int_equal(r->w->c.report.raw_bytes, 70000 * 4 + (1 << 20));
    program_close(&p);
    relay_world_free(r);
}

static bool is_to_end(const struct relay_news *news)
{
    return news->ends;
}

/* It has a copy of step 3, and is stopped within the save of step 5, as it is to leave after 10. */
static void a_copy_that_is_never_finished_keeps_no_older_one_from_being_saved(void **state)
{
    (void)state;
    struct relay_world *r = relay_world_new(1);
    struct program p;
    get_started(r, &p, 0);
    assert_int_equal(finish_step(&p, 3), CAIRN_DUE_COPY);
    save_step(&p, 3);
    assert_int_equal(finish_step(&p, 5), CAIRN_DUE_SAVE);
    assert_int_equal(program_say_step(&p, WIRE_BEGIN, 5), 0);
    (void)pthread_mutex_lock(&r->w->c.mutex);
    order_save_at(&r->w->c, 10, true);
    (void)pthread_mutex_unlock(&r->w->c.mutex);
    const struct relay_news news = await_news(r, is_to_end);
    assert_int_equal(news.step, 3);
    assert_true(news.done);
    assert_false(news.failed);
    assert_int_equal(r->w->c.reports, 1);
    program_fill(&p); /* it goes on: what it finishes now is as a save that was dropped */
    assert_int_equal(program_say_copied(&p, 5), 0);
    assert_int_equal(program_say_copied(&p, 6), CAIRN_INVALID);
    assert_int_equal(program_say_step(&p, WIRE_DUE, 10), 0);
    assert_int_equal(((const struct wire_due *)(const void *)p.body)->due, CAIRN_DUE_NOTHING);
    assert_int_equal(program_say_step(&p, WIRE_BEGIN, 10), CAIRN_AGAIN);
    program_close(&p);
    relay_world_free(r);
}

static void what_it_says_of_its_failure_is_kept(void **state)
{
    (void)state;
    struct relay_world *r = relay_world_new(1);
    struct program p;
    static const char words[] = "ValueError: the loss is a banana\nand more";
    program_connect(r, &p);
    program_greet(&p);
    assert_int_equal(program_ask(&p, WIRE_FAIL, words, sizeof(words) - 1), 0);
    const struct relay_news news = await_news(r, has_words);
    assert_string_equal(news.words.text, "ValueError: the loss is a banana");
    assert_false(news.failed);
    program_close(&p);
    relay_world_free(r);
}

static void once_it_is_over_the_program_is_told(void **state)
{
    (void)state;
    struct relay_world *r = relay_world_new(1);
    struct program p;
    get_started(r, &p, 0);
    (void)pthread_mutex_lock(&r->w->c.mutex);
    order_over(&r->w->c, "enough");
    (void)pthread_mutex_unlock(&r->w->c.mutex);
    assert_int_equal(session_await_end(r->session, LONG_MS), ST_OK);
    assert_int_equal(program_say_step(&p, WIRE_DUE, 1), CAIRN_STALE);
    struct relay_news news;
    relay_look(r->relay, &news);
    assert_int_equal(atomic_load(&p.page->over), 1);
    program_close(&p);
    relay_world_free(r);
}

static void numbers_of_a_step_become_one_row(void **state)
{
    (void)state;
    struct relay_world *r = relay_world_new(1);
    struct program p;
    get_started(r, &p, 0);
    struct wire_row row = { .step = 3, .known = 1, .number = { 0.5 } };
    assert_int_equal(program_ask(&p, WIRE_ROW, &row, sizeof(row)), 0);
    row.step = 4;
    assert_int_equal(program_ask(&p, WIRE_ROW, &row, sizeof(row)), 0);
    const int64_t end_ms = clock_mono_ms(clock_system()) + LONG_MS;
    uint64_t through = 0;
    while (through < 4 && clock_mono_ms(clock_system()) < end_ms) {
        struct relay_news news;
        relay_look(r->relay, &news); /* the last one waits for more */
        (void)pthread_mutex_lock(&r->w->c.mutex);
        through = r->w->c.rows_through;
        (void)pthread_mutex_unlock(&r->w->c.mutex);
        (void)usleep(1000);
    }
    assert_int_equal(through, 4);
    row.known = 64;
    assert_int_equal(program_ask(&p, WIRE_ROW, &row, sizeof(row)), CAIRN_INVALID);
    program_close(&p);
    relay_world_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whoever_says_hello_learns_where_it_stands),
        cmocka_unit_test(a_library_of_another_version_is_refused),
        cmocka_unit_test(what_it_saves_is_committed_and_it_may_end),
        cmocka_unit_test(a_copy_that_was_not_complete_is_never_used),
        cmocka_unit_test(what_is_not_due_cannot_begin),
        cmocka_unit_test(a_request_that_there_is_not_ends_the_connection_and_the_rank),
        cmocka_unit_test(a_layout_that_cannot_be_is_explained),
        cmocka_unit_test(ranks_that_describe_different_states_fail_with_both_named),
        cmocka_unit_test(two_ranks_save_a_half_each_and_their_own),
        cmocka_unit_test(a_copy_that_is_never_finished_keeps_no_older_one_from_being_saved),
        cmocka_unit_test(a_program_that_is_at_its_last_step_already_saves_it),
        cmocka_unit_test(a_program_may_end_before_its_last_step),
        cmocka_unit_test(a_program_that_shrinks_its_copy_fails_and_nobody_else),
        cmocka_unit_test(once_an_exit_is_taken_back_saves_go_on),
        cmocka_unit_test(what_it_says_of_its_failure_is_kept),
        cmocka_unit_test(once_it_is_over_the_program_is_told),
        cmocka_unit_test(numbers_of_a_step_become_one_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
