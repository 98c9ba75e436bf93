/*
 * Values that are computed again in the backward pass: the bits of a plan that keeps them all, in
 * one piece, in stages, recorded; and how much less memory that takes.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/trainer/noted_kernels.h"
#include "tests/unit/trainer/tape/recorder.h"
#include "tests/unit/trainer/tape/stage_runs.h"
#include "tests/unit/trainer/training.h"
#include "trainer/tape/tape_cuts.h"

struct model_case {
    const char *arch;
    int64_t side, layers, micro; /* text models: side is the context */
    float dropout;
    enum math math;
    enum amp amp;
};

static const struct model_case model_cases[] = {
    { .arch = "mlp", .side = 8, .micro = 4 },
    { .arch = "lenet", .side = 12, .micro = 5 },
    { .arch = "resnet18", .side = 8, .micro = 4 },
    { .arch = "gpt2", .side = 12, .layers = 4, .micro = 3 },
    { .arch = "gpt2", .side = 12, .layers = 4, .micro = 3, .dropout = 0.25f },
    { .arch = "resnet18", .side = 8, .micro = 4, .math = MATH_BF16 },
    { .arch = "gpt2", .side = 12, .layers = 4, .micro = 3, .dropout = 0.25f, .math = MATH_BF16 },
    { .arch = "gpt2", .side = 12, .layers = 4, .micro = 3, .math = MATH_BF16, .amp = AMP_O2 },
};
#define MODEL_CASES (sizeof(model_cases) / sizeof(model_cases[0]))

static const enum plan_recompute modes[] = { PLAN_RECOMPUTE_SELECTIVE, PLAN_RECOMPUTE_FULL };
#define MODES (sizeof(modes) / sizeof(modes[0]))

static struct training_options options_of(const struct model_case *model,
                                          enum plan_recompute recompute)
{
    return (struct training_options){
        .arch = model->arch,
        .side = model->side,
        .hidden = 24,
        .layers = model->layers,
        .heads = 2,
        .embed = 32,
        .context = model->side,
        .vocab = 41,
        .dropout = model->dropout,
        .math = model->math,
        .amp = model->amp,
        .recompute = recompute,
        .micro = model->micro,
        .seed = 11,
        .poison = true,
        .optimizer = { .kind = JOBSPEC_OPTIMIZER_SGD, .momentum = 0.9f, .weight_decay = 5e-4f },
    };
}

struct outcome {
    float *params, *lane;
    size_t param_bytes, lane_bytes, arena_bytes;
    double eval, flops_again, flops_forward;
};

static struct outcome three_steps(const struct training_options *options)
{
    struct training t;
    training_open(&t, options);
    for (uint32_t step = 0; step < 3; step++) {
        const uint32_t first = step * 4 * (uint32_t)options->micro;
        (void)training_step(&t, first, 2, 2, 0.05, step + 1);
    }
    struct outcome out = { .param_bytes = t.layout.param_count * sizeof(float),
                           .lane_bytes = t.layout.count * sizeof(float),
                           .arena_bytes = plan_sizes(t.plan)->arena_bytes,
                           .flops_again = plan_sizes(t.plan)->flops_again,
                           .flops_forward = plan_sizes(t.plan)->flops_forward,
                           .eval = training_eval(&t) };
    out.params = malloc(out.param_bytes);
    out.lane = malloc(out.lane_bytes);
    assert_non_null(out.params);
    assert_non_null(out.lane);
    memcpy(out.params, optimizer_params(t.optimizer), out.param_bytes);
    memcpy(out.lane, t.lane, out.lane_bytes);
    training_close(&t);
    return out;
}

static void free_outcome(struct outcome *outcome)
{
    free(outcome->params);
    free(outcome->lane);
}

/* Statistics are in the lane's vector: counted twice, they would differ. */
static void assert_same_bits(const struct outcome *left, const struct outcome *right)
{
    assert_int_equal(left->param_bytes, right->param_bytes);
    assert_memory_equal(left->params, right->params, left->param_bytes);
    assert_memory_equal(left->lane, right->lane, left->lane_bytes);
    assert_true(left->eval == right->eval);
}

static void all_modes_give_the_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODEL_CASES; i++) {
        const struct training_options keeps = options_of(&model_cases[i], PLAN_RECOMPUTE_NONE);
        struct outcome kept = three_steps(&keeps);
        assert_true(kept.flops_again == 0);
        for (size_t m = 0; m < MODES; m++) {
            const struct training_options again = options_of(&model_cases[i], modes[m]);
            struct outcome other = three_steps(&again);
            assert_same_bits(&kept, &other);
            assert_true(other.arena_bytes <= kept.arena_bytes);
            assert_true(other.flops_again < other.flops_forward);
            free_outcome(&other);
        }
        free_outcome(&kept);
    }
}

/* ---- stages ---- */

