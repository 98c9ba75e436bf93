/* The thread that reads a checkpoint back: which files, what it says, that it can be stopped. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "session/readback/readback.h"
#include "tests/test.h"
#include "tests/unit/checkpoint/store_fixture.h"

#define RANKS   3
#define LONG_MS 60000

struct listener {
    struct store_fixture *f;
    struct readback *readback;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int done, heard;
    struct readback_news news; /* the last */
};

static void hear(void *arg, const struct readback_news *news)
{
    struct listener *l = arg;
    (void)pthread_mutex_lock(&l->mutex);
    l->news = *news;
    l->heard++;
    l->done += news->done;
    (void)pthread_cond_broadcast(&l->changed);
    (void)pthread_mutex_unlock(&l->mutex);
}

static int set_up(void **state)
{
    struct listener *l = calloc(1, sizeof(*l));
    assert_non_null(l);
    l->f = store_fixture_new(STORE_IN_FOLDER, 200000);
    store_fixture_save(l->f, RANKS, NULL);
    (void)pthread_mutex_init(&l->mutex, NULL);
    clock_cond_init(&l->changed);
    const struct readback_options options = { .io = l->f->io, .news = hear, .arg = l };
    assert_int_equal(readback_new(&options, &l->readback), ST_OK);
    *state = l;
    return 0;
}

static int tear_down(void **state)
{
    struct listener *l = *state;
    readback_free(l->readback);
    store_fixture_free(l->f);
    (void)pthread_cond_destroy(&l->changed);
    (void)pthread_mutex_destroy(&l->mutex);
    free(l);
    return 0;
}

static struct readback_order order_of(const struct listener *l, uint32_t rank, uint32_t ranks)
{
    struct readback_order order = { .step = 40 + rank,
                                    .generation = 2,
                                    .shards = RANKS,
                                    .rank = rank,
                                    .ranks = ranks,
                                    .bytes = 1000000 };
    (void)snprintf(order.dir, sizeof(order.dir), "%s", l->f->dir);
    return order;
}

/* What the order came to. */
static struct readback_news carry_out(struct listener *l, const struct readback_order *order)
{
    const int before = l->done;
    const int64_t end_ns = clock_mono_ns() + LONG_MS * INT64_C(1000000);
    readback_start(l->readback, order);
    (void)pthread_mutex_lock(&l->mutex);
    while (l->done == before)
        assert_true(clock_cond_wait(&l->changed, &l->mutex, end_ns));
    struct readback_news news = l->news;
    (void)pthread_mutex_unlock(&l->mutex);
    return news;
}

static void every_rank_reads_another_ones_file(void **state)
{
    struct listener *l = *state;
    char path[LIMIT_PATH];
    store_fixture_shard(l->f->dir, 0, RANKS, path);
    store_fixture_flip(l->f, path, 4096 + 104 + 50, 1);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        const struct readback_order order = order_of(l, rank, RANKS);
        const struct readback_news news = carry_out(l, &order);
        assert_int_equal(news.step, order.step);
        assert_int_equal(news.generation, 2);
        assert_int_equal(news.shard, (rank + RANKS - 1) % RANKS);
        assert_int_equal(news.status, rank == 1 ? ST_CORRUPT : ST_OK);
        assert_int_equal(strncmp(news.why.text, "shard-00000-of-00003.cairn: ", 28) == 0,
                         rank == 1);
        assert_true(news.bytes > 0);
    }
}

static void one_alone_reads_all(void **state)
{
    struct listener *l = *state;
    const struct readback_order order = order_of(l, 0, 1);
    const uint64_t all = carry_out(l, &order).bytes;
    const struct readback_order part = order_of(l, 1, RANKS);
    assert_true(carry_out(l, &part).bytes < all);
}

static void what_is_not_there_says_so(void **state)
{
    struct listener *l = *state;
    struct readback_order order = order_of(l, 0, 1);
    (void)snprintf(order.dir, sizeof(order.dir), "/proc/none/step-000000000040.g2");
    const struct readback_news news = carry_out(l, &order);
    assert_int_equal(news.status, ST_NOT_FOUND);
    assert_true(news.why.text[0] != '\0');
}

static void a_later_order_takes_its_place_and_closing_waits_for_none(void **state)
{
    struct listener *l = *state;
    struct readback_order slow = order_of(l, 0, 1);
    slow.spread_ms = UINT64_C(1000000000); /* eleven days */
    readback_start(l->readback, &slow);
    const struct readback_order next = order_of(l, 1, RANKS);
    const struct readback_news news = carry_out(l, &next);
    assert_int_equal(news.step, next.step);
    assert_int_equal(l->done, 1);
    readback_start(l->readback, &slow);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_rank_reads_another_ones_file),
        TEST(one_alone_reads_all),
        TEST(what_is_not_there_says_so),
        TEST(a_later_order_takes_its_place_and_closing_waits_for_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
