/* Pipelines: the bits of a job on one worker that has all nodes, over numbers of stages, their
 * widths, schedules, and restores from one layout to the next. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/trainer/ranks_fixture.h"
#include "tests/unit/trainer/tiny_jobs.h"

static const struct ranks_job mlp = { tiny_mlp, { "data.augment=[]", "train.lanes=8", NULL } };
/* The embedding of this model, which the head reads, is in several chunks of a checkpoint. */
static const struct ranks_job gpt2 = { tiny_gpt2,
                                       { "model.width=96", "model.heads=4", "model.vocab=6000",
                                         "train.duration=3 steps", "train.global_batch=16",
                                         "train.lanes=8", "train.micro_batch=1", NULL } };
static const struct ranks_job resnet = { tiny_resnet, { "train.duration=2 steps", NULL } };

/* The thread sanitizer makes all of it ten times slower: a part shows the threads. */
#ifdef __SANITIZE_THREAD__
#define IS_SLOW true
#else
#define IS_SLOW false
#endif
#define FEW(ways) (IS_SLOW ? 3 : sizeof(ways) / sizeof((ways)[0]))

struct way {
    uint32_t widths[4];
    uint32_t shares[RANKS_MAX];
};

static struct ranks_result *run(const struct ranks_job *job, const struct way *way,
                                const char *const *sets, struct ranks_options *options)
{
    options->job = job;
    options->sets = sets;
    options->size = 0;
    options->stages = (struct stage_plan){ .count = 0 };
    for (uint32_t i = 0; i < 4 && way->widths[i] > 0; i++) {
        options->stages.of[options->stages.count++].workers = way->widths[i];
        options->size += way->widths[i];
    }
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
        assert_int_equal(x->eval_correct, y->eval_correct);
    }
}

/* Returns the chunks of a stage. */
static uint32_t chunks_of(const struct way *way, const char *const *sets)
{
    const bool interleaved = sets != NULL && strstr(sets[0], "interleaved") != NULL;
    return way->widths[1] == 0 ? 0 : 1 + interleaved;
}

static void check_ways(const struct ranks_job *job, const struct way *ways, size_t count,
                       const char *const *sets, const char *folder)
{
    static int number; /* of a folder */
    struct ranks_options whole = { .size = 1 };
    struct ranks_result *reference = run(job, &ways[0], sets, &whole);
    for (size_t i = 1; i < count; i++) {
        char dir[128];
        (void)snprintf(dir, sizeof(dir), "%s/way-%d", folder, number++);
        struct ranks_options options = { .save = dir };
        struct ranks_result *result = run(job, &ways[i], sets, &options);
        assert_string_equal(result->digest, reference->digest);
        same_rows(reference, result, 0);
        assert_int_equal(result->chunks, chunks_of(&ways[i], sets));
        free(result);
    }
    free(reference);
}

static void stages_change_no_bits_of_an_mlp(void **state)
{
    static const struct way ways[] = {
        { { 1 }, { 8 } },          { { 1, 1 }, { 8, 8 } },       { { 2, 2 }, { 4, 4, 4, 4 } },
        { { 1, 2 }, { 8, 5, 3 } }, { { 3, 1 }, { 4, 3, 1, 8 } }, { { 2, 3 }, { 6, 2, 3, 3, 2 } }
    };
    check_ways(&mlp, ways, sizeof(ways) / sizeof(ways[0]), NULL, *state);
}

static void stages_change_no_bits_of_a_tied_gpt2(void **state)
{
    static const struct way ways[] = { { { 1 }, { 8 } },
                                       { { 1, 1 }, { 8, 8 } },
                                       { { 1, 1, 1 }, { 8, 8, 8 } },
                                       { { 2, 1, 2 }, { 4, 4, 8, 5, 3 } },
                                       { { 1, 1, 1, 1 }, { 8, 8, 8, 8 } } };
    check_ways(&gpt2, ways, sizeof(ways) / sizeof(ways[0]), NULL, *state);
}

static void schedules_change_no_bits(void **state)
{
    static const char *const gpipe[] = { "parallel.schedule=gpipe", "parallel.pipeline=2",
                                         "workers.count=2", NULL };
    static const struct way ways[] = { { { 1 }, { 8 } },
                                       { { 1, 1 }, { 8, 8 } },
                                       { { 2, 2 }, { 5, 3, 5, 3 } } };
    check_ways(&gpt2, ways, sizeof(ways) / sizeof(ways[0]), gpipe, *state);
}

