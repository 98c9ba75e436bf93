/*
 * What a plan records of its passes and plays again, and what it tells kernels and updates.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/trainer/noted_kernels.h"
#include "tests/unit/trainer/tape/recorder.h"
#include "tests/unit/trainer/tape/stage_runs.h"
#include "tests/unit/trainer/training.h"
#include "trainer/tape/tape_cuts.h"

/* ---- cases ---- */

#define ARCH   "resnet18" /* several buckets, values read twice, statistics */
#define LANES  2
#define MICROS 3

static void open_case(struct training *t, const struct backend_table *table, bool graphs)
{
    struct training_options options = {
        .arch = ARCH,
        .side = 8,
        .micro = 2,
        .seed = 7,
        .poison = true,
        .table = table,
        .graphs = graphs,
        .bucket = (size_t)16 * PIECE_ELEMENTS,
        .optimizer = { .kind = JOBSPEC_OPTIMIZER_SGD, .momentum = 0.9f, .weight_decay = 5e-4f },
    };
    training_open(t, &options);
}

struct outcome {
    float *params;
    size_t bytes;
    double eval;
};

static struct outcome steps(const struct backend_table *table, bool graphs)
{
    struct training t;
    open_case(&t, table, graphs);
    for (uint32_t step = 0; step < 3; step++)
        (void)training_step(&t, step * 12, LANES, MICROS, 0.05, step + 1);
    struct outcome out = { .bytes = t.layout.param_count * sizeof(float) };
    for (int i = 0; i < 3; i++)
        out.eval = training_eval(&t);
    out.params = malloc(out.bytes);
    assert_non_null(out.params);
    memcpy(out.params, optimizer_params(t.optimizer), out.bytes);
    training_close(&t);
    return out;
}

static void same_as_without(const struct backend_table *table)
{
    struct outcome with = steps(table, true);
    struct outcome without = steps(NULL, false);
    assert_memory_equal(with.params, without.params, with.bytes);
    assert_true(with.eval == without.eval);
    free(with.params);
    free(without.params);
}

static void played_passes_give_the_bits_of_passes_that_ran(void **state)
{
    (void)state;
    same_as_without(recorder_open(RECORDER_GRAPHS_MAX));
    assert_true(recorder.graph_count > 4);
    assert_true(recorder.replays > 2 * recorder.graph_count);
}

static void copies_of_parameters_are_made_in_one_call(void **state)
{
    (void)state;
    struct training t;
    open_case(&t, recorder_open(RECORDER_GRAPHS_MAX), true); /* refreshed once */
    const int kernels = recorder.refreshed;
    assert_true(kernels > 1);
    for (int again = 0; again < 3; again++) {
        assert_int_equal(plan_refresh(t.plan, optimizer_params(t.optimizer)), ST_OK);
        assert_int_equal(recorder.refreshed, kernels);
        assert_int_equal(recorder.replays, again + 1);
    }
    assert_int_equal(recorder.graph_count, 1);
    training_close(&t);
}

/* Prepares as a device does: linear keeps its weights as they are, and so, here, does embedding. */
static enum status copying_prepare(struct backend *backend, const struct op_spec *spec,
                                   struct kernel **out_kernel, struct kernel_info *out_info)
{
    enum status st = noted_prepare(backend, spec, out_kernel, out_info);
    out_info->caches_copies = true;
    out_info->cached[0].is = true;
    out_info->cached[0].dtype = DTYPE_BF16;
    if (out_info->cache_bytes == 0)
        out_info->cache_bytes = 1;
    return st;
}

