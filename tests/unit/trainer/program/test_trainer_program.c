/* cairn-trainer as a program: whole jobs without a coordinator, its mistakes and exit codes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/test.h"

#define EXAMPLES SOURCE_DIR "/examples/"
#define SOURCE   SOURCE_DIR "/tests/unit/trainer/program/test_trainer_program.c" /* some text */
#define IMAGES   "/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz"

struct output {
    int code;
    size_t size;
    char text[1024 * 1024];
};

/* Runs the program; standard error comes with standard output. */
static struct output *run(const char *arguments)
{
    struct output *out = calloc(1, sizeof(*out));
    assert_non_null(out);
    char command[2048];
    (void)snprintf(command, sizeof(command), "%s %s 2>&1", TRAINER, arguments);
    FILE *pipe = popen(command, "re");
    assert_non_null(pipe);
    out->size = fread(out->text, 1, sizeof(out->text) - 1, pipe);
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    out->code = WEXITSTATUS(status);
    return out;
}

static void need_data(void)
{
    if (access(IMAGES, R_OK) == 0)
        return;
    print_message("skipped: %s is not there (Debian package dataset-fashion-mnist)\n", IMAGES);
    skip();
}

/* The number after the last `key` of a text. */
static double last_number(const char *text, const char *key)
{
    const char *at = NULL;
    for (const char *p = strstr(text, key); p != NULL; p = strstr(p + 1, key))
        at = p;
    assert_non_null(at);
    return strtod(at + strlen(key), NULL);
}

static void lenet_gets_85_percent_right_after_one_epoch(void **state)
{
    (void)state;
    need_data();
    struct output *out = run("--local " EXAMPLES "lenet-fashion.yaml");
    assert_int_equal(out->code, 0);
    double accuracy = last_number(out->text, " accuracy ");
    print_message("accuracy %.4f\n", accuracy);
    assert_true(accuracy >= 0.85);
    free(out);
}

static void two_runs_of_a_job_print_one_digest(void **state)
{
    (void)state;
    need_data();
    struct output *a = run("--local " EXAMPLES "mlp-fashion.yaml --steps 30");
    struct output *b = run("--local " EXAMPLES "mlp-fashion.yaml --steps 30 --digest");
    assert_int_equal(a->code, 0);
    assert_int_equal(b->size, 33);
    const char *digest = strstr(a->text, "\ndigest ");
    assert_non_null(digest);
    assert_string_equal(digest + strlen("\ndigest "), b->text);
    free(a);
    free(b);
}

static void a_plan_names_every_node_and_the_memory(void **state)
{
    (void)state;
    need_data();
    struct output *out = run("--plan " EXAMPLES "resnet18-fashion.yaml");
    assert_int_equal(out->code, 0);
    assert_non_null(strstr(out->text, "softmax_cross_entropy"));
    assert_non_null(strstr(out->text, "arena "));
    free(out);
}