/* Second halves of backward come after others' first ones, of other lanes, too. */
static void split_backwards_change_no_bits(void **state)
{
    static const char *const split[] = { "parallel.schedule=zb-h1", "parallel.pipeline=2",
                                         "workers.count=2", NULL };
    static const char *const owns[] = { "parallel.schedule=zb-h1", "parallel.pipeline=2",
                                        "workers.count=2", "parallel.zero=1", NULL };
    static const char *const half[] = { "parallel.schedule=zb-h1", "parallel.pipeline=2",
                                        "workers.count=2", "train.precision=bf16", NULL };
    static const struct way ways[] = { { { 1 }, { 8 } },
                                       { { 1, 1 }, { 8, 8 } },
                                       { { 1, 1, 1 }, { 8, 8, 8 } },
                                       { { 2, 2 }, { 5, 3, 5, 3 } },
                                       { { 2, 1, 3 }, { 5, 3, 8, 3, 3, 2 } } };
    static const struct way images[] = { { { 1 }, { 3 } }, { { 2, 1, 1 }, { 2, 1, 3, 3 } } };
    check_ways(&gpt2, ways, FEW(ways), owns, *state);
    if (IS_SLOW)
        return;
    check_ways(&gpt2, ways, sizeof(ways) / sizeof(ways[0]), split, *state);
    check_ways(&gpt2, ways, sizeof(ways) / sizeof(ways[0]), half, *state);
    check_ways(&mlp, ways, 2, split, *state);
    check_ways(&resnet, images, sizeof(images) / sizeof(images[0]), split, *state);
    check_ways(&resnet, images, sizeof(images) / sizeof(images[0]), half, *state);
}

/* Stages with two parts of the model each; also with a last round of micro-batches that is short.
 * Ties and chunks of a checkpoint may be a stage's with itself. */
static void interleaved_stages_change_no_bits(void **state)
{
    static const struct ranks_job few_lanes = {
        tiny_gpt2,
        { "model.width=96", "model.heads=4", "model.vocab=6000", "train.duration=3 steps",
          "train.global_batch=8", "train.lanes=4", "train.micro_batch=1", NULL }
    };
    static const char *const plain[] = { "parallel.schedule=interleaved", "parallel.pipeline=2",
                                         "workers.count=2", NULL };
    static const char *const owns[] = { "parallel.schedule=interleaved", "parallel.pipeline=2",
                                        "workers.count=2", "parallel.zero=1", NULL };
    static const char *const half[] = { "parallel.schedule=interleaved", "parallel.pipeline=2",
                                        "workers.count=2", "train.precision=bf16", NULL };
    static const struct way ways[] = { { { 1 }, { 8 } },
                                       { { 1, 1 }, { 8, 8 } },
                                       { { 2, 2 }, { 4, 4, 4, 4 } },
                                       { { 1, 1, 1, 1 }, { 8, 8, 8, 8 } },
                                       { { 2, 1 }, { 5, 3, 8 } },
                                       { { 2, 2 }, { 5, 3, 2, 6 } },
                                       { { 1, 1, 1 }, { 8, 8, 8 } } };
    static const struct way lanes[] = { { { 1 }, { 4 } },
                                        { { 1, 1 }, { 4, 4 } },
                                        { { 2, 1 }, { 3, 1, 4 } },
                                        { { 1, 1, 1, 1 }, { 4, 4, 4, 4 } } };
    static const struct way images[] = { { { 1 }, { 3 } },
                                         { { 1, 1, 1 }, { 3, 3, 3 } },
                                         { { 2, 1, 1 }, { 2, 1, 3, 3 } } };
    check_ways(&gpt2, ways, FEW(ways), owns, *state);
    if (IS_SLOW)
        return;
    check_ways(&gpt2, ways, sizeof(ways) / sizeof(ways[0]), plain, *state);
    check_ways(&gpt2, ways, 3, half, *state);
    check_ways(&few_lanes, lanes, sizeof(lanes) / sizeof(lanes[0]), plain, *state);
    check_ways(&mlp, ways, 2, plain, *state);
    check_ways(&resnet, images, sizeof(images) / sizeof(images[0]), plain, *state);
    check_ways(&resnet, images, sizeof(images) / sizeof(images[0]), half, *state);
    check_ways(&resnet, images, sizeof(images) / sizeof(images[0]), owns, *state);
}