/* What two kernels keep copies of, as GPT-2's tied embedding, an update leaves to them. */
static void an_update_may_write_copies_that_one_kernel_keeps(void **state)
{
    (void)state;
    const struct training_options options = { .arch = "gpt2",
                                              .layers = 2,
                                              .heads = 2,
                                              .embed = 8,
                                              .context = 8,
                                              .vocab = 16,
                                              .micro = 2,
                                              .table = recorder_open(RECORDER_GRAPHS_MAX),
                                              .graphs = true,
                                              .optimizer = { .kind = JOBSPEC_OPTIMIZER_ADAMW } };
    struct training t;
    struct param_copy copies[64];
    recorder.table.op[OP_LINEAR].prepare = copying_prepare;
    recorder.table.op[OP_EMBEDDING].prepare = copying_prepare;
    training_open(&t, &options);
    assert_true(t.tape->param_count <= 64);
    const size_t count = plan_copies(t.plan, copies);
    assert_int_equal(count, 2 * 4); /* two of attention, two of the MLP in each layer */
    for (size_t i = 0; i < count; i++) {
        assert_true(copies[i].first >=
                    (i == 0 ? 16 * 8 : copies[i - 1].first + copies[i - 1].count));
        assert_int_equal(copies[i].dtype, DTYPE_BF16);
        assert_non_null(copies[i].out);
    }
    const int all = recorder.refreshed;
    recorder.refreshed = 0;
    assert_int_equal(plan_refresh_rest(t.plan, optimizer_params(t.optimizer)), ST_OK);
    assert_int_equal(recorder.refreshed, all - (int)count);
    training_close(&t);
}

static enum status giving_prepare(struct backend *backend, const struct op_spec *spec,
                                  struct kernel **out_kernel, struct kernel_info *out_info)
{
    enum status st = noted_prepare(backend, spec, out_kernel, out_info);
    out_info->din_in_forward = spec->dying_in0;
    return st;
}

/* A device's loss reads logits once, where it may write their gradient in the forward pass. */
static void the_loss_alone_is_told_where_its_gradient_goes(void **state)
{
    (void)state;
    static const char *const archs[] = { "resnet18", "gpt2" };
    for (size_t i = 0; i < sizeof(archs) / sizeof(archs[0]); i++) {
        struct training t;
        const struct training_options options = { .arch = archs[i],
                                                  .side = 8,
                                                  .layers = 1,
                                                  .heads = 2,
                                                  .embed = 8,
                                                  .context = 8,
                                                  .vocab = 16,
                                                  .micro = 2,
                                                  .table = recorder_open(RECORDER_GRAPHS_MAX),
                                                  .optimizer = { .kind =
                                                                     JOBSPEC_OPTIMIZER_ADAMW } };
        for (int op = 0; op < OP_COUNT; op++)
            recorder.table.op[op].prepare = giving_prepare;
        training_open(&t, &options);
        training_fill(&t, 0);
        training_micro(&t, false);
        assert_int_equal(recorder.gave, 1);
        (void)training_eval(&t);
        assert_int_equal(recorder.gave, 1);
        training_close(&t);
    }
}

static void a_backend_that_is_full_runs_the_rest_as_usual(void **state)
{
    (void)state;
    for (int room = 0; room < 6; room++) {
        same_as_without(recorder_open(room));
        assert_int_equal(recorder.graph_count, room);
    }
}

static void a_backend_that_records_nothing_runs_everything(void **state)
{
    (void)state;
    same_as_without(backend_cpu());
}

static void each_piece_is_recorded_once_for_writing_and_once_for_adding(void **state)
{
    (void)state;
    struct training t;
    open_case(&t, recorder_open(RECORDER_GRAPHS_MAX), true);
    int pieces = 0;
    for (int repeat = 0; repeat < 4; repeat++) {
        int graphs = recorder.graph_count;
        int ran = recorder.ran;
        training_fill(&t, 0);
        training_micro(&t, false);
        if (repeat == 0) {
            assert_int_equal(recorder.graph_count, 0); /* the first time runs */
            assert_true(recorder.ran > 0);
        } else if (repeat == 1) {
            pieces = recorder.graph_count;
            assert_int_equal(pieces, 2); /* nobody is told what is final: forward and backward */
            assert_int_equal(recorder.ran, ran);
        } else {
            assert_int_equal(recorder.graph_count, graphs);
            assert_int_equal(recorder.ran, ran);
        }
    }
    for (int repeat = 0; repeat < 3; repeat++)
        training_micro(&t, true);
    assert_int_equal(recorder.graph_count, 2 * pieces);
    training_close(&t);
}

