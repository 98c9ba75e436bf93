/*
 * Recorded sections of a pass, on a backend that records: the CPU's, whose calls between
 * capture_begin and capture_end are kept instead of run, and run by replay.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/trainer/noted_kernels.h"
#include "tests/unit/trainer/tape/stage_runs.h"
#include "tests/unit/trainer/training.h"
#include "trainer/tape/tape_cuts.h"

enum call {
    CALL_FORWARD,
    CALL_BACKWARD,
    CALL_ADD,
    CALL_COPY,
    CALL_FILL,
    CALL_SUM,
    CALL_REFORMAT,
    CALL_REFRESH,
};

/* One call, with everything that it was given by value. */
struct recorded {
    enum call what;
    enum op op;
    struct kernel *kernel;
    struct op_buffers buffers;
    const void *x, *y;
    void *out;
    size_t size;
    float value;
    struct tensor from, to;
};

#define CALLS_MAX  8192
#define GRAPHS_MAX 512

static struct {
    struct backend_table table;
    struct recorded calls[CALLS_MAX];
    int call_count;
    int graph_begin[GRAPHS_MAX], graph_end[GRAPHS_MAX];
    int graph_count;
    int room; /* graphs that the backend takes */
    bool recording;
    int replays, ran, refreshed; /* ran: ops that were run at once, as refreshed: kernels */
} fake;

static const struct backend_table *cpu(void)
{
    return backend_cpu();
}

static enum status keep(const struct recorded *call)
{
    assert_true(fake.call_count < CALLS_MAX);
    fake.calls[fake.call_count++] = *call;
    return ST_OK;
}

static enum status fake_forward(struct backend *backend, struct kernel *kernel,
                                const struct op_buffers *buffers, struct stream *stream)
{
    struct recorded call = {
        .what = CALL_FORWARD, .op = noted_op(kernel), .kernel = kernel, .buffers = *buffers
    };
    fake.ran += !fake.recording;
    return fake.recording ? keep(&call)
                          : cpu()->op[call.op].forward(backend, kernel, buffers, stream);
}

static enum status fake_backward(struct backend *backend, struct kernel *kernel,
                                 const struct op_buffers *buffers, struct stream *stream)
{
    struct recorded call = {
        .what = CALL_BACKWARD, .op = noted_op(kernel), .kernel = kernel, .buffers = *buffers
    };
    fake.ran += !fake.recording;
    return fake.recording ? keep(&call)
                          : cpu()->op[call.op].backward(backend, kernel, buffers, stream);
}

static enum status fake_add(struct backend *b, float *out, const float *x, const float *y, size_t n,
                            struct stream *s)
{
    struct recorded call = { .what = CALL_ADD, .out = out, .x = x, .y = y, .size = n };
    return fake.recording ? keep(&call) : cpu()->vector.add(b, out, x, y, n, s);
}

static enum status fake_copy(struct backend *b, void *to, const void *from, size_t bytes,
                             struct stream *s)
{
    struct recorded call = { .what = CALL_COPY, .out = to, .x = from, .size = bytes };
    return fake.recording ? keep(&call) : cpu()->vector.copy(b, to, from, bytes, s);
}

static enum status fake_fill(struct backend *b, float *out, float value, size_t n, struct stream *s)
{
    struct recorded call = { .what = CALL_FILL, .out = out, .value = value, .size = n };
    return fake.recording ? keep(&call) : cpu()->vector.fill(b, out, value, n, s);
}

static enum status fake_sum(struct backend *b, const struct tensor *tensor, const void *x,
                            const void *y, void *out, struct stream *s)
{
    struct recorded call = { .what = CALL_SUM, .to = *tensor, .x = x, .y = y, .out = out };
    return fake.recording ? keep(&call) : cpu()->sum(b, tensor, x, y, out, s);
}

static enum status fake_reformat(struct backend *b, const struct tensor *from, const void *in,
                                 const struct tensor *to, void *out, struct stream *s)
{
    struct recorded call = { .what = CALL_REFORMAT, .from = *from, .x = in, .to = *to, .out = out };
    return fake.recording ? keep(&call) : cpu()->reformat(b, from, in, to, out, s);
}

