/*
 * Plans of stages: where a tape may be cut, which cuts are balanced, and that stages one after the
 * other give the bits of the whole plan.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/async_device.h"
#include "tests/test.h"
#include "tests/unit/trainer/tape/stage_runs.h"
#include "trainer/tape/tape_cuts.h"

/* ---- cuts ---- */

static struct tape *build(const char *arch, int64_t layers, float dropout)
{
    struct model_options options = { .arch = arch,
                                     .channels = 1,
                                     .height = 16,
                                     .width = 16,
                                     .classes = 10,
                                     .hidden = 24,
                                     .layers = layers,
                                     .heads = 2,
                                     .embed = 32,
                                     .context = 12,
                                     .vocab = 41,
                                     .dropout = dropout };
    struct tape *tape = NULL;
    assert_int_equal(model_build(&options, &tape), ST_OK);
    return tape;
}

static int count_cuts(const struct tape *tape, int *out_nodes)
{
    int count = 0;
    assert_int_equal(tape_cuts(tape, out_nodes, TAPE_NODES_MAX, &count), ST_OK);
    return count;
}

/* By the definition, value by value. */
static bool one_value_crosses(const struct tape *tape, int cut)
{
    int crossing = 0;
    for (int v = 0; v < tape->value_count; v++) {
        bool read = false;
        for (int n = cut; n < tape->node_count; n++) {
            for (int i = 0; i < tape->nodes[n].in_count; i++)
                read = read || tape->nodes[n].in[i] == v;
        }
        const int producer = tape->values[v].producer;
        crossing += read && producer >= 0 && producer < cut;
    }
    return crossing == 1;
}

static void one_value_crosses_each_cut_and_no_other_border(void **state)
{
    (void)state;
    const struct {
        const char *arch;
        int64_t layers;
        float dropout;
        int cuts;
    } rows[] = {
        /* After the embedding, each half of a layer, the last norm and the head. */
        { "gpt2", 12, 0, 27 },
        { "gpt2", 12, 0.1f, 28 }, /* dropout of the embedding, too */
        /* After the stem's two nodes, each block, the pool and the last product. */
        { "resnet18", 0, 0, 12 },
        { "mlp", 0, 0, 3 },
        { "resnet50", 0, 0, 20 },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct tape *tape = build(rows[i].arch, rows[i].layers, rows[i].dropout);
        int nodes[TAPE_NODES_MAX];
        const int count = count_cuts(tape, nodes);
        assert_int_equal(count, rows[i].cuts);
        int at = 0;
        for (int n = 1; n < tape->node_count; n++) {
            assert_int_equal(tape_is_cut(tape, n), one_value_crosses(tape, n));
            if (tape_is_cut(tape, n))
                assert_int_equal(nodes[at++], n);
        }
        assert_int_equal(at, count);
        assert_false(tape_is_cut(tape, 0));
        assert_false(tape_is_cut(tape, tape->node_count));
        int unused = 0;
        assert_int_equal(tape_cuts(tape, nodes, count - 1, &unused), ST_FULL);
        tape_free(tape);
    }
}

/* ---- balance ---- */

/* So many products in a row, a cut after each. */
static struct tape *chain(int nodes)
{
    struct tape *tape = NULL;
    assert_int_equal(tape_new(&tape), ST_OK);
    int x = tape_input(tape, DTYPE_F32, 2, (int64_t[]){ 1, 4 });
    const int labels = tape_input(tape, DTYPE_I32, 1, (int64_t[]){ 1 });
    for (int i = 0; i + 1 < nodes; i++) {
        const char name[] = { (char)('a' + i), 0 };
        x = tape_linear(tape, name, x, &(struct tape_linear){ .out = 4 });
    }
    (void)tape_loss(tape, x, labels, 0);
    assert_int_equal(tape_finish(tape), ST_OK);
    return tape;
}

struct score {
    double most, squares;
};

static struct score score_of(const double *cost, int nodes, const int *first, int stages)
{
    struct score score = { 0 };
    for (int s = 0; s < stages; s++) {
        double sum = 0;
        for (int n = first[s]; n < (s + 1 < stages ? first[s + 1] : nodes); n++)
            sum += cost[n];
        score.most = sum > score.most ? sum : score.most;
        score.squares += sum * sum;
    }
    return score;
}

