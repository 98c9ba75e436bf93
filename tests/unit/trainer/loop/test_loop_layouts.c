/*
 * Layouts on a device: stages of one worker and of two, with all moments of their stage or with
 * parts of them, all ranks on one device, end with the digest of one rank. The module is a fake
 * (tests/gpu/fake) or, labelled gpu, the real one, where there is a device.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/module.h"
#include "tests/test.h"
#include "tests/unit/trainer/ranks_fixture.h"
#include "tests/unit/trainer/staged_gloo.h"
#include "tests/unit/trainer/tiny_jobs.h"

#define SKIPPED 77

static const struct ranks_job gpt2 = {
    tiny_gpt2,
    { "workers.device=cuda", "data.train.samples=60", "data.eval.samples=5", "model.layers=1",
      "model.heads=2", "model.width=32", "model.context=8", "model.vocab=32",
      "train.global_batch=8", "train.lanes=4", "train.accumulate=2", "eval.every=4 steps", NULL }
};

static const struct module *module;

static struct ranks_result *run(const char *const *sets, const uint32_t *shares, uint32_t size,
                                const uint32_t *widths, uint32_t stages, const char *dir)
{
    struct ranks_options options = { .job = &gpt2,
                                     .sets = sets,
                                     .size = size,
                                     .table = module->backend,
                                     .comm = staged_gloo(),
                                     .save = dir };
    memcpy(options.shares, shares, size * sizeof(*shares));
    for (uint32_t i = 0; stages > 1 && i < stages; i++)
        options.stages.of[options.stages.count++].workers = widths[i];
    return ranks_new_well(&options);
}

static void check_layouts(const char *precision, const char *folder)
{
    static const struct {
        const char *zero, *schedule;
        uint32_t stages, widths[4], shares[8], chunks;
    } rows[] = { { "parallel.zero=0", "1f1b", 2, { 1, 1 }, { 4, 4 }, 1 },
                 { "parallel.zero=1", "1f1b", 1, { 2 }, { 3, 1 }, 0 },
                 { "parallel.zero=1", "1f1b", 2, { 2, 1 }, { 1, 3, 4 }, 1 },
                 { "parallel.zero=0", "zb-h1", 2, { 2, 2 }, { 3, 1, 2, 2 }, 1 },
                 { "parallel.zero=1", "1f1b", 1, { 4 }, { 1, 1, 1, 1 }, 0 },
                 { "parallel.zero=0", "1f1b", 4, { 1, 1, 1, 1 }, { 4, 4, 4, 4 }, 1 },
                 { "parallel.zero=0", "zb-h1", 3, { 1, 1, 1 }, { 4, 4, 4 }, 1 },
                 /* A round, and several that come one after the other, as sends are met. */
                 { "parallel.zero=1", "interleaved", 2, { 4, 4 }, { 1, 1, 1, 1, 1, 1, 1, 1 }, 2 },
                 { "parallel.zero=0", "interleaved", 2, { 1, 1 }, { 4, 4 }, 2 },
                 { "parallel.zero=0", "interleaved", 3, { 2, 1, 1 }, { 3, 1, 4, 4 }, 2 } };
    const char *whole[] = { precision, NULL };
    static const uint32_t all[] = { 4 };
    struct ranks_result *one = run(whole, all, 1, NULL, 1, NULL);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *sets[] = { precision, rows[i].zero, NULL, NULL, NULL, NULL };
        char dir[256], schedule[64];
        uint32_t size = 0;
        if (rows[i].stages > 1) {
            (void)snprintf(schedule, sizeof(schedule), "parallel.schedule=%s", rows[i].schedule);
            sets[2] = "parallel.pipeline=2"; /* a pipeline; which, the test says */
            sets[3] = "workers.count=2";
            sets[4] = schedule;
        }
        for (uint32_t s = 0; s < rows[i].stages; s++)
            size += rows[i].widths[s];
        (void)snprintf(dir, sizeof(dir), "%s/%s-%zu", folder, precision, i);
        struct ranks_result *result =
            run(sets, rows[i].shares, size, rows[i].widths, rows[i].stages, dir);
        assert_string_equal(result->digest, one->digest);
        assert_int_equal(result->chunks, rows[i].chunks);
        free(result);
    }
    free(one);
}

static void no_layout_changes_a_bit(void **state)
{
    check_layouts("train.precision=fp32", *state);
}

static void nor_in_bf16(void **state)
{
    check_layouts("train.precision=bf16", *state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_layout_changes_a_bit, ranks_make_folder,
                                        ranks_remove_folder),
        cmocka_unit_test_setup_teardown(nor_in_bf16, ranks_make_folder, ranks_remove_folder),
    };
    struct reason reason;
    if (setenv("CAIRN_CUDA_MODULE", MODULE, 0) != 0)
        return 1;
    if (module_load("cuda", 0, &module, &reason) != ST_OK) {
        (void)printf("no device: %s\n", reason.text);
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