static enum status fake_refresh(struct backend *b, struct kernel *kernel,
                                const float *const param[OP_PARAM_MAX], void *cache,
                                struct stream *s)
{
    struct recorded call = { .what = CALL_REFRESH,
                             .kernel = kernel,
                             .buffers = { .param = { param[0], param[1] } },
                             .out = cache };
    fake.refreshed += !fake.recording;
    return fake.recording ? keep(&call) : cpu()->refresh(b, kernel, param, cache, s);
}

static enum status fake_sync(struct backend *b, struct stream *s)
{
    assert_false(fake.recording); /* a stream that records can't be waited for */
    return cpu()->stream_sync(b, s);
}

static enum status fake_capture_begin(struct backend *b, struct stream *s)
{
    (void)b;
    (void)s;
    assert_false(fake.recording);
    if (fake.graph_count == fake.room)
        return ST_FULL;
    assert_true(fake.graph_count < GRAPHS_MAX);
    fake.graph_begin[fake.graph_count] = fake.call_count;
    fake.recording = true;
    return ST_OK;
}

static enum status fake_capture_end(struct backend *b, struct stream *s, int *out_graph)
{
    (void)b;
    (void)s;
    assert_true(fake.recording);
    fake.recording = false;
    fake.graph_end[fake.graph_count] = fake.call_count;
    *out_graph = fake.graph_count++;
    return ST_OK;
}

static enum status run_recorded(struct backend *b, const struct recorded *c, struct stream *s)
{
    switch (c->what) {
    case CALL_FORWARD:
        return cpu()->op[c->op].forward(b, c->kernel, &c->buffers, s);
    case CALL_BACKWARD:
        return cpu()->op[c->op].backward(b, c->kernel, &c->buffers, s);
    case CALL_ADD:
        return cpu()->vector.add(b, c->out, c->x, c->y, c->size, s);
    case CALL_COPY:
        return cpu()->vector.copy(b, c->out, c->x, c->size, s);
    case CALL_FILL:
        return cpu()->vector.fill(b, c->out, c->value, c->size, s);
    case CALL_SUM:
        return cpu()->sum(b, &c->to, c->x, c->y, c->out, s);
    case CALL_REFORMAT:
        return cpu()->reformat(b, &c->from, c->x, &c->to, c->out, s);
    case CALL_REFRESH:
        return cpu()->refresh(b, c->kernel, c->buffers.param, c->out, s);
    }
    return ST_INVALID;
}

static enum status fake_replay(struct backend *b, int graph, struct stream *s)
{
    assert_false(fake.recording);
    assert_in_range(graph, 0, fake.graph_count - 1);
    fake.replays++;
    for (int i = fake.graph_begin[graph]; i < fake.graph_end[graph]; i++) {
        enum status st = run_recorded(b, &fake.calls[i], s);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

static const struct backend_table *fake_open(int room)
{
    memset(&fake, 0, sizeof fake);
    fake.room = room;
    fake.table = *cpu();
    noted_clear();
    for (int op = 0; op < OP_COUNT; op++) {
        fake.table.op[op] = (struct op_table){ .prepare = noted_prepare,
                                               .forward = fake_forward,
                                               .backward = fake_backward };
    }
    fake.table.vector.add = fake_add;
    fake.table.vector.copy = fake_copy;
    fake.table.vector.fill = fake_fill;
    fake.table.sum = fake_sum;
    fake.table.reformat = fake_reformat;
    fake.table.refresh = fake_refresh;
    fake.table.stream_sync = fake_sync;
    fake.table.capture_begin = fake_capture_begin;
    fake.table.capture_end = fake_capture_end;
    fake.table.replay = fake_replay;
    return &fake.table;
}

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
        .optimizer = { .kind = OPTIMIZER_SGD, .momentum = 0.9f, .weight_decay = 5e-4f },
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
    same_as_without(fake_open(GRAPHS_MAX));
    assert_true(fake.graph_count > 4);
    assert_true(fake.replays > 2 * fake.graph_count);
}

static void copies_of_parameters_are_made_in_one_call(void **state)
{
    (void)state;
    struct training t;
    open_case(&t, fake_open(GRAPHS_MAX), true); /* refreshed once */
    const int kernels = fake.refreshed;
    assert_true(kernels > 1);
    for (int again = 0; again < 3; again++) {
        assert_int_equal(plan_refresh(t.plan, optimizer_params(t.optimizer)), ST_OK);
        assert_int_equal(fake.refreshed, kernels);
        assert_int_equal(fake.replays, again + 1);
    }
    assert_int_equal(fake.graph_count, 1);
    training_close(&t);
}

/* As a device's: linear keeps its weights as they are, and so, here, does embedding. */
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
                                              .table = fake_open(GRAPHS_MAX),
                                              .graphs = true,
                                              .optimizer = { .kind = OPTIMIZER_ADAMW } };
    struct training t;
    struct param_copy copies[64];
    fake.table.op[OP_LINEAR].prepare = copying_prepare;
    fake.table.op[OP_EMBEDDING].prepare = copying_prepare;
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
    const int all = fake.refreshed;
    fake.refreshed = 0;
    assert_int_equal(plan_refresh_rest(t.plan, optimizer_params(t.optimizer)), ST_OK);
    assert_int_equal(fake.refreshed, all - (int)count);
    training_close(&t);
}