/* Tries every way to cut into 3, lowest nodes first. */
static void best_of_three(const double *cost, int nodes, int *out_first)
{
    struct score best = { 1e9, 1e9 };
    for (int a = 1; a < nodes; a++) {
        for (int b = a + 1; b < nodes; b++) {
            const int first[] = { 0, a, b };
            const struct score score = score_of(cost, nodes, first, 3);
            if (score.most > best.most ||
                (score.most == best.most && score.squares >= best.squares))
                continue;
            best = score;
            memcpy(out_first, first, sizeof(first));
        }
    }
}

static void balanced_stages_are_the_best_of_all(void **state)
{
    (void)state;
    const double costs[][8] = {
        { 1, 1, 1, 1, 1, 1, 1, 1 }, { 9, 1, 1, 1, 1, 1, 1, 1 }, { 1, 1, 1, 1, 1, 1, 1, 9 },
        { 1, 2, 3, 4, 4, 3, 2, 1 }, { 0, 0, 0, 5, 0, 0, 0, 0 }, { 3, 1, 4, 1, 5, 9, 2, 6 },
        { 0, 0, 0, 0, 0, 0, 0, 0 }, { 7, 0, 0, 1, 0, 7, 0, 1 },
    };
    struct tape *tape = chain(8);
    for (size_t i = 0; i < sizeof(costs) / sizeof(costs[0]); i++) {
        int first[3], wanted[3], possible = 0;
        assert_int_equal(tape_balance(tape, costs[i], 3, first, &possible), ST_OK);
        assert_int_equal(possible, 8);
        best_of_three(costs[i], 8, wanted);
        assert_memory_equal(first, wanted, sizeof(first));
    }
    int first[8], possible = 0;
    assert_int_equal(tape_balance(tape, costs[5], 8, first, &possible), ST_OK);
    for (int i = 0; i < 8; i++)
        assert_int_equal(first[i], i);
    assert_int_equal(tape_balance(tape, costs[5], 1, first, &possible), ST_OK);
    assert_int_equal(first[0], 0);
    tape_free(tape);
}

static void too_many_stages_are_refused_with_how_many_there_can_be(void **state)
{
    (void)state;
    struct tape *tape = build("resnet18", 0, 0);
    double cost[TAPE_NODES_MAX];
    for (int n = 0; n < tape->node_count; n++)
        cost[n] = 1;
    int first[TAPE_STAGES_MAX], possible = 0;
    assert_int_equal(tape_balance(tape, cost, 14, first, &possible), ST_INVALID);
    assert_int_equal(possible, 13);
    assert_int_equal(tape_balance(tape, cost, 0, first, &possible), ST_INVALID);
    assert_int_equal(tape_balance(tape, cost, 13, first, &possible), ST_OK);
    for (int s = 1; s < 13; s++)
        assert_true(tape_is_cut(tape, first[s]));
    tape_free(tape);
}

/* ---- bits ---- */

struct model_case {
    const char *arch;
    int64_t side, layers; /* text models: side is the context */
    float dropout;
    enum math math;
    enum amp amp;
    const struct backend_table *table; /* NULL: the CPU's */
};

static const struct model_case model_cases[] = {
    { .arch = "mlp", .side = 8 },
    { .arch = "mlp", .side = 8, .math = MATH_BF16 },
    { .arch = "gpt2", .side = 12, .layers = 2 },
    { .arch = "gpt2", .side = 12, .layers = 4, .dropout = 0.25f },
    { .arch = "gpt2", .side = 12, .layers = 3, .dropout = 0.25f, .math = MATH_BF16 },
    { .arch = "gpt2", .side = 12, .layers = 2, .math = MATH_BF16, .amp = AMP_O2 },
    { .arch = "resnet18", .side = 8 },
    { .arch = "resnet18", .side = 8, .math = MATH_BF16 },
};
#define MODEL_CASES (sizeof(model_cases) / sizeof(model_cases[0]))

