/*
 * Loss curves and gradients against PyTorch's, from the same initial weights and batches:
 * tests/golden/torch.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/rng.h"
#include "tests/test.h"
#include "tests/unit/trainer/training.h"

#define TOLERANCE          1e-4
#define GRADIENT_TOLERANCE 1e-3 /* of a tensor's norm, float32 */
#define PROJECTIONS        32   /* as in the reference */
#define NO_GRADIENT        1e-6 /* of the whole gradient's norm */
/*
 * How much farther than PyTorch's own gradient a tensor's may lie from the reference: roundings
 * differ by chance (a bias has ten elements), and a distance estimated from 32 projections is right
 * to within 13 % (one standard deviation). The whole gradient needs an allowance for the latter
 * only. tests/golden/torch/make_reference.py --live compares every element.
 */
#define HALF_ALLOWANCE  2.0
#define WHOLE_ALLOWANCE 1.25
/* Where PyTorch itself is off by more than a thousandth. Winograd's convolutions round more. */
#define OWN_ALLOWANCE 4.0

static double number(const json_t *golden, const char *key)
{
    const json_t *value = json_object_get(golden, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static double difference(double ours, double theirs)
{
    return fabs(ours - theirs) / fabs(theirs);
}

static int64_t count_of(const json_t *golden, const char *key, int64_t missing)
{
    const json_t *value = json_object_get(golden, key);
    return json_is_integer(value) ? (int64_t)json_integer_value(value) : missing;
}

static unsigned no_decay_of(const json_t *golden)
{
    static const struct {
        const char *name;
        enum tape_kind kind;
    } rows[] = { { "bias", TAPE_BIAS }, { "norm", TAPE_NORM }, { "embedding", TAPE_EMBEDDING } };
    const json_t *names = json_object_get(golden, "no_decay");
    unsigned kinds = 0;
    for (size_t i = 0; i < json_array_size(names); i++) {
        for (size_t k = 0; k < sizeof(rows) / sizeof(rows[0]); k++) {
            if (strcmp(json_string_value(json_array_get(names, i)), rows[k].name) == 0)
                kinds |= (unsigned)rows[k].kind;
        }
    }
    return kinds;
}

static struct optimizer_options optimizer_of(const json_t *golden)
{
    static const struct {
        const char *name;
        struct optimizer_options options;
    } rows[] = {
        { "sgd", { .kind = JOBSPEC_OPTIMIZER_SGD, .momentum = 0.9f } },
        { "adamw",
          { .kind = JOBSPEC_OPTIMIZER_ADAMW, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f } },
        { "lion", { .kind = JOBSPEC_OPTIMIZER_LION, .beta1 = 0.9f, .beta2 = 0.99f } },
        { "lamb",
          { .kind = JOBSPEC_OPTIMIZER_LAMB, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-6f } },
        { "muon",
          { .kind = JOBSPEC_OPTIMIZER_MUON,
            .momentum = 0.95f,
            .beta1 = 0.9f,
            .beta2 = 0.999f,
            .eps = 1e-8f } },
    };
    const char *name = json_string_value(json_object_get(golden, "optimizer"));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (strcmp(rows[i].name, name) == 0)
            return rows[i].options;
    }
    fail_msg("no optimizer %s", name);
    return rows[0].options;
}

static void open_case(const json_t *golden, enum math math, struct training *t)
{
    struct training_options options = {
        .arch = json_string_value(json_object_get(golden, "model")),
        .channels = count_of(golden, "channels", 1),
        .side = count_of(golden, "side", 28),
        .hidden = (int64_t)number(golden, "hidden"),
        .layers = count_of(golden, "layers", 0),
        .heads = count_of(golden, "heads", 0),
        .embed = count_of(golden, "embed", 0),
        .context = count_of(golden, "context", 0),
        .vocab = count_of(golden, "vocab", 0),
        .patch = count_of(golden, "patch", 0),
        .kv_heads = count_of(golden, "kv_heads", 0),
        .intermediate = count_of(golden, "intermediate", 0),
        .tied = json_is_true(json_object_get(golden, "tied")),
        .norm_shift = (float)json_number_value(json_object_get(golden, "norm_shift")),
        .math = math,
        .micro = (int64_t)number(golden, "micro"),
        .seed = (uint64_t)number(golden, "seed"),
        .optimizer = optimizer_of(golden),
    };
    options.optimizer.weight_decay = (float)number(golden, "weight_decay");
    options.optimizer.clip_norm = (float)number(golden, "clip_norm");
    options.optimizer.no_decay = no_decay_of(golden);
    training_open(t, &options);
}

/* ---- gradients ---- */

/* Squares of the distance of our gradient of tensor `index` to PyTorch's, and of our norm. */
static void measure(const struct training *t, int index, const json_t *theirs, double *out_distance,
                    double *out_norm)
{
    const struct tape_tensor *tensor = &t->tape->params[index];
    double scale = 1 / (double)t->lane[t->layout.targets_at];
    uint64_t key = rng_key(t->options.seed, RNG_SYNTHETIC);
    double projection[PROJECTIONS] = { 0 };
    double norm = 0;
    for (size_t e = 0; e < tensor->count; e++) {
        double g = (double)t->lane[tensor->offset + e] * scale;
        uint32_t signs = rng_words(key, (uint32_t)e, (uint32_t)index, 6, 0).word[0];
        norm += g * g;
        for (int j = 0; j < PROJECTIONS; j++)
            projection[j] += (signs >> j & 1) != 0 ? -g : g;
    }
    double distance = 0;
    for (int j = 0; j < PROJECTIONS; j++) {
        double other = json_number_value(json_array_get(theirs, (size_t)j));
        distance += (projection[j] - other) * (projection[j] - other) / PROJECTIONS;
    }
    *out_distance = distance;
    *out_norm = norm;
}

/* A row: PyTorch's float64 norm, its own distances to that in float32 and in bfloat16. */
struct reference {
    double norm, own, own_half;
};

static struct reference reference_of(const json_t *row)
{
    return (struct reference){ .norm = json_number_value(json_array_get(row, 1)),
                               .own = json_number_value(json_array_get(row, 2)),
                               .own_half = json_number_value(json_array_get(row, 3)) };
}

/* In float32 a thousandth, or some times what PyTorch itself is off; in half what PyTorch is. */
static double allowed_distance(const struct reference *of, bool half)
{
    if (half)
        return HALF_ALLOWANCE * of->own_half;
    return fmax(GRADIENT_TOLERANCE * of->norm, OWN_ALLOWANCE * of->own);
}

static double whole_norm(const json_t *rows)
{
    double square = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        struct reference of = reference_of(json_array_get(rows, i));
        square += of.norm * of.norm;
    }
    return sqrt(square);
}

