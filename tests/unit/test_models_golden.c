/*
 * Loss curves against PyTorch's, from the same initial weights and batches: tests/golden/torch.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/training.h"

#define TOLERANCE 1e-4

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

static void open_case(const json_t *golden, struct training *t)
{
    struct optimizer_options sgd = { .kind = OPTIMIZER_SGD, .momentum = 0.9f };
    struct optimizer_options adamw = {
        .kind = OPTIMIZER_ADAMW, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f
    };
    const char *optimizer = json_string_value(json_object_get(golden, "optimizer"));
    struct training_options options = {
        .arch = json_string_value(json_object_get(golden, "model")),
        .side = 28,
        .hidden = (int64_t)number(golden, "hidden"),
        .micro = (int64_t)number(golden, "micro"),
        .seed = (uint64_t)number(golden, "seed"),
        .optimizer = strcmp(optimizer, "sgd") == 0 ? sgd : adamw,
    };
    options.optimizer.weight_decay = (float)number(golden, "weight_decay");
    options.optimizer.clip_norm = (float)number(golden, "clip_norm");
    training_open(t, &options);
}

static void follows_pytorch(const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/tests/golden/torch/%s.json", SOURCE_DIR, name);
    json_error_t error;
    json_t *golden = json_load_file(path, 0, &error);
    assert_non_null(golden);
    struct training t;
    open_case(golden, &t);
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
        if (difference(report.loss, theirs) >= TOLERANCE)
            fail_msg("step %u: loss %.8g, PyTorch's is %.8g", step, report.loss, theirs);
    }
    double eval = 0;
    for (int i = 0; i < lanes * micros; i++) {
        training_fill(&t, (uint32_t)(i * t.options.micro));
        eval += training_eval(&t) / (lanes * micros);
    }
    worst = fmax(worst, difference(eval, number(golden, "eval_loss")));
    print_message("%s: largest relative difference %.1e\n", name, worst);
    assert_true(difference(eval, number(golden, "eval_loss")) < TOLERANCE);
    training_close(&t);
    json_decref(golden);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mlp_follows_pytorch),
        cmocka_unit_test(lenet_follows_pytorch),
        cmocka_unit_test(mlp_with_adamw_follows_pytorch),
        cmocka_unit_test(mlp_with_clipped_gradients_follows_pytorch),
        cmocka_unit_test(resnet18_follows_pytorch),
        cmocka_unit_test(resnet18_in_lanes_and_micro_batches_follows_pytorch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