static void open_case(struct training *t, const struct model_case *model)
{
    struct training_options options = { .arch = model->arch,
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
                                        .micro = 2,
                                        .table = model->table,
                                        .seed = 11,
                                        .optimizer = { .kind = JOBSPEC_OPTIMIZER_SGD } };
    training_open(t, &options);
}

/* Else a third of the cuts, other ones of each model, and one of the ways to cut it often. */
static bool every_one(void)
{
    return getenv("CAIRN_TEST_FULL") != NULL;
}

static void two_stages_give_the_bits_of_the_whole_at_every_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODEL_CASES; i++) {
        struct training t;
        struct stage_inputs inputs;
        open_case(&t, &model_cases[i]);
        stage_inputs_open(&inputs, &t);
        float *whole = stage_whole_lane(&t, &inputs);
        int cuts[TAPE_NODES_MAX];
        const int count = count_cuts(t.tape, cuts);
        for (int c = every_one() ? 0 : (int)i % 3; c < count; c += every_one() ? 1 : 3) {
            const int first[] = { 0, cuts[c] };
            const enum stage_order orders[] = { STAGE_GPIPE, STAGE_1F1B, STAGE_SPLIT };
            stage_assert_lane(&t, &inputs, first, 2, orders[(c / 3 + c + (int)i) % 3], 1, whole);
            if (c % 2 == 0)
                stage_assert_eval(&t, &inputs, first, 2);
        }
        free(whole);
        stage_inputs_close(&inputs, &t);
        training_close(&t);
    }
}

/* Stages of so many nodes each, or of so many parameters. */
static void balance(const struct tape *tape, bool by_params, int stages, int *out_first)
{
    double cost[TAPE_NODES_MAX] = { 0 };
    for (int n = 0; n < tape->node_count; n++)
        cost[n] = by_params ? 0 : 1;
    for (int i = 0; by_params && i < tape->param_count; i++)
        cost[tape->params[i].first_node] += (double)tape->params[i].count;
    int possible = 0;
    assert_int_equal(tape_balance(tape, cost, stages, out_first, &possible), ST_OK);
}

/* All in one stage: a backward in two halves, others' passes between them. */
static void halves_of_backward_give_the_bits_of_the_whole(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODEL_CASES; i++) {
        struct training t;
        struct stage_inputs inputs;
        const int first[] = { 0 };
        open_case(&t, &model_cases[i]);
        stage_inputs_open(&inputs, &t);
        float *whole = stage_whole_lane(&t, &inputs);
        stage_assert_lane(&t, &inputs, first, 1, STAGE_SPLIT, 2, whole);
        free(whole);
        stage_inputs_close(&inputs, &t);
        training_close(&t);
    }
}

static void several_stages_give_the_bits_of_the_whole_in_every_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODEL_CASES; i++) {
        struct training t;
        struct stage_inputs inputs;
        open_case(&t, &model_cases[i]);
        stage_inputs_open(&inputs, &t);
        float *whole = stage_whole_lane(&t, &inputs);
        for (int k = every_one() ? 0 : (int)i % 4; k < 4; k += every_one() ? 1 : 4) {
            int first[STAGE_RUNS_MAX];
            const int stages = 3 + k % 2;
            balance(t.tape, k >= 2, stages, first);
            stage_assert_lane(&t, &inputs, first, stages, STAGE_1F1B, 2, whole);
            stage_assert_lane(&t, &inputs, first, stages, STAGE_GPIPE, 1, whole);
            stage_assert_lane(&t, &inputs, first, stages, STAGE_SPLIT, 2, whole);
            stage_assert_eval(&t, &inputs, first, stages);
        }
        free(whole);
        stage_inputs_close(&inputs, &t);
        training_close(&t);
    }
}