/* Stages of as many workers with other lanes: groups of batches that overlap would wait for each
 * other in a circle. */
static void an_evaluation_by_unlike_shares_comes_to_its_end(void **state)
{
    static const struct ranks_job skewed = { tiny_gpt2,
                                             { "data.eval.samples=40", "train.duration=2 steps",
                                               "train.global_batch=12", "train.lanes=6",
                                               "train.micro_batch=1", NULL } };
    static const char *const sets[] = { "parallel.schedule=interleaved", "parallel.pipeline=2",
                                        "workers.count=2", NULL };
    static const struct way ways[] = { { { 1 }, { 6 } }, { { 2, 2, 2 }, { 3, 3, 4, 2, 5, 1 } } };
    check_ways(&skewed, ways, sizeof(ways) / sizeof(ways[0]), sets, *state);
}

/* More than may be asked for early, of gradients of which two come for each micro-batch. */
static void hundreds_of_micro_batches_at_once_change_no_bits(void **state)
{
    static const struct ranks_job many = {
        tiny_gpt2,
        { "data.train.samples=640", "train.duration=2 steps", "train.global_batch=320",
          "train.lanes=8", "train.micro_batch=1", "model.width=24", "model.context=8",
          "parallel.schedule=gpipe", "parallel.pipeline=2", "workers.count=2", NULL }
    };
    static const struct way ways[] = { { { 1 }, { 8 } },
                                       { { 1, 1 }, { 8, 8 } },
                                       { { 2, 1 }, { 5, 3, 8 } } };
    check_ways(&many, ways, sizeof(ways) / sizeof(ways[0]), NULL, *state);
}

/* With one worker fewer in a stage there may be too many: that ends no job. */
static void too_many_micro_batches_at_once_come_one_by_one(void **state)
{
    static const struct ranks_job many = {
        tiny_mlp,
        { "data.augment=[]", "data.train.samples=1280", "train.duration=3 steps",
          "train.global_batch=1280", "train.lanes=8", "train.micro_batch=1",
          "parallel.schedule=gpipe", "parallel.pipeline=2", "workers.count=2", NULL }
    };
    static const struct way ways[] = { { { 1 }, { 8 } },
                                       { { 2, 2 }, { 4, 4, 4, 4 } },
                                       { { 2, 1 }, { 4, 4, 8 } } };
    check_ways(&many, ways, sizeof(ways) / sizeof(ways[0]), NULL, *state);
}

/* Each rank of a stage has the moments of its own part of that stage alone. */
static void owners_within_stages_change_no_bits(void **state)
{
    static const char *const owns[] = { "parallel.zero=1", NULL };
    static const struct way ways[] = { { { 1 }, { 8 } },
                                       { { 1, 1 }, { 8, 8 } },
                                       { { 2, 2 }, { 4, 4, 4, 4 } },
                                       { { 3, 2 }, { 4, 3, 1, 6, 2 } },
                                       { { 2, 1, 3 }, { 5, 3, 8, 3, 3, 2 } } };
    check_ways(&gpt2, ways, sizeof(ways) / sizeof(ways[0]), owns, *state);
}

static void stages_change_no_bits_of_other_optimizers(void **state)
{
    static const char *const muon[] = { "train.optimizer={name: muon, lr: 0.01}", "train.ema=0.9",
                                        NULL };
    static const char *const lamb[] = { "train.optimizer={name: lamb, lr: 0.01}", "train.ema=0.9",
                                        "parallel.zero=1", NULL };
    static const struct way ways[] = { { { 1 }, { 8 } },
                                       { { 2, 1 }, { 4, 4, 8 } },
                                       { { 3, 2 }, { 4, 3, 1, 6, 2 } } };
    check_ways(&gpt2, ways, sizeof(ways) / sizeof(ways[0]), muon, *state);
    check_ways(&gpt2, ways, sizeof(ways) / sizeof(ways[0]), lamb, *state);
}

