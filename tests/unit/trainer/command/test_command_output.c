/* What a program writes: lines, steps, last words, Python's stacks; and what its end means. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/test.h"
#include "trainer/command/failure.h"
#include "trainer/command/output.h"

struct fixture {
    int said[2], log[2];
    struct pattern *progress;
    struct output output;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct reason why;
    size_t offset = 0;
    assert_non_null(f);
    assert_int_equal(pipe2(f->said, O_NONBLOCK | O_CLOEXEC), 0);
    assert_int_equal(pipe2(f->log, O_NONBLOCK | O_CLOEXEC), 0);
    assert_int_equal(pattern_compile("step (\\d+)", &f->progress, &offset, &why), ST_OK);
    f->output = (struct output){ .log_fd = f->log[1], .label = "", .progress = f->progress };
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        if (f->said[i] >= 0)
            (void)close(f->said[i]);
        (void)close(f->log[i]);
    }
    pattern_free(f->progress);
    free(f);
    return 0;
}

/* The program writes text. Returns whether more may come. */
static bool say(struct fixture *f, const char *text, int64_t now_ms)
{
    assert_int_equal(write(f->said[1], text, strlen(text)), strlen(text));
    return output_read(&f->output, f->said[0], now_ms);
}

static void assert_logged(struct fixture *f, const char *expected)
{
    char text[4096];
    const ssize_t size = read(f->log[0], text, sizeof(text) - 1);
    text[size > 0 ? size : 0] = '\0';
    assert_string_equal(text, expected);
}

static void test_lines_go_to_the_log_whole(void **state)
{
    struct fixture *f = *state;
    f->output.label = "[3] ";
    assert_true(say(f, "one\ntw", 0));
    assert_logged(f, "[3] one\n");
    assert_true(say(f, "o\n\nrest", 0));
    assert_logged(f, "[3] two\n[3] \n");
    (void)close(f->said[1]);
    f->said[1] = -1;
    assert_false(output_read(&f->output, f->said[0], 0));
    output_flush(&f->output);
    assert_logged(f, "[3] rest\n");
    assert_string_equal(output_last(&f->output, 0), "rest");
    assert_string_equal(output_last(&f->output, 3), "one");
    assert_null(output_last(&f->output, 4));
}

static void test_of_a_progress_bar_a_line_a_second_goes_to_the_log(void **state)
{
    struct fixture *f = *state;
    assert_true(say(f, "step 1\rstep 2\rstep 3\r", 5000));
    assert_logged(f, "step 1\n");
    assert_int_equal(f->output.step, 3); /* all are looked through */
    assert_true(say(f, "step 4\r", 5999));
    assert_logged(f, "");
    assert_true(say(f, "step 5\rend\n", 6000));
    assert_logged(f, "step 5\nend\n");
}

static void test_the_step_is_the_highest_and_progress_another_one(void **state)
{
    struct fixture *f = *state;
    assert_true(say(f, "at step 7 of 9\nstep x\nstep 7\n", 0));
    assert_int_equal(f->output.step, 7);
    assert_int_equal(f->output.matches, 1);
    assert_true(say(f, "step 0\nstep 99999999999999999999\n", 0)); /* a new epoch; too much */
    assert_int_equal(f->output.step, 7);
    assert_int_equal(f->output.matches, 2);
}

static void test_a_line_without_an_end_is_cut(void **state)
{
    struct fixture *f = *state;
    char *text = calloc(1, OUTPUT_LINE + 2);
    assert_non_null(text);
    memset(text, 'a', OUTPUT_LINE + 1);
    assert_true(say(f, text, 0));
    free(text);
    assert_int_equal(f->output.lines, 1);
    assert_int_equal(f->output.used, 1);
    assert_int_equal(strlen(output_last(&f->output, 0)), OUTPUT_LAST_LINE - 1);
}

static void test_last_words_are_the_exception_not_its_frames(void **state)
{
    struct fixture *f = *state;
    assert_null(output_last_words(&f->output));
    assert_true(say(f,
                    "Traceback (most recent call last):\n"
                    "  File \"a.py\", line 1, in <module>\n"
                    "    f()\n"
                    "ValueError: no\n"
                    "  \n",
                    0));
    assert_string_equal(output_last_words(&f->output), "ValueError: no");
}

#define DUMP                                                                                       \
    "Fatal Python error: Aborted\n"                                                                \
    "\n"                                                                                           \
    "Thread 0x1 (most recent call first):\n"                                                       \
    "  File \"/usr/lib/python3.11/threading.py\", line 324 in wait\n"                              \
    "\n"                                                                                           \
    "Current thread 0x2 (most recent call first):\n"