/* A job that needs no files, in a folder of its own; the caller removes it. */
static void write_job(char path[64], const char *model, const char *train)
{
    (void)snprintf(path, 64, "/tmp/test_trainer_XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "w");
    assert_non_null(f);
    assert_true(fprintf(f,
                        "name: a\nmodel: %s\ndata: {train: {format: synthetic, samples: 128}}\n"
                        "train: {duration: 3 steps, global_batch: 16, %s optimizer: {lr: 0.1}}\n",
                        model, train) > 0);
    assert_int_equal(fclose(f), 0);
}

static struct output *run_on(const char *before, const char *path, const char *after)
{
    char arguments[1024];
    (void)snprintf(arguments, sizeof(arguments), "%s %s %s", before, path, after);
    return run(arguments);
}

static void must_hold(const struct output *out, const char *text)
{
    if (strstr(out->text, text) == NULL)
        fail_msg("\"%s\" is not in: %s", text, out->text);
}

static void the_plan_of_a_text_model_is_shown_whatever_its_size(void **state)
{
    (void)state;
    char path[64];
    write_job(path, "{arch: gpt2, size: 1558M, context: 64}", "");
    struct output *out = run_on("--plan", path, ""); /* 30 GB, if it were allocated */
    assert_int_equal(out->code, 0);
    must_hold(out, "gpt2: 1556.08 million parameters");
    must_hold(out, "16 samples in 8 lanes of 2, cut into 1 x 2");
    must_hold(out, "attention              2x64x1600");
    must_hold(out, "moments 0.0,"); /* sgd without momentum */
    free(out);
    out = run_on("--plan", path, "--set train.precision=bf16 --set train.micro_batch=1");
    assert_int_equal(out->code, 0);
    must_hold(out, "bf16, amp O1");
    must_hold(out, "cut into 2 x 1");
    free(out);
    assert_int_equal(unlink(path), 0);
}

static void too_few_lanes_for_shares_by_speed_are_said_and_what_audits_cost(void **state)
{
    (void)state;
    char path[64];
    write_job(path, "{arch: mlp, classes: 10}", "lanes: 8,");
    struct output *out = run_on("--plan", path, "--set workers.count=4 --set workers.shares=auto");
    assert_int_equal(out->code, 0);
    must_hold(out, "with 8 of them workers of unequal speed lose up to 50 %");
    must_hold(out, "train.lanes: 32 would");
    must_hold(out, "each lane is computed twice once in 200 steps: 0.5 % more; a checksum of the "
                   "state every 100 steps");
    free(out);
    out = run_on("--plan", path, "--set workers.count=1 --set workers.shares=auto");
    assert_null(strstr(out->text, "of unequal speed"));
    assert_null(strstr(out->text, "audits "));
    free(out);
    out = run_on("--plan", path, "--set workers.count=4 --set audit.every=none");
    assert_null(strstr(out->text, "of unequal speed"));
    must_hold(out, "audits     a checksum");
    free(out);
    (void)unlink(path);
}

static void the_plan_of_a_job_for_gpus_is_shown_without_one(void **state)
{
    (void)state;
    char path[64];
    write_job(path, "{arch: resnet50, classes: 1000}", "precision: fp16, micro_batch: auto,");
    assert_int_equal(setenv("CAIRN_CUDA_MODULE", "/nowhere/cairn-cuda.so", 1), 0);
    struct output *out = run_on("--plan", path, "--set workers.device=cuda");
    assert_int_equal(out->code, 0);
    must_hold(out, "resnet50: 25.56 million parameters");
    must_hold(out, "not known without the device");
    must_hold(out, "/nowhere/cairn-cuda.so");
    must_hold(out, "dynamic loss scale");
    must_hold(out, "max_pool               1x64x56x56");
    free(out);
    out = run_on("--local", path, "--set workers.device=cuda");
    assert_int_equal(out->code, 2);
    must_hold(out, "/nowhere/cairn-cuda.so");
    free(out);
    assert_int_equal(unsetenv("CAIRN_CUDA_MODULE"), 0);
    assert_int_equal(unlink(path), 0);
}

#if defined(MODULE)
/* No step waits for its own update: the last one's is waited for by the digest. */
static void a_device_that_fails_behind_the_last_step_is_told(void **state)
{
    (void)state;
    char path[64];
    int failed = 0, done = 0;
    write_job(path, "{arch: mlp, classes: 3, hidden: 8}", "");
    assert_int_equal(setenv("CAIRN_CUDA_MODULE", MODULE, 1), 0);
    for (int nth = 4; nth <= 40 && done < 2; nth++) {
        char fault[64];
        (void)snprintf(fault, sizeof(fault), "fail=cudaStreamSynchronize:%d:719", nth);
        assert_int_equal(setenv("CAIRN_FAKE_CUDA", fault, 1), 0);
        struct output *out = run_on("--local", path, "--set workers.device=cuda --steps 2");
        if ((out->code == 0) != (strstr(out->text, "\ndigest ") != NULL))
            fail_msg("wait %d: status %d: %s", nth, out->code, out->text);
        if (out->code == 0) {
            done++;
        } else {
            must_hold(out, "device failed");
            assert_null(strstr(out->text, "not enough memory"));
            failed++;
        }
        free(out);
    }
    assert_int_equal(unsetenv("CAIRN_CUDA_MODULE"), 0);
    assert_int_equal(unsetenv("CAIRN_FAKE_CUDA"), 0);
    assert_true(failed > 2);
    assert_int_equal(done, 2); /* beyond the last wait */
    assert_int_equal(unlink(path), 0);
}
#endif

static void a_token_out_of_range_ends_a_run_with_its_file_and_place(void **state)
{
    (void)state;
    char path[64];
    write_job(path, "{arch: gpt2, layers: 1, heads: 2, width: 16, context: 8, vocab: 90}", "");
    struct output *out =
        run_on("--local", path, "--set 'data.train={format: text, path: " SOURCE "}'");
    assert_int_equal(out->code, 2);
    must_hold(out, "test_trainer_program.c: token ");
    must_hold(out, "is not below model.vocab (90); raise model.vocab or correct the file");
    free(out);
    out = run_on("--local", path,
                 "--set 'data.train={format: text, path: " SOURCE "}' --set model.vocab=256");
    assert_int_equal(out->code, 0);
    must_hold(out, "\ndigest ");
    free(out);
    assert_int_equal(unlink(path), 0);
}

static void a_mistake_of_the_user_ends_with_code_2_and_its_place(void **state)
{
    (void)state;
    need_data();
    static const struct {
        const char *arguments, *text;
    } cases[] = {
        { "--local /nowhere.yaml", "/nowhere.yaml: no such file" },
        { "--local " EXAMPLES "mlp-fashion.yaml --set model.clases=3", "did you mean 'classes'?" },
        { "--local " EXAMPLES "mlp-fashion.yaml --set data.train.images=/nowhere.gz",
          "/nowhere.gz: no such file; correct the path in the job file" },
        { "--local " EXAMPLES "mlp-fashion.yaml --set model.classes=4",
          "is not below model.classes (4)" },
        { "--local " EXAMPLES "mlp-fashion.yaml --set train.global_batch=60008",
          "holds 60000 samples, fewer than train.global_batch (60008)" },
        { "--bogus", "usage: cairn-trainer" },
        { "--job j --generation x", "usage: cairn-trainer" },
        { "", "usage: cairn-trainer" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct output *out = run(cases[i].arguments);
        if (out->code != 2 || strstr(out->text, cases[i].text) == NULL)
            fail_msg("%s: exit code %d, %s", cases[i].arguments, out->code, out->text);
        free(out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lenet_gets_85_percent_right_after_one_epoch),
        cmocka_unit_test(two_runs_of_a_job_print_one_digest),
        cmocka_unit_test(a_plan_names_every_node_and_the_memory),
        cmocka_unit_test(the_plan_of_a_text_model_is_shown_whatever_its_size),
        cmocka_unit_test(too_few_lanes_for_shares_by_speed_are_said_and_what_audits_cost),
        cmocka_unit_test(the_plan_of_a_job_for_gpus_is_shown_without_one),
#if defined(MODULE)
        cmocka_unit_test(a_device_that_fails_behind_the_last_step_is_told),
#endif
        cmocka_unit_test(a_token_out_of_range_ends_a_run_with_its_file_and_place),
        cmocka_unit_test(a_mistake_of_the_user_ends_with_code_2_and_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