/* Memory that the host can't touch, and calls that only enqueue. */
static void stages_on_a_device_give_the_bits_of_the_whole_on_the_cpu(void **state)
{
    (void)state;
    struct model_case cases[] = {
        { .arch = "gpt2", .side = 12, .layers = 2, .dropout = 0.25f, .math = MATH_BF16 },
        { .arch = "resnet18", .side = 8 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct training t;
        struct stage_inputs inputs;
        open_case(&t, &cases[i]);
        stage_inputs_open(&inputs, &t);
        float *whole = stage_whole_lane(&t, &inputs);
        stage_inputs_close(&inputs, &t);
        training_close(&t);

        cases[i].table = async_device();
        open_case(&t, &cases[i]);
        stage_inputs_open(&inputs, &t);
        int first[STAGE_RUNS_MAX];
        balance(t.tape, false, 3, first);
        stage_assert_lane(&t, &inputs, first, 3, STAGE_1F1B, 1, whole);
        stage_assert_lane(&t, &inputs, first, 3, STAGE_SPLIT, 1, whole);
        stage_assert_eval(&t, &inputs, first, 3);
        free(whole);
        stage_inputs_close(&inputs, &t);
        training_close(&t);
    }
}

/* ---- tapes of our own ---- */

#define FRONT 2

/* A value that four nodes read: a convolution and three shortcuts. It is what node 0 makes, or node
 * FRONT behind others with nothing to learn (which take no half values from outside). */
static struct tape *own_tape(bool front)
{
    struct tape *tape = NULL;
    assert_int_equal(tape_new(&tape), ST_OK);
    struct tape_conv2d conv = { .out = 16, .kernel = 3, .stride = 1, .pad = 1, .bias = true };
    const int images = tape_input(tape, DTYPE_F32, 4, (int64_t[]){ 1, 1, 8, 8 });
    const int labels = tape_input(tape, DTYPE_I32, 1, (int64_t[]){ 1 });
    const int plain = front ? tape_max_pool(tape, tape_relu(tape, images), 3, 1, 1) : images;
    const int x = tape_conv2d(tape, "a", plain, &conv);
    const int y = tape_batch_norm(tape, "b", tape_conv2d(tape, "c", x, &conv), x, true);
    const int z = tape_batch_norm(tape, "d", tape_conv2d(tape, "e", y, &conv), x, false);
    const int w = tape_batch_norm(tape, "g", tape_conv2d(tape, "h", z, &conv), x, true);
    const int pooled = tape_global_avg_pool(tape, tape_max_pool(tape, w, 3, 2, 1));
    const struct tape_linear head = { .out = 10, .bias = true };
    (void)tape_loss(tape, tape_linear(tape, "f", pooled, &head), labels, 0.1f);
    assert_int_equal(tape_finish(tape), ST_OK);
    return tape;
}

/* In the place of the fixture's model, which has its shapes of inputs. */
static void open_own(struct training *t, enum math math)
{
    open_case(t, &(struct model_case){ .arch = "mlp", .side = 8, .math = math });
    plan_free(t->eval_plan);
    plan_free(t->plan);
    optimizer_free(t->optimizer);
    tape_free(t->tape);
    t->tape = own_tape(math == MATH_F32);
    t->layout = lane_layout(t->tape);
    t->table->free(t->backend, t->lane);
    assert_int_equal(
        t->table->alloc(t->backend, t->layout.count * sizeof(float), (void **)&t->lane), ST_OK);
    struct plan_options options = stage_options(t, (int[]){ 0 }, 1, 0, STAGE_1F1B);
    assert_int_equal(plan_new(t->tape, &options, &t->plan), ST_OK);
    options.training = false;
    assert_int_equal(plan_new(t->tape, &options, &t->eval_plan), ST_OK);
    const struct optimizer_options sgd = { .kind = JOBSPEC_OPTIMIZER_SGD };
    assert_int_equal(optimizer_new(&sgd, t->tape, NULL, t->table, t->backend, &t->optimizer),
                     ST_OK);
    initial_values_params(t->tape, 5, optimizer_params(t->optimizer));
    initial_values_stats(t->tape, optimizer_stats(t->optimizer));
    assert_int_equal(plan_refresh(t->plan, optimizer_params(t->optimizer)), ST_OK);
}

static int crossing(struct training *t, int cut, enum plan_side side, enum plan_direction direction)
{
    struct plan *plan = NULL;
    const int first[] = { 0, cut };
    struct plan_options options =
        stage_options(t, first, 2, side == PLAN_BEFORE ? 1 : 0, STAGE_1F1B);
    options.stream = NULL; /* for sizes only */
    struct plan_border border;
    assert_int_equal(plan_new(t->tape, &options, &plan), ST_OK);
    plan_border(plan, side, direction, 0, &border);
    for (int i = 0; i < border.count; i++)
        assert_null(border.tensor[i].data);
    plan_free(plan);
    return border.count;
}

static void gradients_of_all_readers_cross_unless_nothing_before_learns(void **state)
{
    (void)state;
    const enum math maths[] = { MATH_F32, MATH_BF16 };
    for (int m = 0; m < 2; m++) {
        struct training t;
        struct stage_inputs inputs;
        open_own(&t, maths[m]);
        stage_inputs_open(&inputs, &t);
        float *whole = stage_whole_lane(&t, &inputs);
        int cuts[TAPE_NODES_MAX];
        const int count = count_cuts(t.tape, cuts);
        const int front = maths[m] == MATH_F32 ? FRONT : 0;
        assert_true(count >= 4 + front);
        for (int c = 0; c < count; c++) {
            const int first[] = { 0, cuts[c] };
            stage_assert_lane(&t, &inputs, first, 2, STAGE_1F1B, 1, whole);
            stage_assert_lane(&t, &inputs, first, 2, STAGE_GPIPE, 1, whole);
            stage_assert_lane(&t, &inputs, first, 2, STAGE_SPLIT, 1, whole);
            stage_assert_eval(&t, &inputs, first, 2);
            assert_int_equal(crossing(&t, cuts[c], PLAN_AFTER, PLAN_FORWARD), 1);
            assert_int_equal(crossing(&t, cuts[c], PLAN_BEFORE, PLAN_FORWARD), 1);
            const int back = crossing(&t, cuts[c], PLAN_AFTER, PLAN_BACKWARD);
            assert_int_equal(crossing(&t, cuts[c], PLAN_BEFORE, PLAN_BACKWARD), back);
            if (cuts[c] <= front) {
                assert_int_equal(back, 0);
            } else if (cuts[c] == front + 1) {
                assert_true(back >= 3); /* so that their order matters */
            } else {
                assert_int_equal(back, 1);
            }
        }
        /* In float32 the first two learn nothing. */
        const int first[] = { 0, cuts[0], cuts[1], cuts[2] };
        stage_assert_lane(&t, &inputs, first, 4, STAGE_1F1B, 2, whole);
        stage_assert_lane(&t, &inputs, first, 4, STAGE_SPLIT, 2, whole);
        free(whole);
        stage_inputs_close(&inputs, &t);
        training_close(&t);
    }
}

/* ---- sizes ---- */

static void a_stage_has_memory_for_its_own_nodes_only(void **state)
{
    (void)state;
    const struct model_case cases[] = {
        { .arch = "gpt2", .side = 12, .layers = 4, .dropout = 0.25f, .math = MATH_BF16 },
        { .arch = "resnet18", .side = 8, .math = MATH_BF16 },
        { .arch = "resnet18", .side = 8 },
    };
    size_t all_caches = 0;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct training t;
        open_case(&t, &cases[i]);
        const struct plan_sizes *whole = plan_sizes(t.plan);
        size_t caches = 0;
        double flops = 0;
        int first[3];
        balance(t.tape, false, 3, first);
        for (int s = 0; s < 3; s++) {
            struct plan *plan = NULL;
            struct plan_options options = stage_options(&t, first, 3, s, STAGE_1F1B);
            options.stream = NULL;
            assert_int_equal(plan_new(t.tape, &options, &plan), ST_OK);
            const struct plan_sizes *sizes = plan_sizes(plan);
            assert_true(sizes->arena_bytes < whole->arena_bytes);
            /* Without instructions for bf16 kernels have none of the parameters. */
            assert_true(sizes->cache_bytes < whole->cache_bytes || whole->cache_bytes == 0);
            caches += sizes->cache_bytes;
            flops += sizes->flops_forward + sizes->flops_backward;
            plan_free(plan);
        }
        assert_int_equal(caches, whole->cache_bytes);
        all_caches += caches;
        const double wanted = whole->flops_forward + whole->flops_backward;
        assert_true(flops > 0.999 * wanted && flops < 1.001 * wanted);
        training_close(&t);
    }
    assert_true(all_caches > 0);
}

