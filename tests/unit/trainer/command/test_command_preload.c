/* The interpreter that forks processes of a program: what they are, and when it refuses. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/test.h"
#include "trainer/command/launch.h"
#include "trainer/command/preload.h"

#define PYTHON "/usr/bin/python3"

struct fixture {
    char dir[64];
    struct jobspec job;
    struct log log;
    char *env[4];
    char path[96]; /* PYTHONPATH=dir */
    struct preload *preload;
};

static void write_file(const struct fixture *f, const char *name, const char *text)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/%s", f->dir, name);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/cairn-preload-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    (void)snprintf(f->path, sizeof(f->path), "PYTHONPATH=%s", f->dir);
    f->log = (struct log){ .fd = -1 };
    f->env[0] = (char *)"PATH=/usr/bin:/bin";
    f->env[1] = f->path;
    f->env[2] = (char *)"WORD=first";
    memcpy(f->job.command.run, "\1" PYTHON "\0\1program.py\0",
           sizeof("\1" PYTHON "\0\1program.py"));
    write_file(f, "slow.py", "import os\nLOADED = os.getpid()\n");
    write_file(f, "threads.py",
               "import threading, time\n"
               "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n");
    write_file(f, "program.py",
               "import atexit, os, sys, slow, signal\n"
               "here = os.getpid(), os.getppid(), os.getpgid(0), slow.LOADED\n"
               "print(*here, os.getcwd(), os.environ['WORD'], 'PYTHONPATH' in os.environ, "
               "sys.argv[1:], __name__, len(os.listdir('/proc/self/fd')), flush=True)\n"
               "os.read(0, 1) == b'' or sys.exit(9)\n"
               "if sys.argv[1] == 'end': sys.exit(7)\n"
               "if sys.argv[1] == 'raise':\n"
               "    atexit.register(lambda: print('bye', end=''))\n"
               "    raise ValueError('no')\n"
               "signal.pause()\n");
    assert_int_equal(processes_adopt_orphans(), ST_OK);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    char command[96];
    preload_close(f->preload);
    (void)snprintf(command, sizeof(command), "rm -r '%s'", f->dir);
    assert_int_equal(system(command), 0);
    free(f);
    return 0;
}

static enum status start(struct fixture *f, const char *argument, struct process *out,
                         struct reason *why)
{
    char word[] = "WORD=then";
    char *const argv[] = { (char *)PYTHON, (char *)"program.py", (char *)(uintptr_t)argument,
                           NULL };
    char *const env[] = { f->env[0], word, NULL };
    const struct process_start how = { .argv = argv, .env = env, .workdir = f->dir };
    enum status st = ST_AGAIN;
    for (int i = 0; st == ST_AGAIN && i < 3000; i++) {
        st = preload_look(f->preload, why);
        if (st == ST_AGAIN)
            (void)poll(NULL, 0, 10);
    }
    return st == ST_OK ? preload_start(f->preload, &how, out, why) : st;
}

static void read_line(const struct process *process, char out[512])
{
    struct pollfd fd = { process->said_fd, POLLIN, 0 };
    assert_int_equal(poll(&fd, 1, 30000), 1);
    const ssize_t size = read(process->said_fd, out, 511);
    assert_true(size > 0);
    out[size] = '\0';
}

static void await_end(struct process *process)
{
    for (int i = 0; i < 3000 && !process_check(process); i++)
        (void)poll(NULL, 0, 10);
    assert_true(process->ended);
}