/*
 * The gradient in the lane's vector against float64's. Tensors whose gradient is only rounding (a
 * shift before a norm has none) count as part of the whole alone.
 */
static void check_gradients(const json_t *golden, struct training *t, bool half)
{
    assert_int_equal(lane_add_ties(t->tape, t->table, t->backend, t->lane, NULL, 0,
                                   t->tape->param_elements, t->stream),
                     ST_OK);
    const json_t *rows = json_object_get(golden, "gradients");
    assert_int_equal(json_array_size(rows), t->tape->param_count);
    double whole = whole_norm(rows);
    double worst = 0;
    double square = 0;
    double square_own = 0;
    for (int i = 0; i < t->tape->param_count; i++) {
        const json_t *row = json_array_get(rows, (size_t)i);
        const char *name = t->tape->params[i].name;
        assert_string_equal(json_string_value(json_array_get(row, 0)), name);
        struct reference of = reference_of(row);
        double distance;
        double norm;
        measure(t, i, json_array_get(row, 4), &distance, &norm);
        square += distance;
        square_own += of.own_half * of.own_half;
        if (of.norm < NO_GRADIENT * whole)
            continue;
        double allowed = allowed_distance(&of, half);
        if (sqrt(distance) > allowed || (!half && fabs(sqrt(norm) - of.norm) > allowed)) {
            fail_msg("%s: distance %.3g, norm %.6g of %.6g, allowed %.3g", name, sqrt(distance),
                     sqrt(norm), of.norm, allowed);
        }
        worst = fmax(worst, sqrt(distance) / allowed);
    }
    print_message("  gradient: %.1e off as a whole (PyTorch in bfloat16: %.1e), the worst tensor "
                  "at %.2f of what is allowed\n",
                  sqrt(square) / whole, sqrt(square_own) / whole, worst);
    if (half)
        assert_true(sqrt(square) <= WHOLE_ALLOWANCE * sqrt(square_own));
}

