/* Every allocation of the relay's, and of what it calls, fails once: the program hears so, or the
 * rank fails with that reason; nothing hangs, and nothing is left (with AddressSanitizer). */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/trainer/counted_allocations.h"
#include "tests/unit/trainer/relay/relay_world.h"

#define SWEEP_MAX 1000

static bool is_ready(const struct relay_news *news)
{
    return news->ready || news->failed;
}

static int32_t describe(struct program *p)
{
    struct {
        struct wire_layout layout;
        struct wire_entry entry;
    } said = { .layout = { .count = 1, .blob_bytes = 100 },
               .entry = { .name = "weights",
                          .dtype = CAIRN_F32,
                          .kind = CAIRN_REPLICATED,
                          .ndim = 1,
                          .shape = { 1000 },
                          .extent = { 1000 } } };
    const struct wire_ready ready = { .total_steps = 20 };
    const int32_t status = program_ask(p, WIRE_LAYOUT, &said, sizeof(said));
    return status == 0 ? program_ask(p, WIRE_READY, &ready, sizeof(ready)) : status;
}

static int32_t save_step(struct program *p, uint64_t step)
{
    atomic_store(&p->page->step, step);
    int32_t status = program_say_step(p, WIRE_DUE, step);
    if (status == 0)
        status = program_say_step(p, WIRE_BEGIN, step);
    if (status != 0)
        return status;
    program_fill(p);
    return program_say_copied(p, step);
}

/* All that a program says; the status of the first request that fails. -1: the connection ended. */
static int32_t live(struct relay_world *r, struct program *p, struct relay_news *news)
{
    const struct wire_hello hello = { .version = WIRE_VERSION, .client = "test" };
    program_connect(r, p);
    int32_t status = program_ask(p, WIRE_HELLO, &hello, sizeof(hello));
    if (status != 0)
        return status;
    program_map_page(p);
    status = describe(p);
    if (status != 0)
        return status;
    *news = await_news(r, is_ready);
    if (news->failed)
        return 0;
    status = save_step(p, 1);
    return status == 0 ? save_step(p, 5) : status;
}

/* Fails an allocation of the threads named so. Returns whether there are as many. */
static bool fail_one(int number, const char *threads)
{
    struct relay_world *r = relay_world_new(1);
    struct program p = { .fd = -1, .file_fd = -1 };
    struct relay_news news = { .failed = false };
    fail_allocation(number, threads);
    const int32_t status = live(r, &p, &news);
    const bool failed = allocation_failed();
    if (status != 0 && status != -1 && status != CAIRN_NO_MEMORY)
        fail_msg("allocation %d of %s: status %d", number, threads, status);
    if (news.failed)
        assert_non_null(strstr(news.why.text, "memory"));
    assert_true(failed || (status == 0 && !news.failed));
    program_close(&p);
    relay_world_free(r);
    return failed;
}

static void sweep(const char *threads, int at_least)
{
    int number = 0;
    while (number < SWEEP_MAX && fail_one(number, threads))
        number++;
    assert_in_range(number, at_least, SWEEP_MAX - 1);
}

static void what_serves_the_program_says_so(void **state)
{
    (void)state;
    sweep("cairn-relay", 10);
}

static void what_agrees_with_other_ranks_says_so(void **state)
{
    (void)state;
    sweep("cairn-form", 5);
}

static void a_relay_that_cannot_be_opened_leaves_nothing(void **state)
{
    (void)state;
    struct relay_world *r = relay_world_new(1);
    relay_close(r->relay);
    enum status st = ST_NO_MEMORY;
    int number = 0;
    for (; st == ST_NO_MEMORY && number < SWEEP_MAX; number++) {
        struct reason why = { "" };
        r->relay = NULL;
        fail_allocation(number, NULL);
        st = relay_open(&r->options, &r->relay, &why);
        assert_int_equal(st, allocation_failed() ? ST_NO_MEMORY : ST_OK);
    }
    assert_in_range(number, 2, SWEEP_MAX - 1);
    relay_world_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_relay_that_cannot_be_opened_leaves_nothing),
        cmocka_unit_test(what_serves_the_program_says_so),
        cmocka_unit_test(what_agrees_with_other_ranks_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