static void test_a_process_is_as_one_that_was_started_cold(void **state)
{
    struct fixture *f = *state;
    struct process one, two;
    struct reason why;
    char text[512], expected[512], argument[128];
    memcpy(f->job.command.preload, "\1slow\0", 6);
    (void)snprintf(argument, sizeof(argument), "%s/program.py", f->dir);
    assert_int_equal(preload_open(&f->job, f->env, &f->log, &f->preload), ST_OK);
    assert_int_equal(start(f, "stay", &one, &why), ST_OK);
    assert_int_equal(start(f, "end", &two, &why), ST_OK);
    read_line(&one, text);
    const long server = (long)preload_process(f->preload)->pid;
    (void)snprintf(expected, sizeof(expected),
                   "%ld %ld %ld %ld %s then False ['stay'] __main__ 4\n", (long)one.pid,
                   (long)getpid(), (long)one.pid, server, f->dir);
    assert_string_equal(text, expected); /* 4: stdin, stdout, stderr, and the listing itself */
    await_end(&two);
    assert_int_equal(WEXITSTATUS(two.status), 7);
    assert_false(process_check(&one));
    assert_int_equal(processes_kill_all(&one, 1, preload_process(f->preload), 30000), ST_OK);
    assert_int_equal(WTERMSIG(one.status), SIGKILL);
    (void)close(one.said_fd);
    (void)close(two.said_fd);
    assert_int_equal(start(f, "end", &one, &why), ST_OK); /* it serves on */
    await_end(&one);
    (void)close(one.said_fd);
}

/* What the process writes until it ends. */
static void read_all(const struct process *process, char out[4096])
{
    size_t used = 0;
    struct pollfd fd = { process->said_fd, POLLIN, 0 };
    ssize_t size = 1;
    while (size > 0) {
        assert_int_equal(poll(&fd, 1, 30000), 1);
        size = read(process->said_fd, out + used, 4095 - used);
        used += size > 0 ? (size_t)size : 0;
    }
    out[used] = '\0';
}

static void test_an_exception_ends_a_process_as_python_does(void **state)
{
    struct fixture *f = *state;
    struct process process;
    struct reason why;
    char text[4096];
    memcpy(f->job.command.preload, "\1slow\0", 6);
    assert_int_equal(preload_open(&f->job, f->env, &f->log, &f->preload), ST_OK);
    assert_int_equal(start(f, "raise", &process, &why), ST_OK);
    read_all(&process, text);
    await_end(&process);
    assert_int_equal(WEXITSTATUS(process.status), 1);
    assert_non_null(strstr(text, "\nTraceback (most recent call last):\n"));
    assert_non_null(strstr(text, "\nValueError: no\nbye")); /* what was registered runs */
    (void)close(process.said_fd);
}

static void test_an_interpreter_with_threads_does_not_fork(void **state)
{
    struct fixture *f = *state;
    struct process process;
    struct reason why;
    memcpy(f->job.command.preload, "\1threads\0", 9);
    assert_int_equal(preload_open(&f->job, f->env, &f->log, &f->preload), ST_OK);
    assert_int_equal(start(f, "end", &process, &why), ST_REFUSED);
    assert_string_equal(why.text, "an import started 1 threads");
}

static void test_an_import_that_fails_is_named(void **state)
{
    struct fixture *f = *state;
    struct process process;
    struct reason why;
    memcpy(f->job.command.preload, "\1no_such_module\0", 16);
    assert_int_equal(preload_open(&f->job, f->env, &f->log, &f->preload), ST_OK);
    assert_int_equal(start(f, "end", &process, &why), ST_REFUSED);
    assert_string_equal(why.text, "import no_such_module: ModuleNotFoundError: No module named "
                                  "'no_such_module'");
}

static void test_an_interpreter_that_died_is_noticed(void **state)
{
    struct fixture *f = *state;
    struct process process;
    struct reason why;
    memcpy(f->job.command.preload, "\1slow\0", 6);
    assert_int_equal(preload_open(&f->job, f->env, &f->log, &f->preload), ST_OK);
    process_signal(preload_process(f->preload), SIGKILL);
    assert_int_equal(start(f, "end", &process, &why), ST_REFUSED);
    assert_string_equal(why.text, "the interpreter has ended");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_process_is_as_one_that_was_started_cold, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_an_exception_ends_a_process_as_python_does, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_an_interpreter_with_threads_does_not_fork, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_an_import_that_fails_is_named, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_an_interpreter_that_died_is_noticed, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
