/*
 * Whole small jobs on the CUDA backend over the fakes of its libraries and the emulated kernels
 * (tests/gpu/fake): the same digest for one rank and two and after a restore, losses close to the
 * CPU's. Between ranks Gloo carries what the device's memory holds: NCCL has its own test.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "jobspec/jobspec.h"
#include "kernels/module.h"
#include "tests/test.h"
#include "tests/unit/trainer/ranks_fixture.h"
#include "tests/unit/trainer/staged_gloo.h"
#include "tests/unit/trainer/tiny_jobs.h"

/* Emulated kernels are slow. */
#define LITTLE_DATA "workers.device=cuda", "data.train.samples=60", "data.eval.samples=5"

static const struct ranks_job mlp = { tiny_mlp,
                                      { LITTLE_DATA, "model.hidden=24", "train.global_batch=6",
                                        "train.lanes=3", "train.duration=4 steps" } };
static const struct ranks_job lenet = {
    tiny_lenet, { LITTLE_DATA, "train.global_batch=3", "train.lanes=3", "train.duration=2 steps" }
};
static const struct ranks_job gpt2 = { tiny_gpt2,
                                       { LITTLE_DATA, "model.layers=1", "model.heads=2",
                                         "model.width=32", "model.context=8", "model.vocab=32",
                                         "train.global_batch=6", "train.lanes=3",
                                         "train.accumulate=2", "eval.every=4 steps" } };

static const struct ranks_job llama = {
    tiny_gpt2,
    { LITTLE_DATA,
      "model={arch: llama, layers: 1, heads: 4, kv_heads: 2, width: 32, intermediate: 40, context: "
      "8, vocab: 32}",
      "train.global_batch=6", "train.lanes=3", "train.accumulate=2", "eval.every=4 steps" }
};

/* ---- the module, as a trainer loads it ---- */

struct fake {
    const struct module *module;
    void (*describe)(const char *words);
    size_t (*memory_left)(void);
    int (*objects_left)(void);
    int (*calls)(const char *function);
};

/* ISO C has no cast from void * to a function. */
static void find(void *file, const char *name, void *out)
{
    void *symbol = dlsym(file, name);
    if (symbol == NULL)
        fail_msg("%s: no %s", MODULE, name);
    memcpy(out, &symbol, sizeof(symbol));
}

static struct fake load(void)
{
    struct fake fake = { 0 };
    struct reason reason;
    assert_int_equal(setenv("CAIRN_CUDA_MODULE", MODULE, 1), 0);
    if (module_load("cuda", 0, &fake.module, &reason) != ST_OK)
        fail_msg("%s", reason.text);
    void *file = dlopen(MODULE, RTLD_NOW | RTLD_LOCAL); /* the same again */
    assert_non_null(file);
    find(file, "fake_cuda_describe", &fake.describe);
    find(file, "fake_cuda_memory_left", &fake.memory_left);
    find(file, "fake_cuda_objects_left", &fake.objects_left);
    find(file, "fake_cuda_calls", &fake.calls);
    return fake;
}

static void check_nothing_is_left(void)
{
    const struct fake fake = load();
    assert_int_equal(fake.memory_left(), 0);
    assert_int_equal(fake.objects_left(), 0);
}

/* ---- jobs ---- */

static struct ranks_options on_device(const struct ranks_job *job, const char *const *sets,
                                      uint32_t size)
{
    return (struct ranks_options){ .job = job,
                                   .sets = sets,
                                   .size = size,
                                   .shares = { size == 1 ? 3 : 2, 1 },
                                   .table = load().module->backend,
                                   .comm = staged_gloo() };
}

/* far: how much the loss may differ from the CPU's; 0: the CPU doesn't do that. */
static void check_job(const struct ranks_job *job, const char *const *sets, double far)
{
    struct ranks_options options = on_device(job, sets, 1);
    struct ranks_result *one = ranks_new_well(&options);
    options = on_device(job, sets, 2);
    struct ranks_result *two = ranks_new_well(&options);
    assert_string_equal(one->digest, two->digest);
    assert_memory_equal(&one->rows[1].loss, &two->rows[1].loss, sizeof(float));
    check_nothing_is_left();
    if (far > 0) {
        options.size = 1;
        options.shares[0] = 3;
        options.table = backend_cpu();
        options.comm = comm_gloo();
        struct ranks_result *cpu = ranks_new_well(&options);
        assert_int_equal(cpu->row_count, one->row_count);
        for (size_t i = 0; i < cpu->row_count; i++)
            assert_float_equal(cpu->rows[i].loss, one->rows[i].loss, far);
        assert_float_equal(cpu->rows[cpu->row_count - 1].eval_loss,
                           one->rows[cpu->row_count - 1].eval_loss, far);
        free(cpu);
    }
    free(one);
    free(two);
}