/* ---- curves ---- */

static json_t *load(const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/tests/golden/torch/%s.json", SOURCE_DIR, name);
    json_error_t error;
    json_t *golden = json_load_file(path, 0, &error);
    assert_non_null(golden);
    return golden;
}

/* In half: how far PyTorch's own curve in bfloat16 is from that in float32, at most. */
static double tolerance_of(const json_t *golden, bool half)
{
    if (!half)
        return TOLERANCE;
    const json_t *losses = json_object_get(golden, "losses");
    const json_t *others = json_object_get(golden, "losses_bf16");
    double most = 0;
    for (size_t i = 0; i < json_array_size(losses); i++) {
        most = fmax(most, difference(json_number_value(json_array_get(others, i)),
                                     json_number_value(json_array_get(losses, i))));
    }
    return 2 * most;
}

static void follows(const char *name, enum math math)
{
    json_t *golden = load(name);
    bool half = math != MATH_F32;
    double tolerance = tolerance_of(golden, half);
    struct training t;
    open_case(golden, math, &t);
    uint32_t batch = (uint32_t)number(golden, "batch");
    uint32_t batches = (uint32_t)number(golden, "batches");
    int lanes = (int)number(golden, "lanes");
    int micros = (int)(batch / (uint32_t)t.options.micro) / lanes;
    const json_t *losses = json_object_get(golden, "losses");
    double worst = 0;
    for (uint32_t step = 0; step < (uint32_t)json_array_size(losses); step++) {
        struct optimizer_report report = training_step(&t, step % batches * batch, lanes, micros,
                                                       number(golden, "lr"), step + 1);
        double theirs = json_number_value(json_array_get(losses, step));
        worst = fmax(worst, difference(report.loss, theirs));
        if (difference(report.loss, theirs) >= tolerance)
            fail_msg("step %u: loss %.8g, PyTorch's is %.8g", step, report.loss, theirs);
        if (step == 0 && json_object_get(golden, "gradients") != NULL)
            check_gradients(golden, &t, half);
    }
    double eval = 0;
    for (int i = 0; i < lanes * micros; i++) {
        training_fill(&t, (uint32_t)(i * t.options.micro));
        eval += training_eval(&t) / (lanes * micros);
    }
    worst = fmax(worst, difference(eval, number(golden, "eval_loss")));
    print_message("%s: largest relative difference %.1e\n", name, worst);
    assert_true(difference(eval, number(golden, "eval_loss")) < tolerance);
    training_close(&t);
    json_decref(golden);
}

static void follows_pytorch(const char *name)
{
    follows(name, MATH_F32);
}

static void mlp_follows_pytorch(void **state)
{
    (void)state;
    follows_pytorch("mlp");
}

static void lenet_follows_pytorch(void **state)
{
    (void)state;
    follows_pytorch("lenet");
}

static void mlp_with_adamw_follows_pytorch(void **state)
{
    (void)state;
    follows_pytorch("mlp-adamw");
}

static void lion_follows_its_algorithm(void **state)
{
    (void)state;
    follows_pytorch("mlp-lion");
}

