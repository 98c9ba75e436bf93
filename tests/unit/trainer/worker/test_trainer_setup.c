/* From a job file to what the parts get: settings, data sets, models, and the memory they take. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "tests/test.h"
#include "trainer/device/progress.h"
#include "trainer/worker/build.h"
#include "trainer/worker/memory_need.h"
#include "trainer/worker/settings.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

static const char text_job[] =
    "name: t\n"
    "model: {arch: gpt2, layers: 2, heads: 4, width: 64, context: 32, vocab: 100}\n"
    "data: {train: {format: synthetic, samples: 96}, eval: {format: synthetic}}\n"
    "train: {duration: 2 epochs, global_batch: 48, lanes: 4,\n"
    "        optimizer: {name: adamw, lr: 1e-3}}\n";

struct setup {
    struct jobspec job;
    struct settings settings;
    struct dataset *data;
    struct tape *tape;
    struct reason reason;
};

/* text_job with up to four settings, as far as it goes without a device. */
static struct setup *set_up_job(const char *const *sets, size_t count)
{
    struct setup *s = calloc(1, sizeof(*s));
    assert_non_null(s);
    auto_buf struct buf errors;
    buf_init(&errors, 1 << 20);
    enum status st =
        jobspec_parse(text_job, strlen(text_job), "t.yaml", "/base", sets, count, &s->job, &errors);
    if (st != ST_OK)
        fail_msg("%s", errors.size > 0 ? errors.data : status_string(st));
    struct build_options options = { .job = &s->job, .io = io_system() };
    st = build_dataset(&options, &s->data, &s->reason);
    if (st == ST_OK) {
        st = settings_derive(&s->job, s->data->samples, &s->settings, &s->reason);
    }
    if (st == ST_OK)
        st = build_tape(&s->job, s->data, &s->tape, &s->reason);
    if (st != ST_OK)
        fail_msg("%s", s->reason.text);
    return s;
}

static void close_setup(struct setup *s)
{
    tape_free(s->tape);
    dataset_close(s->data);
    free(s);
}