static void a_backend_that_is_full_runs_the_rest_as_usual(void **state)
{
    (void)state;
    for (int room = 0; room < 6; room++) {
        same_as_without(fake_open(room));
        assert_int_equal(fake.graph_count, room);
    }
}

static void a_backend_that_records_nothing_runs_everything(void **state)
{
    (void)state;
    same_as_without(cpu());
}

static void each_piece_is_recorded_once_for_writing_and_once_for_adding(void **state)
{
    (void)state;
    struct training t;
    open_case(&t, fake_open(GRAPHS_MAX), true);
    int pieces = 0;
    for (int repeat = 0; repeat < 4; repeat++) {
        int graphs = fake.graph_count;
        int ran = fake.ran;
        training_fill(&t, 0);
        training_micro(&t, false);
        if (repeat == 0) {
            assert_int_equal(fake.graph_count, 0); /* the first time runs */
            assert_true(fake.ran > 0);
        } else if (repeat == 1) {
            pieces = fake.graph_count;
            assert_int_equal(pieces, 2); /* nobody is told what is final: forward and backward */
            assert_int_equal(fake.ran, ran);
        } else {
            assert_int_equal(fake.graph_count, graphs);
            assert_int_equal(fake.ran, ran);
        }
    }
    for (int repeat = 0; repeat < 3; repeat++)
        training_micro(&t, true);
    assert_int_equal(fake.graph_count, 2 * pieces);
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
    assert_false(fake.recording); /* who is told may use the stream */
    assert_int_equal(first + count, log->begin);
    memcpy(log->copy + first, log->t->lane + first, count * sizeof(float));
    log->begin = first;
    log->calls++;
}

static void segments_are_called_final_between_played_pieces(void **state)
{
    (void)state;
    struct training t;
    open_case(&t, fake_open(GRAPHS_MAX), true);
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
                                              .table = fake_open(GRAPHS_MAX),
                                              .graphs = true,
                                              .bucket = 6000,
                                              .unit = 1000,
                                              .optimizer = { .kind = OPTIMIZER_ADAMW } };
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
    assert_true(fake.replays > 0);
    training_close(&without);
    training_close(&t);
}

static void other_pointers_are_recorded_anew(void **state)
{
    (void)state;
    struct training t;
    open_case(&t, fake_open(GRAPHS_MAX), true);
    training_fill(&t, 0);
    training_micro(&t, false);
    training_micro(&t, false);
    int pieces = fake.graph_count;
    memcpy(t.sum, t.lane, t.layout.count * sizeof(float));
    float *lane = t.lane;
    t.lane = calloc(t.layout.count, sizeof(float));
    assert_non_null(t.lane);
    training_micro(&t, false);
    assert_int_equal(fake.graph_count, pieces);
    assert_memory_equal(t.lane, t.sum, t.layout.count * sizeof(float));
    memset(t.lane, 0, t.layout.count * sizeof(float));
    training_micro(&t, false);
    assert_int_equal(fake.graph_count, 2 * pieces);
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
        open_case(&t, fake_open(GRAPHS_MAX), true);
        stage_inputs_open(&inputs, &t);
        int cuts[TAPE_NODES_MAX], count = 0;
        assert_int_equal(tape_cuts(t.tape, cuts, TAPE_NODES_MAX, &count), ST_OK);
        assert_true(count >= 9);
        const int first[] = { 0, cuts[2], cuts[5], cuts[8] };
        stage_assert_lane(&t, &inputs, first, 4, orders[i], 3, whole);
        assert_true(fake.graph_count > 0);
        assert_true(fake.replays > fake.graph_count); /* in the third round all is played */
        graphs[i] = fake.graph_count;
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
