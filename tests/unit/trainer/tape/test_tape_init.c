/* Initial parameters: their distributions, and that no library moves their bits. */
#include <math.h>
#include <stdlib.h>

#include "common/rng.h"
#include "tests/test.h"
#include "trainer/models/models.h"
#include "trainer/tape/initial_values.h"

static void four_words_give_the_numbers_of_box_and_muller(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 20000; i++) {
        struct rng_counter words = rng_words(9, i, 0, 0, 0);
        if (i < 4) { /* the ends of the range */
            words.word[i] = 0;
            words.word[3 - i] = UINT32_MAX;
        }
        double out[4];
        initial_values_normal(words.word, out);
        for (int k = 0; k < 4; k += 2) {
            double u = ((double)words.word[k] + 1) / 4294967296.0;
            double turn = 6.283185307179586477 * (double)words.word[k + 1] / 4294967296.0;
            double radius = sqrt(-2 * log(u));
            assert_true(fabs(out[k] - radius * cos(turn)) < 1e-13);
            assert_true(fabs(out[k + 1] - radius * sin(turn)) < 1e-13);
        }
    }
}

static void normal_numbers_have_the_moments_of_the_distribution(void **state)
{
    (void)state;
    double sum[4] = { 0 };
    const int count = 400000;
    for (uint32_t i = 0; i < (uint32_t)count / 4; i++) {
        double out[4];
        initial_values_normal(rng_words(4, i, 1, 0, 0).word, out);
        for (int k = 0; k < 4; k++) {
            double power = 1;
            for (int m = 0; m < 4; m++) {
                power *= out[k];
                sum[m] += power / count;
            }
        }
    }
    assert_true(fabs(sum[0]) < 0.01);
    assert_true(fabs(sum[1] - 1) < 0.01);
    assert_true(fabs(sum[2]) < 0.03);
    assert_true(fabs(sum[3] - 3) < 0.06);
}

static const struct tape_tensor *param(const struct tape *tape, const char *name)
{
    int index = tape_find_param(tape, name);
    assert_true(index >= 0);
    return &tape->params[index];
}

/* However they are drawn. */
static void check_param(const struct tape *tape, int index, const float *params)
{
    const struct tape_tensor *tensor = &tape->params[index];
    for (size_t e = 0; e < tensor->count; e++) {
        double four[4];
        initial_values_normal(
            rng_words(rng_key(17, RNG_INIT), (uint32_t)(e / 4), (uint32_t)index, 0, 0).word, four);
        assert_true(params[tensor->offset + e] == (float)((double)tensor->std * four[e % 4]));
    }
}

static double deviation(const struct tape_tensor *tensor, const float *params)
{
    double square = 0;
    for (size_t i = 0; i < tensor->count; i++)
        square += pow((double)params[tensor->offset + i], 2);
    return sqrt(square / (double)tensor->count);
}

static void gpt2_starts_with_the_deviations_of_its_paper(void **state)
{
    (void)state;
    struct model_options options = {
        .arch = "gpt2", .layers = 8, .heads = 4, .embed = 128, .context = 32, .vocab = 501
    };
    struct tape *tape = NULL;
    assert_int_equal(model_build(&options, &tape), ST_OK);
    float *params = malloc(tape->param_elements * sizeof(*params));
    assert_non_null(params);
    initial_values_params(tape, 17, params);
    const struct {
        const char *name;
        double deviation;
    } rows[] = {
        { "transformer.wte.weight", 0.02 },
        { "transformer.h.3.attn.c_attn.weight", 0.02 },
        { "transformer.h.3.mlp.c_fc.weight", 0.02 },
        { "transformer.h.3.attn.c_proj.weight", 0.02 / 4 }, /* / sqrt(2·8) */
        { "transformer.h.7.mlp.c_proj.weight", 0.02 / 4 },
        { "transformer.h.3.attn.c_attn.bias", 0 },
        { "transformer.h.3.ln_1.bias", 0 },
        { "transformer.ln_f.weight", 1 },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        double found = deviation(param(tape, rows[i].name), params);
        if (fabs(found - rows[i].deviation) > 0.03 * rows[i].deviation)
            fail_msg("%s: deviation %.5f, wanted %.5f", rows[i].name, found, rows[i].deviation);
    }
    for (int i = 0; i < tape->param_count; i++) {
        if (tape->params[i].init == TAPE_INIT_NORMAL)
            check_param(tape, i, params);
    }
    free(params);
    tape_free(tape);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(four_words_give_the_numbers_of_box_and_muller),
        cmocka_unit_test(normal_numbers_have_the_moments_of_the_distribution),
        cmocka_unit_test(gpt2_starts_with_the_deviations_of_its_paper),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
