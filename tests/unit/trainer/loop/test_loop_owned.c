/* Moments that ranks own (parallel.zero: 1): the bits of a job whose ranks have all, over numbers
 * of workers, shares, and restores from one way to the other. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/trainer/ranks_fixture.h"
#include "tests/unit/trainer/tiny_jobs.h"

/* Large enough for several owners: 4 units of 1 MiB; the GPT-2's embedding, which its head reads as
 * well, is in two. */
static const struct ranks_job mlp = {
    tiny_mlp, { "model.hidden=1200", "train.duration=5 steps", "data.augment=[]", NULL }
};
static const struct ranks_job gpt2 = { tiny_gpt2,
                                       { "model.width=160", "model.heads=4", "model.vocab=2500",
                                         "train.duration=4 steps", "train.global_batch=16",
                                         "train.lanes=8", NULL } };
static const struct ranks_job resnet = { tiny_resnet, { NULL } };

struct way {
    const char *zero;
    uint32_t size;
    uint32_t shares[RANKS_MAX];
};

static struct ranks_result *run(const struct ranks_job *job, const struct way *way,
                                const char *extra, struct ranks_options *options)
{
    char zero[32];
    (void)snprintf(zero, sizeof(zero), "parallel.zero=%s", way->zero);
    const char *sets[] = { zero, extra, NULL };
    options->job = job;
    options->sets = sets;
    options->size = way->size;
    memcpy(options->shares, way->shares, sizeof(options->shares));
    return ranks_new_well(options);
}

static void same_rows(const struct ranks_result *a, const struct ranks_result *b, size_t from)
{
    assert_int_equal(a->row_count, from + b->row_count);
    for (size_t i = 0; i < b->row_count; i++) {
        const struct session_row *x = &a->rows[from + i], *y = &b->rows[i];
        assert_memory_equal(&x->loss, &y->loss, sizeof(x->loss));
        assert_memory_equal(&x->grad_norm, &y->grad_norm, sizeof(x->grad_norm));
        assert_memory_equal(&x->eval_loss, &y->eval_loss, sizeof(x->eval_loss));
    }
}

/* lanes: of the worker that has all. */
static void check_ways(const struct ranks_job *job, uint32_t lanes, const struct way *ways,
                       size_t count, const char *extra, const char *folder)
{
    struct ranks_options whole = { .size = 1 };
    const struct way alone = { "0", 1, { lanes } };
    struct ranks_result *reference = run(job, &alone, extra, &whole);
    for (size_t i = 0; i < count; i++) {
        char dir[128];
        (void)snprintf(dir, sizeof(dir), "%s/way-%zu", folder, i);
        struct ranks_options options = { .save = dir };
        struct ranks_result *result = run(job, &ways[i], extra, &options);
        assert_string_equal(result->digest, reference->digest);
        same_rows(reference, result, 0);
        free(result);
    }
    free(reference);
}

static void owners_change_no_bits_of_an_mlp(void **state)
{
    static const struct way ways[] = {
        { "1", 1, { 8 } }, { "1", 2, { 4, 4 } }, { "1", 3, { 5, 2, 1 } }, { "1", 4, { 1, 1, 4, 2 } }
    };
    check_ways(&mlp, 8, ways, 4, NULL, *state);
}

static void owners_change_no_bits_of_adamw(void **state)
{
    static const struct way ways[] = { { "1", 2, { 5, 3 } }, { "1", 3, { 2, 2, 4 } } };
    check_ways(&mlp, 8, ways, 2,
               "train.optimizer={name: adamw, lr: 0.01, weight_decay: 0.1, "
               "no_decay: [bias]}",
               *state);
}

static void owners_change_no_bits_of_lion_with_an_average(void **state)
{
    static const struct way ways[] = { { "1", 2, { 5, 3 } }, { "1", 3, { 2, 2, 4 } } };
    check_ways(&mlp, 8, ways, 2,
               "train={ema: 0.9, optimizer: {name: lion, lr: 0.001, weight_decay: 0.1}, "
               "duration: 3 steps, global_batch: 16, lanes: 8}",
               *state);
}

/* LAMB's norms are of whole tensors, which owners have parts of. */
static void owners_change_no_bits_of_lamb_with_an_average(void **state)
{
    static const struct way ways[] = { { "1", 2, { 5, 3 } }, { "1", 3, { 2, 2, 4 } } };
    check_ways(&gpt2, 8, ways, 2,
               "train={ema: 0.9, optimizer: {name: lamb, lr: 0.01}, duration: 3 steps, "
               "global_batch: 16, lanes: 8}",
               *state);
}