/* Cuts a tape into thirds, at the first cut from there on. */
static int cut_thirds(const struct tape *tape, int *first)
{
    int stages = 1;
    first[0] = 0;
    for (int n = 1; n < tape->node_count && stages < 3; n++) {
        if (tape_is_cut(tape, n) && n >= stages * tape->node_count / 3)
            first[stages++] = n;
    }
    return stages;
}

static void assert_stages(const struct model_case *model, enum plan_recompute mode)
{
    const struct training_options options = options_of(model, PLAN_RECOMPUTE_NONE);
    struct training t;
    struct stage_inputs inputs;
    int first[STAGE_RUNS_MAX];
    training_open(&t, &options);
    stage_inputs_open(&inputs, &t);
    float *whole = stage_whole_lane(&t, &inputs);
    const int stages = cut_thirds(t.tape, first);
    t.options.recompute = mode;
    for (enum stage_order order = STAGE_GPIPE; order <= STAGE_SPLIT; order++)
        stage_assert_lane(&t, &inputs, first, stages, order, 2, whole);
    stage_assert_eval(&t, &inputs, first, stages);
    free(whole);
    stage_inputs_close(&inputs, &t);
    training_close(&t);
}

static void stages_that_compute_again_give_the_bits_of_the_whole(void **state)
{
    (void)state;
    static const size_t staged[] = { 1, 2, 4 }; /* an image model, one with statistics, dropout */
    for (size_t i = 0; i < sizeof(staged) / sizeof(staged[0]); i++) {
        for (size_t m = 0; m < MODES; m++)
            assert_stages(&model_cases[staged[i]], modes[m]);
    }
}

/* ---- recordings ---- */

static void played_passes_compute_again_too(void **state)
{
    (void)state;
    const struct model_case *model = &model_cases[2];
    const struct training_options keeps = options_of(model, PLAN_RECOMPUTE_NONE);
    struct outcome kept = three_steps(&keeps);
    for (size_t m = 0; m < MODES; m++) {
        struct training_options plays = options_of(model, modes[m]);
        plays.table = recorder_open(RECORDER_GRAPHS_MAX);
        plays.graphs = true;
        plays.bucket = (size_t)16 * PIECE_ELEMENTS;
        struct outcome played = three_steps(&plays);
        assert_true(recorder.replays > 0);
        assert_true(played.flops_again > 0);
        assert_memory_equal(kept.params, played.params, kept.param_bytes);
        assert_true(kept.eval == played.eval);
        free_outcome(&played);
    }
    free_outcome(&kept);
}

/* ---- memory ---- */

static struct plan_sizes sizes_of(const struct model_options *model, int64_t batch,
                                  enum plan_recompute recompute)
{
    struct tape *tape = NULL;
    struct backend *backend = NULL;
    struct plan *plan = NULL;
    const struct backend_table *table = backend_cpu();
    assert_int_equal(model_build(model, &tape), ST_OK);
    assert_int_equal(table->open(&(struct backend_options){ .threads = 1 }, &backend), ST_OK);
    const struct plan_options options = {
        .table = table, .backend = backend, .batch = batch, .training = true, .recompute = recompute
    };
    assert_int_equal(plan_new(tape, &options, &plan), ST_OK);
    const struct plan_sizes sizes = *plan_sizes(plan);
    plan_free(plan);
    table->close(backend);
    tape_free(tape);
    return sizes;
}

static void full_takes_less_than_a_third_of_deep_models(void **state)
{
    (void)state;
    const struct model_options resnet = {
        .arch = "resnet152", .channels = 3, .height = 64, .width = 64, .classes = 10
    };
    const struct model_options gpt2 = {
        .arch = "gpt2", .layers = 24, .heads = 4, .embed = 128, .context = 64, .vocab = 64
    };
    const struct model_options *models[] = { &resnet, &gpt2 };
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        const struct plan_sizes none = sizes_of(models[i], 4, PLAN_RECOMPUTE_NONE);
        const struct plan_sizes selective = sizes_of(models[i], 4, PLAN_RECOMPUTE_SELECTIVE);
        const struct plan_sizes full = sizes_of(models[i], 4, PLAN_RECOMPUTE_FULL);
        print_message("%s: arena %.1f MiB, selective %.1f, full %.1f; again %.2f GFLOP of %.2f\n",
                      models[i]->arch, (double)none.arena_bytes / (1 << 20),
                      (double)selective.arena_bytes / (1 << 20),
                      (double)full.arena_bytes / (1 << 20), full.flops_again / 1e9,
                      full.flops_forward / 1e9);
        assert_true(selective.arena_bytes < none.arena_bytes);
        assert_true(full.arena_bytes * 3 < none.arena_bytes);
        assert_true(selective.flops_again * 20 < selective.flops_forward);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_modes_give_the_same_bits),
        cmocka_unit_test(stages_that_compute_again_give_the_bits_of_the_whole),
        cmocka_unit_test(played_passes_compute_again_too),
        cmocka_unit_test(full_takes_less_than_a_third_of_deep_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