static void stages_print_their_nodes_and_pin_the_whole_tape(void **state)
{
    (void)state;
    struct training t;
    open_case(&t, &(struct model_case){ .arch = "gpt2", .side = 12, .layers = 2 });
    int first[2];
    balance(t.tape, false, 2, first);
    struct plan_options options = stage_options(&t, first, 2, 1, STAGE_1F1B);
    options.stream = NULL;
    struct plan *plan = NULL;
    assert_int_equal(plan_new(t.tape, &options, &plan), ST_OK);
    struct buf text, wanted;
    buf_init(&text, 1 << 20);
    buf_init(&wanted, 1 << 20);
    assert_int_equal(plan_print(plan, &text), ST_OK);
    int lines = 0;
    for (size_t i = 0; i < text.size; i++)
        lines += text.data[i] == '\n';
    assert_int_equal(lines, t.tape->node_count - first[1] + 2);
    assert_int_equal(strtol(strchr(text.data, '\n'), NULL, 10), first[1]);
    buf_clear(&text);
    assert_int_equal(plan_pins(plan, &text), ST_OK);
    assert_int_equal(plan_pins(t.plan, &wanted), ST_OK);
    assert_int_equal(text.size, wanted.size);
    assert_memory_equal(text.data, wanted.data, text.size);
    buf_release(&text);
    buf_release(&wanted);
    plan_free(plan);
    training_close(&t);
}