static void owners_change_no_bits_of_a_tied_gpt2(void **state)
{
    static const struct way ways[] = { { "1", 2, { 4, 4 } }, { "1", 3, { 5, 2, 1 } } };
    check_ways(&gpt2, 8, ways, 2, NULL, *state);
}

static void owners_change_no_bits_of_half_precision(void **state)
{
    static const struct way ways[] = { { "1", 3, { 3, 4, 1 } } };
    check_ways(&gpt2, 8, ways, 1, "train.precision=bf16", *state);
}

static void owners_change_no_bits_of_batch_statistics(void **state)
{
    static const struct way ways[] = { { "1", 2, { 2, 1 } } };
    check_ways(&resnet, 3, ways, 1, "train.duration=2 steps", *state);
}

/* A checkpoint of owners is one as any other: from each way to each, and on. */
static void a_restored_job_may_change_its_owners(void **state)
{
    static const struct way ways[] = { { "1", 3, { 3, 3, 2 } },
                                       { "0", 2, { 4, 4 } },
                                       { "1", 2, { 7, 1 } },
                                       { "1", 4, { 2, 2, 2, 2 } } };
    const struct way alone = { "0", 1, { 8 } };
    struct ranks_options whole = { .size = 1 };
    struct ranks_result *quiet = run(&gpt2, &alone, NULL, &whole);
    char dir[2][128] = { "", "" };
    for (uint64_t step = 0; step < 4; step++) {
        (void)snprintf(dir[step % 2], sizeof(dir[0]), "%s/at-%d", (char *)*state, (int)step + 1);
        struct ranks_options options = { .stop_at = step + 1, .save = dir[step % 2] };
        if (step > 0) {
            options.restore = dir[(step + 1) % 2];
            options.restore_step = step;
            options.parts = true;
        }
        struct ranks_result *result = run(&gpt2, &ways[step], NULL, &options);
        if (step == 3)
            assert_string_equal(result->digest, quiet->digest);
        free(result);
    }
    free(quiet);
}

/* Sums stay with their owners and parameters go to all: the bytes of an all-reduce. */
static void owners_send_no_more_bytes(void **state)
{
    const struct way whole = { "0", 3, { 4, 2, 2 } }, owned = { "1", 3, { 4, 2, 2 } };
    char dir[128];
    (void)snprintf(dir, sizeof(dir), "%s/bytes", (char *)*state);
    struct ranks_options options = { .save = dir }, other = { .size = 3 };
    struct ranks_result *a = run(&mlp, &owned, NULL, &options);
    struct ranks_result *b = run(&mlp, &whole, NULL, &other);
    assert_true(a->sent_bytes > 0);
    assert_true(fabs((double)a->sent_bytes / (double)b->sent_bytes - 1) < 0.02);
    free(a);
    free(b);
}

static void an_overflow_is_seen_by_all_owners(void **state)
{
    const struct way alone = { "0", 1, { 8 } }, owned = { "1", 3, { 4, 2, 2 } };
    char dir[128];
    (void)snprintf(dir, sizeof(dir), "%s/overflow", (char *)*state);
    struct ranks_options whole = { .size = 1 }, options = { .save = dir };
    const char *bad = "train.optimizer.lr=1000";
    char zero[] = "parallel.zero=1";
    const char *sets[] = { zero, bad, "train.clip_norm=0", NULL };
    options.job = &mlp;
    options.sets = sets;
    options.size = owned.size;
    memcpy(options.shares, owned.shares, sizeof(options.shares));
    struct ranks_result *result = ranks_new(&options);
    whole.job = &mlp;
    whole.sets = sets + 1;
    memcpy(whole.shares, alone.shares, sizeof(whole.shares));
    struct ranks_result *other = ranks_new(&whole);
    assert_int_equal(result->st, other->st);
    assert_int_equal(result->step, other->step);
    free(result);
    free(other);
}

#define IN_FOLDER(name)                                                                            \
    cmocka_unit_test_setup_teardown(name, ranks_make_folder, ranks_remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(owners_change_no_bits_of_an_mlp),
        IN_FOLDER(owners_change_no_bits_of_adamw),
        IN_FOLDER(owners_change_no_bits_of_lion_with_an_average),
        IN_FOLDER(owners_change_no_bits_of_lamb_with_an_average),
        IN_FOLDER(owners_change_no_bits_of_a_tied_gpt2),
        IN_FOLDER(owners_change_no_bits_of_half_precision),
        IN_FOLDER(owners_change_no_bits_of_batch_statistics),
        IN_FOLDER(a_restored_job_may_change_its_owners),
        IN_FOLDER(owners_send_no_more_bytes),
        IN_FOLDER(an_overflow_is_seen_by_all_owners),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