struct final_log {
    const struct training *t;
    float *copy;
    size_t begin;
    int calls;
};

static void on_final(void *arg, size_t first, size_t count)
{
    struct final_log *log = arg;
    assert_false(recorder.recording); /* who is told may use the stream */
    assert_int_equal(first + count, log->begin);
    memcpy(log->copy + first, log->t->lane + first, count * sizeof(float));
    log->begin = first;
    log->calls++;
}

static void segments_are_called_final_between_played_pieces(void **state)
{
    (void)state;
    struct training t;
    open_case(&t, recorder_open(RECORDER_GRAPHS_MAX), true);
    assert_true(t.bucket_count >= 4);
    struct final_log log = { .t = &t };
    log.copy = calloc(t.layout.count, sizeof(float));
    assert_non_null(log.copy);
    training_fill(&t, 0);
    for (int repeat = 0; repeat < 3; repeat++) {
        struct plan_call call = { .inputs = { t.x, t.labels },
                                  .params = optimizer_params(t.optimizer),
                                  .lane = t.lane };
        log.begin = t.layout.count;
        log.calls = 0;
        memset(t.lane, 0, t.layout.count * sizeof(float));
        assert_int_equal(plan_forward(t.plan, &call), ST_OK);
        assert_int_equal(plan_backward(t.plan, &call, on_final, &log), ST_OK);
        assert_int_equal(log.begin, 0);
        assert_true(log.calls >= 4);
        assert_memory_equal(log.copy, t.lane, t.layout.count * sizeof(float));
    }
    free(log.copy);
    training_close(&t);
}

/* ---- buckets that their owners keep ---- */

struct handover {
    const struct training *t;
    size_t begin, left; /* buckets [left, bucket_count) were handed over */
    int calls;
};

/* Each call completes a bucket. */
static void hand_over(void *arg, size_t first, size_t count)
{
    struct handover *h = arg;
    const size_t before = h->left;
    assert_int_equal(first + count, h->begin);
    while (h->left > 0 && h->t->bucket_begin[h->left - 1] >= first)
        h->left--;
    assert_true(h->left < before);
    h->begin = first;
    h->calls++;
}

/* A tied embedding: buckets of all sizes, at places that are no multiples of anything. */
static void buckets_of_owners_end_sections_like_others(void **state)
{
    (void)state;
    const struct training_options options = { .arch = "gpt2",
                                              .layers = 2,
                                              .heads = 4,
                                              .embed = 36,
                                              .context = 8,
                                              .vocab = 77,
                                              .micro = 2,
                                              .seed = 7,
                                              .poison = true,
                                              .table = recorder_open(RECORDER_GRAPHS_MAX),
                                              .graphs = true,
                                              .bucket = 6000,
                                              .unit = 1000,
                                              .optimizer = { .kind = JOBSPEC_OPTIMIZER_ADAMW } };
    struct training_options plain = options;
    struct training t, without;
    plain.graphs = false;
    training_open(&t, &options);
    training_open(&without, &plain);
    training_fill(&without, 0);
    training_micro(&without, false);
    training_fill(&t, 0);
    for (int repeat = 0; repeat < 3; repeat++) {
        struct handover h = { .t = &t, .begin = t.layout.count, .left = t.bucket_count };
        struct plan_call call = { .inputs = { t.x, t.labels },
                                  .params = optimizer_params(t.optimizer),
                                  .lane = t.lane };
        memset(t.lane, 0, t.layout.count * sizeof(float));
        assert_int_equal(plan_forward(t.plan, &call), ST_OK);
        assert_int_equal(plan_backward(t.plan, &call, hand_over, &h), ST_OK);
        assert_int_equal(h.left, 0);
        assert_true(h.calls >= 5);
        assert_memory_equal(t.lane, without.lane, t.layout.count * sizeof(float));
    }
    assert_true(recorder.replays > 0);
    training_close(&without);
    training_close(&t);
}