static void owners_of_batch_statistics_change_no_bits(void **state)
{
    if (IS_SLOW)
        skip();
    static const char *const owns[] = { "parallel.zero=1", NULL };
    static const struct way ways[] = { { { 1 }, { 3 } }, { { 2, 2 }, { 2, 1, 1, 2 } } };
    check_ways(&resnet, ways, sizeof(ways) / sizeof(ways[0]), owns, *state);
}

static void stages_change_no_bits_of_half_precision(void **state)
{
    static const char *const half[] = { "train.precision=bf16", NULL };
    static const struct way ways[] = { { { 1 }, { 8 } }, { { 1, 2, 1 }, { 8, 4, 4, 8 } } };
    check_ways(&gpt2, ways, sizeof(ways) / sizeof(ways[0]), half, *state);
}

static void stages_change_no_bits_of_batch_statistics(void **state)
{
    static const struct way ways[] = { { { 1 }, { 3 } },
                                       { { 1, 1 }, { 3, 3 } },
                                       { { 2, 1, 1 }, { 2, 1, 3, 3 } } };
    check_ways(&resnet, ways, sizeof(ways) / sizeof(ways[0]), NULL, *state);
}

/* A checkpoint of stages is one as any other: from each layout to the next. */
static void a_restored_job_may_change_its_layout(void **state)
{
    static const struct way ways[] = { { { 1, 1 }, { 8, 8 } },
                                       { { 2 }, { 5, 3 } },
                                       { { 1, 1, 1 }, { 8, 8, 8 } } };
    static const struct way alone = { { 1 }, { 8 } };
    struct ranks_options whole = { .size = 1 };
    struct ranks_result *quiet = run(&gpt2, &alone, NULL, &whole);
    char dir[2][128] = { "", "" };
    for (uint64_t step = 0; step < 3; step++) {
        (void)snprintf(dir[step % 2], sizeof(dir[0]), "%s/at-%d", (char *)*state, (int)step + 1);
        struct ranks_options options = { .stop_at = step + 1, .save = dir[step % 2] };
        if (step > 0) {
            options.restore = dir[(step + 1) % 2];
            options.restore_step = step;
            options.parts = true;
        }
        struct ranks_result *result = run(&gpt2, &ways[step], NULL, &options);
        if (step == 2)
            assert_string_equal(result->digest, quiet->digest);
        free(result);
    }
    free(quiet);
}

static void what_cannot_be_cut_is_refused_with_the_number_that_can(void **state)
{
    struct ranks_options options = { .job = &mlp, .size = 8 };
    (void)state;
    for (uint32_t i = 0; i < 8; i++) {
        options.stages.of[options.stages.count++].workers = 1;
        options.shares[i] = 8;
    }
    struct ranks_result *result = ranks_new(&options);
    assert_int_equal(result->st, ST_CONFIG);
    assert_non_null(strstr(result->reason.text, "stages at most, not 8"));
    free(result);
}

#define IN_FOLDER(name)                                                                            \
    cmocka_unit_test_setup_teardown(name, ranks_make_folder, ranks_remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(stages_change_no_bits_of_an_mlp),
        IN_FOLDER(stages_change_no_bits_of_a_tied_gpt2),
        IN_FOLDER(schedules_change_no_bits),
        IN_FOLDER(split_backwards_change_no_bits),
        IN_FOLDER(interleaved_stages_change_no_bits),
        IN_FOLDER(an_evaluation_by_unlike_shares_comes_to_its_end),
        IN_FOLDER(hundreds_of_micro_batches_at_once_change_no_bits),
        IN_FOLDER(too_many_micro_batches_at_once_come_one_by_one),
        IN_FOLDER(owners_within_stages_change_no_bits),
        IN_FOLDER(stages_change_no_bits_of_other_optimizers),
        IN_FOLDER(owners_of_batch_statistics_change_no_bits),
        IN_FOLDER(stages_change_no_bits_of_half_precision),
        IN_FOLDER(stages_change_no_bits_of_batch_statistics),
        IN_FOLDER(a_restored_job_may_change_its_layout),
        cmocka_unit_test(what_cannot_be_cut_is_refused_with_the_number_that_can),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