static void an_mlp_trains_as_on_the_cpu(void **state)
{
    (void)state;
    check_job(&mlp, NULL, 1e-5);
}

static void a_lenet_trains_as_on_the_cpu(void **state)
{
    (void)state;
    check_job(&lenet, NULL, 1e-5);
}

static void a_gpt2_trains_as_on_the_cpu(void **state)
{
    (void)state;
    check_job(&gpt2, NULL, 1e-5);
}

static void a_llama_trains_as_on_the_cpu(void **state)
{
    (void)state;
    const char *const half[] = { "train.precision=bf16", NULL };
    check_job(&llama, NULL, 1e-5);
    check_job(&llama, half, 2e-3);
}

static void every_precision_trains(void **state)
{
    (void)state;
    static const struct {
        const char *sets[3];
        double far;
    } rows[] = { { { "train.precision=bf16", NULL }, 2e-3 },
                 { { "train.precision=bf16", "train.amp=O2", NULL }, 5e-3 },
                 { { "train.precision=tf32", NULL }, 0 },
                 { { "train.precision=fp16", "train.loss_scale=256", NULL }, 0 },
                 { { "train.precision=fp16", NULL }, 0 } };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        check_job(&gpt2, rows[i].sets, rows[i].far);
}

/* Calls of a function in a run of so many steps. */
static int calls_in(const struct ranks_job *job, const char *steps, const char *function)
{
    const char *const sets[] = { steps, "eval.every=100 steps", NULL };
    const struct fake fake = load();
    const struct ranks_options options = on_device(job, sets, 1);
    fake.describe("");
    free(ranks_new_well(&options));
    return fake.calls(function);
}

/* From the third step on all is recorded. Three lanes of two micro-batches, each a graph forward
 * and one backward; copies of parameters are the optimizer's work. */
static void a_step_waits_once_and_a_device_alone_cuts_no_pass(void **state)
{
    (void)state;
    static const struct {
        const char *function;
        int of_a_step;
    } rows[] = { { "cudaStreamSynchronize", 1 }, { "cudaGraphLaunch", 3 * 2 * 2 } };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const int three = calls_in(&gpt2, "train.duration=3 steps", rows[i].function);
        const int six = calls_in(&gpt2, "train.duration=6 steps", rows[i].function);
        if (six - three != 3 * rows[i].of_a_step)
            fail_msg("%s: %d in three steps, %d in six", rows[i].function, three, six);
    }
}

/* fp16's dynamic scale starts too high; what overflows is left out, and told by the norm. */
static void a_scale_that_is_too_high_comes_down(void **state)
{
    const char *const sets[] = { "train.precision=fp16", "train.duration=6 steps", NULL };
    struct ranks_options options = on_device(&gpt2, sets, 1);
    options.loss_scale = 0x1p17;
    struct ranks_result *one = ranks_new_well(&options);
    assert_true(isfinite(one->rows[0].grad_norm) == 0);
    assert_true(isfinite(one->rows[0].loss) != 0);
    assert_true(isfinite(one->rows[5].grad_norm) != 0);
    char dir[256];
    (void)snprintf(dir, sizeof(dir), "%s/step", (char *)*state);
    options = on_device(&gpt2, sets, 2);
    options.loss_scale = 0x1p17;
    options.stop_at = 1;
    options.save = dir;
    free(ranks_new_well(&options));
    options = on_device(&gpt2, sets, 2);
    options.restore = dir;
    options.restore_step = 1;
    struct ranks_result *two = ranks_new_well(&options);
    assert_string_equal(one->digest, two->digest);
    free(one);
    free(two);
}

static void check_restored(const char *dir, const char *const *sets)
{
    struct ranks_options options = on_device(&gpt2, sets, 1);
    struct ranks_result *quiet = ranks_new_well(&options);
    options = on_device(&gpt2, sets, 2);
    options.stop_at = 2;
    options.save = dir;
    free(ranks_new_well(&options));
    for (uint32_t size = 1; size <= 2; size++) {
        options = on_device(&gpt2, sets, size);
        options.restore = dir;
        options.restore_step = 2;
        struct ranks_result *end = ranks_new_well(&options);
        assert_string_equal(end->digest, quiet->digest);
        free(end);
    }
    free(quiet);
}