static void stages_that_do_not_begin_and_end_at_cuts_are_refused(void **state)
{
    (void)state;
    struct training t;
    open_case(&t, &(struct model_case){ .arch = "gpt2", .side = 12, .layers = 2 });
    const int nodes = t.tape->node_count;
    assert_true(tape_is_cut(t.tape, 1));
    assert_false(tape_is_cut(t.tape, 2)); /* within a layer */
    const struct {
        int begin, end, stashes;
        enum status st;
    } rows[] = {
        { 0, 0, 0, ST_OK },          { 0, nodes, 3, ST_OK },
        { 1, nodes, 1, ST_OK },      { 0, 1, PLAN_STASHES_MAX, ST_OK },
        { 2, nodes, 1, ST_INVALID }, { 0, 2, 1, ST_INVALID },
        { 1, 1, 1, ST_INVALID },     { nodes, nodes, 1, ST_INVALID },
        { -1, 1, 1, ST_INVALID },    { 0, nodes + 1, 1, ST_INVALID },
        { 0, -1, 1, ST_INVALID },    { 0, 1, -1, ST_INVALID },
        { nodes, 0, 1, ST_INVALID }, { 0, 1, PLAN_STASHES_MAX + 1, ST_INVALID },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct plan_options options = stage_options(&t, (int[]){ 0 }, 1, 0, STAGE_1F1B);
        options.stream = NULL;
        options.begin = rows[i].begin;
        options.end = rows[i].end;
        options.stashes = rows[i].stashes;
        struct plan *plan = NULL;
        assert_int_equal(plan_new(t.tape, &options, &plan), rows[i].st);
        plan_free(plan);
    }
    training_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_value_crosses_each_cut_and_no_other_border),
        cmocka_unit_test(balanced_stages_are_the_best_of_all),
        cmocka_unit_test(too_many_stages_are_refused_with_how_many_there_can_be),
        cmocka_unit_test(two_stages_give_the_bits_of_the_whole_at_every_cut),
        cmocka_unit_test(halves_of_backward_give_the_bits_of_the_whole),
        cmocka_unit_test(several_stages_give_the_bits_of_the_whole_in_every_order),
        cmocka_unit_test(stages_on_a_device_give_the_bits_of_the_whole_on_the_cpu),
        cmocka_unit_test(gradients_of_all_readers_cross_unless_nothing_before_learns),
        cmocka_unit_test(a_stage_has_memory_for_its_own_nodes_only),
        cmocka_unit_test(stages_print_their_nodes_and_pin_the_whole_tape),
        cmocka_unit_test(stages_that_do_not_begin_and_end_at_cuts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
