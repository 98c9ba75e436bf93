/* cairn-trainer as a program: whole jobs without a coordinator, its mistakes and exit codes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/test.h"

#define EXAMPLES SOURCE_DIR "/examples/"
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
        cmocka_unit_test(a_mistake_of_the_user_ends_with_code_2_and_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