static void other_pointers_are_recorded_anew(void **state)
{
    (void)state;
    struct training t;
    open_case(&t, recorder_open(RECORDER_GRAPHS_MAX), true);
    training_fill(&t, 0);
    training_micro(&t, false);
    training_micro(&t, false);
    int pieces = recorder.graph_count;
    memcpy(t.sum, t.lane, t.layout.count * sizeof(float));
    float *lane = t.lane;
    t.lane = calloc(t.layout.count, sizeof(float));
    assert_non_null(t.lane);
    training_micro(&t, false);
    assert_int_equal(recorder.graph_count, pieces);
    assert_memory_equal(t.lane, t.sum, t.layout.count * sizeof(float));
    memset(t.lane, 0, t.layout.count * sizeof(float));
    training_micro(&t, false);
    assert_int_equal(recorder.graph_count, 2 * pieces);
    assert_memory_equal(t.lane, t.sum, t.layout.count * sizeof(float));
    free(t.lane);
    t.lane = lane;
    training_close(&t);
}

static float *lane_without(void)
{
    struct training t;
    struct stage_inputs inputs;
    open_case(&t, NULL, false);
    stage_inputs_open(&inputs, &t);
    float *lane = stage_whole_lane(&t, &inputs);
    stage_inputs_close(&inputs, &t);
    training_close(&t);
    return lane;
}

static void stages_play_what_was_recorded_for_each_stash(void **state)
{
    (void)state;
    float *whole = lane_without();
    const enum stage_order orders[] = { STAGE_1F1B, STAGE_GPIPE, STAGE_SPLIT };
    int graphs[3] = { 0 };
    for (int i = 0; i < 3; i++) {
        struct training t;
        struct stage_inputs inputs;
        open_case(&t, recorder_open(RECORDER_GRAPHS_MAX), true);
        stage_inputs_open(&inputs, &t);
        int cuts[TAPE_NODES_MAX], count = 0;
        assert_int_equal(tape_cuts(t.tape, cuts, TAPE_NODES_MAX, &count), ST_OK);
        assert_true(count >= 9);
        const int first[] = { 0, cuts[2], cuts[5], cuts[8] };
        stage_assert_lane(&t, &inputs, first, 4, orders[i], 3, whole);
        assert_true(recorder.graph_count > 0);
        assert_true(recorder.replays > recorder.graph_count); /* in the third round all is played */
        graphs[i] = recorder.graph_count;
        stage_inputs_close(&inputs, &t);
        training_close(&t);
    }
    assert_true(graphs[1] > graphs[0]); /* more stashes */
    assert_true(graphs[2] > graphs[1]); /* and two halves */
    free(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(played_passes_give_the_bits_of_passes_that_ran),
        cmocka_unit_test(copies_of_parameters_are_made_in_one_call),
        cmocka_unit_test(the_loss_alone_is_told_where_its_gradient_goes),
        cmocka_unit_test(an_update_may_write_copies_that_one_kernel_keeps),
        cmocka_unit_test(a_backend_that_is_full_runs_the_rest_as_usual),
        cmocka_unit_test(a_backend_that_records_nothing_runs_everything),
        cmocka_unit_test(each_piece_is_recorded_once_for_writing_and_once_for_adding),
        cmocka_unit_test(segments_are_called_final_between_played_pieces),
        cmocka_unit_test(buckets_of_owners_end_sections_like_others),
        cmocka_unit_test(other_pointers_are_recorded_anew),
        cmocka_unit_test(stages_play_what_was_recorded_for_each_stash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