static void test_a_stack_names_the_line_of_the_program(void **state)
{
    struct fixture *f = *state;
    assert_string_equal(output_python_stack(&f->output).at, "");
    assert_true(say(f,
                    DUMP "  File \"/home/a/train.py\", line 12 in step\n"
                         "  File \"/home/a/train.py\", line 40 in <module>\n\nExtension modules: "
                         "a.b (total: 1)\n",
                    0));
    struct output_stack stack = output_python_stack(&f->output);
    assert_string_equal(stack.at, "train.py, line 12 in step");
    assert_false(stack.waits);
    assert_true(say(f,
                    DUMP
                    "  File \"/v/lib/python3.11/site-packages/torch/distributed/c10d.py\", line "
                    "99 in all_reduce\n"
                    "  File \"/v/lib/python3.11/site-packages/torch/utils.py\", line 7 in wrap\n"
                    "  File \"/home/a/train.py\", line 13 in mean\n",
                    0));
    stack = output_python_stack(&f->output);
    assert_string_equal(stack.at, "train.py, line 13 in mean");
    assert_true(stack.waits);
}

/* ---- what an end means ---- */

#define CODE(code)     ((code) << 8)
#define KILLED(number) (number)

static void test_what_an_end_means(void **state)
{
    struct fixture *f = *state;
    static struct jobspec job;
    struct failure_patterns none = { .count = 0 };
    memset(&job, 0, sizeof(job));
    assert_true(failure_is_success(CODE(0)));
    assert_false(failure_is_success(CODE(1)));
    assert_false(failure_is_success(KILLED(SIGKILL)));
    assert_true(say(f, "ValueError: no\n", 0));

    struct command_failure failure = failure_of_exit(&job, &none, 5, CODE(1), &f->output);
    assert_int_equal(failure.kind, CAIRN__V1__FAULT_KIND__PROCESS_GONE);
    assert_false(failure.outside || failure.late);
    assert_string_equal(failure.why.text,
                        "the program of rank 5 ended with code 1: ValueError: no");

    failure = failure_of_exit(&job, &none, 5, KILLED(SIGKILL), &f->output);
    assert_true(failure.outside);
    assert_string_equal(failure.why.text, "the program of rank 5 was killed by SIGKILL");
    failure = failure_of_exit(&job, &none, 5, KILLED(SIGSEGV), &f->output);
    assert_false(failure.outside);
    assert_non_null(strstr(failure.why.text, "killed by SIGSEGV"));

    job.command.restart.codes_given = true;
    job.command.restart.codes[0] = 75;
    job.command.restart.code_count = 1;
    assert_int_equal(failure_of_exit(&job, &none, 5, CODE(1), &f->output).kind,
                     CAIRN__V1__FAULT_KIND__USER);
    assert_int_equal(failure_of_exit(&job, &none, 5, CODE(75), &f->output).kind,
                     CAIRN__V1__FAULT_KIND__PROCESS_GONE);
    assert_int_equal(failure_of_exit(&job, &none, 5, KILLED(SIGKILL), &f->output).kind,
                     CAIRN__V1__FAULT_KIND__PROCESS_GONE);
    assert_int_equal(failure_of_exit(&job, &none, 5, KILLED(SIGSEGV), &f->output).kind,
                     CAIRN__V1__FAULT_KIND__USER);
    job.command.restart.codes[0] = 128 + SIGSEGV;
    assert_int_equal(failure_of_exit(&job, &none, 5, KILLED(SIGSEGV), &f->output).kind,
                     CAIRN__V1__FAULT_KIND__PROCESS_GONE);
    struct failure_patterns one = { .count = 1 };
    struct reason why;
    size_t offset = 0;
    assert_int_equal(pattern_compile("Error: no$", &one.list[0], &offset, &why), ST_OK);
    assert_int_equal(failure_of_exit(&job, &one, 5, CODE(1), &f->output).kind,
                     CAIRN__V1__FAULT_KIND__PROCESS_GONE);
    pattern_free(one.list[0]);
}

static void test_who_blames_a_peer_speaks_later(void **state)
{
    struct fixture *f = *state;
    static struct jobspec job;
    const struct failure_patterns none = { .count = 0 };
    assert_true(say(f, "RuntimeError: [1.2.3.4]:5 Connection closed by peer\nbye\n", 0));
    assert_true(failure_of_exit(&job, &none, 0, CODE(1), &f->output).late);
    assert_false(failure_of_exit(&job, &none, 0, KILLED(SIGKILL), &f->output).late);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lines_go_to_the_log_whole, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_of_a_progress_bar_a_line_a_second_goes_to_the_log,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_the_step_is_the_highest_and_progress_another_one,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_line_without_an_end_is_cut, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_last_words_are_the_exception_not_its_frames, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_a_stack_names_the_line_of_the_program, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_what_an_end_means, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_who_blames_a_peer_speaks_later, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