static void lamb_follows_its_algorithm(void **state)
{
    (void)state;
    follows_pytorch("gpt2-lamb");
}

static void muon_follows_pytorch(void **state)
{
    (void)state;
    follows_pytorch("mlp-muon");
    follows_pytorch("gpt2-muon");
}

static void mlp_with_clipped_gradients_follows_pytorch(void **state)
{
    (void)state;
    follows_pytorch("mlp-clip");
}

static void resnet18_follows_pytorch(void **state)
{
    (void)state;
    follows_pytorch("resnet18");
}

static void resnet18_in_lanes_and_micro_batches_follows_pytorch(void **state)
{
    (void)state;
    follows_pytorch("resnet18-lanes");
}

static void gpt2_follows_pytorch(void **state)
{
    (void)state;
    follows_pytorch("gpt2");
}

static void llama_follows_pytorch(void **state)
{
    (void)state;
    follows_pytorch("llama");
}

static void llama_with_tied_weights_follows_pytorch(void **state)
{
    (void)state;
    follows_pytorch("llama-tied");
}

static void llama_in_bfloat16_is_as_close_to_float32_as_pytorch(void **state)
{
    (void)state;
    follows("llama", MATH_BF16);
}

static void resnet50_follows_pytorch(void **state)
{
    (void)state;
    follows_pytorch("resnet50");
}

static void a_fresh_resnet50_follows_pytorch(void **state)
{
    (void)state;
    follows_pytorch("resnet50-fresh");
}

static void gpt2_in_bfloat16_is_as_close_to_float32_as_pytorch(void **state)
{
    (void)state;
    follows("gpt2", MATH_BF16);
}

static void vit_follows_pytorch(void **state)
{
    (void)state;
    follows_pytorch("vit");
}

static void bert_follows_pytorch(void **state)
{
    (void)state;
    follows_pytorch("bert");
}

static void bert_in_bfloat16_is_as_close_to_float32_as_pytorch(void **state)
{
    (void)state;
    follows("bert", MATH_BF16);
}

static void vit_in_bfloat16_is_as_close_to_float32_as_pytorch(void **state)
{
    (void)state;
    follows("vit", MATH_BF16);
}

static void resnet50_in_bfloat16_is_as_close_to_float32_as_pytorch(void **state)
{
    (void)state;
    follows("resnet50", MATH_BF16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mlp_follows_pytorch),
        cmocka_unit_test(lenet_follows_pytorch),
        cmocka_unit_test(mlp_with_adamw_follows_pytorch),
        cmocka_unit_test(lion_follows_its_algorithm),
        cmocka_unit_test(lamb_follows_its_algorithm),
        cmocka_unit_test(muon_follows_pytorch),
        cmocka_unit_test(mlp_with_clipped_gradients_follows_pytorch),
        cmocka_unit_test(resnet18_follows_pytorch),
        cmocka_unit_test(resnet18_in_lanes_and_micro_batches_follows_pytorch),
        cmocka_unit_test(gpt2_follows_pytorch),
        cmocka_unit_test(gpt2_in_bfloat16_is_as_close_to_float32_as_pytorch),
        cmocka_unit_test(vit_follows_pytorch),
        cmocka_unit_test(bert_follows_pytorch),
        cmocka_unit_test(bert_in_bfloat16_is_as_close_to_float32_as_pytorch),
        cmocka_unit_test(vit_in_bfloat16_is_as_close_to_float32_as_pytorch),
        cmocka_unit_test(llama_follows_pytorch),
        cmocka_unit_test(llama_with_tied_weights_follows_pytorch),
        cmocka_unit_test(llama_in_bfloat16_is_as_close_to_float32_as_pytorch),
        cmocka_unit_test(resnet50_follows_pytorch),
        cmocka_unit_test(resnet50_in_bfloat16_is_as_close_to_float32_as_pytorch),
        cmocka_unit_test(a_fresh_resnet50_follows_pytorch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