static void words_of_precision_become_options_of_the_parts(void **state)
{
    (void)state;
    static const struct {
        const char *sets[4];
        enum math math;
        enum amp amp;
        bool dynamic;
        double scale;
    } cases[] = {
        { { "train.precision=fp32" }, MATH_F32, AMP_O1, false, 1 },
        { { "train.precision=bf16" }, MATH_BF16, AMP_O1, false, 1 },
        { { "train.precision=bf16", "train.amp=O2", "train.loss_scale=128" },
          MATH_BF16,
          AMP_O2,
          false,
          128 },
        { { "train.precision=fp16", "workers.device=cuda" }, MATH_F16, AMP_O1, true, 32768 },
        { { "train.precision=tf32", "workers.device=cuda" }, MATH_TF32, AMP_O1, false, 1 },
        { { "train.precision=bf16", "train.loss_scale=dynamic" }, MATH_BF16, AMP_O1, true, 65536 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t count = 0;
        while (cases[i].sets[count] != NULL)
            count++;
        struct setup *s = set_up_job(cases[i].sets, count);
        assert_int_equal(s->settings.math, cases[i].math);
        assert_int_equal(s->settings.amp, cases[i].amp);
        assert_int_equal(s->settings.scaler.dynamic, cases[i].dynamic);
        assert_true(s->settings.scaler.scale == cases[i].scale);
        close_setup(s);
    }
}

static void kinds_of_parameters_that_do_not_decay_become_a_set(void **state)
{
    (void)state;
    static const struct {
        const char *set;
        unsigned want;
    } cases[] = {
        { "name=a", TAPE_BIAS | TAPE_NORM },
        { "train.optimizer.no_decay=[]", 0 },
        { "train.optimizer.no_decay=[embedding]", TAPE_EMBEDDING },
        { "train.optimizer.name=sgd", 0 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct setup *s = set_up_job(&cases[i].set, 1);
        assert_int_equal(s->settings.optimizer.no_decay, cases[i].want);
        close_setup(s);
    }
}

static void a_model_and_its_samples_have_one_shape(void **state)
{
    (void)state;
    static const struct {
        const char *set;
        int ndim;
        int64_t dims[4];
    } cases[] = {
        { "name=a", 2, { 1, 32 } },
        { "model={arch: resnet50}", 4, { 1, 3, 224, 224 } },
        { "model={arch: resnet152}", 4, { 1, 3, 224, 224 } },
        { "model={arch: resnet18}", 4, { 1, 1, 28, 28 } },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct setup *s = set_up_job(&cases[i].set, 1);
        const struct tensor *x = &s->tape->values[s->tape->inputs[0]].tensor;
        assert_int_equal(x->ndim, cases[i].ndim);
        assert_memory_equal(x->dims, cases[i].dims, (size_t)x->ndim * sizeof(int64_t));
        close_setup(s);
    }
}

/* The job file is refused by it, before there is a tape. */
static void the_job_knows_how_large_a_text_models_state_is(void **state)
{
    (void)state;
    static const struct {
        const char *set;
        uint64_t copies;
    } cases[] = {
        { "name=a", 3 },
        { "train.optimizer={name: sgd, lr: 0.1}", 1 },
        { "train.optimizer={name: sgd, lr: 0.1, momentum: 0.9}", 2 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct setup *s = set_up_job(&cases[i].set, 1);
        assert_int_equal(jobspec_state_bytes(&s->job),
                         cases[i].copies * s->tape->param_elements * sizeof(float));
        close_setup(s);
    }
}

/* The images for which jobspec_parameters counts. */
static struct dataset_shape counted_shape(enum jobspec_arch arch, int64_t patch)
{
    switch (arch) {
    case JOBSPEC_ARCH_RESNET18:
        return (struct dataset_shape){ .channels = 3, .height = 32, .width = 32 };
    case JOBSPEC_ARCH_RESNET50:
    case JOBSPEC_ARCH_RESNET152:
        return (struct dataset_shape){ .channels = 3, .height = 224, .width = 224 };
    case JOBSPEC_ARCH_VIT:
        if (patch >= 8)
            return (struct dataset_shape){ .channels = 3, .height = 224, .width = 224 };
        break;
    case JOBSPEC_ARCH_MLP:
    case JOBSPEC_ARCH_LENET:
    case JOBSPEC_ARCH_GPT2:
    case JOBSPEC_ARCH_BERT:
    case JOBSPEC_ARCH_LLAMA:
    case JOBSPEC_ARCH_GRAPH:
    case JOBSPEC_ARCH_LIBRARY:
    case JOBSPEC_ARCH_NONE:
        break;
    }
    return (struct dataset_shape){ .channels = 1, .height = 28, .width = 28 };
}

static void the_job_counts_parameters_as_the_tape_does(void **state)
{
    (void)state;
    static const enum jobspec_arch archs[] = { JOBSPEC_ARCHS(JOBSPEC_WORD_NAME) };
    static const struct jobspec_model settings[] = {
        { .classes = 10,
          .hidden = 256,
          .patch = 7,
          .layers = 2,
          .heads = 4,
          .width = 64,
          .context = 32,
          .vocab = 100,
          .kv_heads = 2,
          .intermediate = 96,
          .tied = true },
        { .classes = 2,
          .hidden = 1,
          .patch = 28,
          .layers = 1,
          .heads = 1,
          .width = 8,
          .context = 1,
          .vocab = 256,
          .kv_heads = 1,
          .intermediate = 1 },
        { .classes = 1000,
          .hidden = 4096,
          .patch = 16,
          .layers = 12,
          .heads = 12,
          .width = 768,
          .context = 1024,
          .vocab = 50257,
          .dropout = 0.1,
          .kv_heads = 3,
          .intermediate = 2048 },
        { .classes = 10, /* GPT-2's largest */
          .hidden = 256,
          .patch = 14,
          .layers = 48,
          .heads = 25,
          .width = 1600,
          .context = 1024,
          .vocab = 50257,
          .kv_heads = 5,
          .intermediate = 4352 },
    };
    const size_t arch_count = sizeof(archs) / sizeof(archs[0]);
    for (size_t i = 0; i < arch_count * (sizeof(settings) / sizeof(settings[0])); i++) {
        auto_free struct jobspec *job = calloc(1, sizeof(*job));
        assert_non_null(job);
        job->model = settings[i / arch_count];
        job->model.arch = archs[i % arch_count];
        if (job->model.arch == JOBSPEC_ARCH_GRAPH || job->model.arch == JOBSPEC_ARCH_LIBRARY)
            continue; /* test_trainer_graph compares them */
        const struct dataset data = { .shape = counted_shape(job->model.arch, job->model.patch) };
        struct tape *tape = NULL;
        struct reason reason = { "" };
        if (build_tape(job, &data, &tape, &reason) != ST_OK)
            fail_msg("%s", reason.text);
        if (jobspec_parameters(&job->model) != tape->param_elements)
            fail_msg("%s: setting %zu", jobspec_arch_word(job->model.arch), i / arch_count);
        tape_free(tape);
    }
}

static void a_model_that_cannot_be_built_is_refused_with_its_numbers(void **state)
{
    (void)state;
    const char *sets[] = { "name=a" };
    struct setup *s = set_up_job(sets, 1);
    s->job.model.heads = 7; /* jobspec_parse wouldn't let it through */
    struct tape *tape = NULL;
    assert_int_equal(build_tape(&s->job, s->data, &tape, &s->reason), ST_CONFIG);
    assert_null(tape);
    assert_non_null(strstr(s->reason.text, "with 7 heads"));
    close_setup(s);
}

/* ---- memory ---- */

struct measured_job {
    struct setup *setup;
    const struct backend_table *table;
    struct backend *backend;
    struct memory_need_options options;
};

static struct measured_job open_measured(const char *set)
{
    struct measured_job b = { .setup = set_up_job(&set, 1), .table = backend_cpu() };
    struct backend_options backend = { .threads = 1 };
    assert_int_equal(b.table->open(&backend, &b.backend), ST_OK);
    b.options = (struct memory_need_options){ .tape = b.setup->tape,
                                              .settings = &b.setup->settings,
                                              .table = b.table,
                                              .backend = b.backend,
                                              .lane_count = 2,
                                              .evaluates = true };
    return b;
}

static void close_measured(struct measured_job *b)
{
    b->table->close(b->backend);
    close_setup(b->setup);
}

static void memory_is_counted_by_what_it_is_for(void **state)
{
    (void)state;
    struct measured_job b = open_measured("train.micro_batch=4");
    struct memory_need small;
    struct memory_need large;
    assert_int_equal(memory_need_measure(&b.options, 4, &small), ST_OK);
    assert_int_equal(memory_need_measure(&b.options, 8, &large), ST_OK);
    size_t params = b.setup->tape->param_elements * sizeof(float);
    assert_int_equal(small.parameters, params); /* no running statistics */
    assert_int_equal(small.moments, 2 * params);
    assert_in_range(small.gradients, 2 * params, 4 * params); /* 2 or 3 copies of the vector */
    assert_int_equal(small.inputs, 2 * (2 * 4 * 32 + 3 + 4) * sizeof(int32_t));
    assert_true(large.activations > small.activations);
    assert_int_equal(large.parameters, small.parameters);
    char text[256];
    memory_need_print(&small, text, sizeof(text));
    assert_non_null(strstr(text, "moments "));
    assert_int_equal(memory_need_total(&small), small.activations + small.caches +
                                                    small.parameters + small.moments +
                                                    small.gradients + small.inputs);
    close_measured(&b);
}

static void an_automatic_micro_batch_is_the_largest_that_fits_the_device(void **state)
{
    (void)state;
    struct measured_job b = open_measured("train.global_batch=96"); /* 24 samples a lane */
    struct memory_need_options whole = b.options;
    whole.lane_count = 4;
    for (uint32_t micro = 1; micro <= 24; micro++) {
        struct memory_need exactly;
        struct memory_need need;
        uint32_t found = 0;
        assert_int_equal(memory_need_measure(&whole, micro, &exactly), ST_OK);
        /* A tenth and 512 MiB stay free. */
        uint64_t device = (memory_need_total(&exactly) + 512 * MIB) * 10 / 9 + 10;
        uint32_t want = micro;
        while (24 % want != 0)
            want--;
        for (uint32_t lanes = 1; lanes <= 4; lanes++) { /* whoever shares them */
            b.options.lane_count = lanes;
            assert_int_equal(memory_need_fit(&b.options, 24, device, &found, &need), ST_OK);
            assert_int_equal(found, want);
        }
        if (24 % micro == 0) {
            assert_memory_equal(&need, &exactly, sizeof(need));
            enum status st = memory_need_fit(&b.options, 24, device - 200, &found, &need);
            assert_true(st == ST_NO_MEMORY || found < micro);
        }
    }
    close_measured(&b);
}

static void a_device_that_holds_not_even_one_sample_is_told_apart(void **state)
{
    (void)state;
    struct measured_job b = open_measured("name=a");
    struct memory_need need = { 0 };
    uint32_t found = 77;
    assert_int_equal(memory_need_fit(&b.options, 12, 500 * MIB, &found, &need), ST_NO_MEMORY);
    assert_int_equal(found, 77);
    assert_true(need.activations > 0);
    assert_int_equal(memory_need_fit(&b.options, 12, GIB, &found, &need), ST_OK);
    assert_int_equal(found, 12);
    close_measured(&b);
}

static void what_was_done_is_counted_over_generations(void **state)
{
    (void)state;
    struct progress p = { .session = NULL };
    progress_init(&p, NULL, NULL, 1, 3);
    progress_tick(&p);
    progress_step(&p, 7);
    progress_collective_begin(&p, "open");
    progress_stop(&p);
    assert_true(progress_stopped(&p));
    progress_init(&p, NULL, NULL, 0, 4);
    progress_tick(&p);
    assert_int_equal(p.ticks, 2);
    assert_false(progress_stopped(&p));
    assert_int_equal(p.generation, 4);
    assert_int_equal(p.step, 0);
    assert_int_equal(p.collective, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_of_precision_become_options_of_the_parts),
        cmocka_unit_test(kinds_of_parameters_that_do_not_decay_become_a_set),
        cmocka_unit_test(a_model_and_its_samples_have_one_shape),
        cmocka_unit_test(the_job_knows_how_large_a_text_models_state_is),
        cmocka_unit_test(the_job_counts_parameters_as_the_tape_does),
        cmocka_unit_test(a_model_that_cannot_be_built_is_refused_with_its_numbers),
        cmocka_unit_test(memory_is_counted_by_what_it_is_for),
        cmocka_unit_test(what_was_done_is_counted_over_generations),
        cmocka_unit_test(an_automatic_micro_batch_is_the_largest_that_fits_the_device),
        cmocka_unit_test(a_device_that_holds_not_even_one_sample_is_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