/* Kernels' copies of parameters come from a restore first, then from updates. */
static void a_restored_job_ends_as_if_nothing_had_happened(void **state)
{
    static const char *const precisions[] = { "train.precision=fp32", "train.precision=bf16" };
    for (size_t i = 0; i < sizeof(precisions) / sizeof(precisions[0]); i++) {
        const char *const sets[] = { precisions[i], NULL };
        char dir[256];
        (void)snprintf(dir, sizeof(dir), "%s/step%zu", (char *)*state, i);
        check_restored(dir, sets);
    }
}

static void memory_that_runs_out_is_told_by_what_it_is_for(void **state)
{
    (void)state;
    const struct fake fake = load();
    fake.describe("memory=40000000");
    const char *const sets[] = { "model.hidden=4096", NULL };
    struct ranks_options options = on_device(&mlp, sets, 1);
    struct ranks_result *result = malloc(sizeof(*result));
    assert_non_null(result);
    ranks_run(&options, result);
    assert_int_equal(result->st, ST_NO_MEMORY);
    if (strstr(result->reason.text, "not enough memory for the") == NULL ||
        strstr(result->reason.text, "gradient copies") == NULL)
        fail_msg("%s", result->reason.text);
    free(result);
    check_nothing_is_left();
    fake.describe("");
}

/* A worker of the module's device, as a trainer opens it. */
static enum status open_managed(const struct stage_plan *stages, uint32_t rank,
                                struct reason *reason)
{
    static const uint32_t shares[] = { 3, 3 };
    const char *sets[] = { LITTLE_DATA,          "model.hidden=8192", "train.global_batch=6",
                           "train.lanes=3",      "audit.every=none",  "workers.memory=managed",
                           "train.micro_batch=1" };
    struct jobspec job;
    struct progress progress;
    struct worker *worker = NULL;
    auto_buf struct buf errors;
    buf_init(&errors, 1 << 20);
    if (jobspec_parse(tiny_mlp, strlen(tiny_mlp), "t.yaml", "/", sets,
                      sizeof(sets) / sizeof(sets[0]), &job, &errors) != ST_OK)
        fail_msg("%s", errors.data);
    progress_init(&progress, NULL, NULL, rank, 1);
    const struct worker_options options = { .job = &job,
                                            .io = io_system(),
                                            .progress = &progress,
                                            .rank = rank,
                                            .size = stages != NULL ? 2 : 1,
                                            .shares = shares,
                                            .stages = stages };
    enum status st = worker_open(&options, &worker, reason);
    worker_close(worker);
    return st;
}

/* The second stage has a seventieth of the parameters. */
static void managed_memory_is_held_to_what_a_stage_takes(void **state)
{
    (void)state;
    static const struct stage_plan stages = { .count = 2,
                                              .of = { { .workers = 1 }, { .workers = 1 } } };
    const struct fake fake = load();
    struct reason reason;
    fake.describe("memory=85000000"); /* the addresses of all of the state are taken at once */
    assert_int_equal(open_managed(NULL, 0, &reason), ST_CONFIG);
    assert_non_null(strstr(reason.text, "workers.memory: managed"));
    assert_int_equal(open_managed(&stages, 0, &reason), ST_CONFIG);
    assert_non_null(strstr(reason.text, "micro-batches under way"));
    if (open_managed(&stages, 1, &reason) != ST_OK)
        fail_msg("%s", reason.text);
    check_nothing_is_left();
    fake.describe("");
}

#define IN_FOLDER(name)                                                                            \
    cmocka_unit_test_setup_teardown(name, ranks_make_folder, ranks_remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_mlp_trains_as_on_the_cpu),
        cmocka_unit_test(a_lenet_trains_as_on_the_cpu),
        cmocka_unit_test(a_gpt2_trains_as_on_the_cpu),
        cmocka_unit_test(a_llama_trains_as_on_the_cpu),
        cmocka_unit_test(every_precision_trains),
        cmocka_unit_test(a_step_waits_once_and_a_device_alone_cuts_no_pass),
        IN_FOLDER(a_scale_that_is_too_high_comes_down),
        IN_FOLDER(a_restored_job_ends_as_if_nothing_had_happened),
        cmocka_unit_test(memory_that_runs_out_is_told_by_what_it_is_for),
        cmocka_unit_test(managed_memory_is_held_to_what_a_stage_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
