/* Where the processes of a program stand, what they are told of it, and that they end whole. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/test.h"
#include "trainer/command/first.h"
#include "trainer/command/launch.h"
#include "trainer/command/process.h"

extern char **environ;

/* ---- a round whose parts are there already ---- */

#define WORKERS 4

struct round {
    struct rendezvous_got got[WORKERS];
    uint32_t rank;
};

static enum status join(void *self, const char *name, const struct rendezvous_part *mine, int ranks,
                        int64_t timeout_ms, struct rendezvous_got *out)
{
    struct round *round = self;
    (void)timeout_ms;
    assert_string_equal(name, "command");
    assert_int_equal(ranks, WORKERS);
    round->got[round->rank].common_size = mine->common_size;
    memcpy(round->got[round->rank].common, mine->common, mine->common_size);
    memcpy(out, round->got, sizeof(round->got));
    return ST_OK;
}

static void test_places_count_by_node(void **state)
{
    (void)state;
    static const char *const nodes[WORKERS] = { "b", "a", "b", "a" };
    static struct round round;
    const struct rendezvous rendezvous = { .self = &round, .join = join };
    struct launch_place place;
    struct reason why;
    for (int pass = 0; pass < 2; pass++) { /* in the second all parts are there */
        for (uint32_t i = 0; i < WORKERS; i++) {
            char gpu[16];
            (void)snprintf(gpu, sizeof(gpu), "GPU-%u", i);
            struct session_assignment assignment = {
                .size = WORKERS, .rank = i, .nodes = (char *const *)nodes, .host = "127.0.0.1"
            };
            struct launch_listening listening = { .generation = 10 + i, .ms = i };
            round.rank = i;
            enum status st =
                launch_meet(&rendezvous, &assignment, 2, gpu, 1000, &listening, &place, &why);
            if (pass == 0)
                continue;
            assert_int_equal(listening.generation, 13); /* the newest counts */
            assert_int_equal(listening.ms, 3);
            assert_int_equal(st, ST_OK);
            assert_int_equal(place.size, 8);
            assert_int_equal(place.rank, 2 * i);
            assert_int_equal(place.local_size, 4);
            assert_int_equal(place.local_rank, i < 2 ? 0 : 2);
            assert_int_equal(place.node_count, 2);
            assert_int_equal(place.node_rank, i % 2);
            assert_true(place.master_port > 0);
            assert_string_equal(place.master_host, "127.0.0.1");
            assert_string_equal(place.gpus, i % 2 == 0 ? "GPU-0,GPU-2" : "GPU-1,GPU-3");
        }
    }
}

static void test_a_listener_is_seen(void **state)
{
    (void)state;
    static const struct sockaddr_in6 any_v6 = { .sin6_family = AF_INET6 };
    static const struct sockaddr_in any_v4 = { .sin_family = AF_INET };
    const struct sockaddr *const addresses[] = { (const struct sockaddr *)&any_v4,
                                                 (const struct sockaddr *)&any_v6 };
    for (int i = 0; i < 2; i++) {
        struct sockaddr_in6 bound = { 0 }; /* both kinds have the port at the same place */
        socklen_t size = sizeof(bound);
        const int fd = socket(addresses[i]->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 && i == 1)
            return; /* a machine without IPv6 */
        assert_int_equal(bind(fd, addresses[i], i == 0 ? sizeof(any_v4) : sizeof(any_v6)), 0);
        assert_int_equal(getsockname(fd, (struct sockaddr *)&bound, &size), 0);
        const uint32_t port = ntohs(bound.sin6_port);
        assert_false(first_listens(port)); /* bound only */
        assert_int_equal(listen(fd, 1), 0);
        assert_true(first_listens(port));
        assert_int_equal(close(fd), 0);
        assert_false(first_listens(port));
    }
}

static const char *find(char *const *list, const char *name)
{
    const size_t size = strlen(name);
    const char *found = NULL;
    for (size_t i = 0; list[i] != NULL; i++) {
        if (strncmp(list[i], name, size) != 0 || list[i][size] != '=')
            continue;
        assert_null(found); /* once */
        found = list[i] + size + 1;
    }
    return found;
}

static void test_the_environment_is_ours_then_the_jobs_then_the_place(void **state)
{
    (void)state;
    static struct jobspec job;
    const struct session_assignment assignment = { .job = "j-1", .generation = 3 };
    const struct launch_place place = { .size = 8,
                                        .rank = 4,
                                        .local_size = 4,
                                        .local_rank = 2,
                                        .node_count = 2,
                                        .node_rank = 1,
                                        .master_host = "::1",
                                        .master_port = 99 };
    char **list = NULL;
    job.workers.device = JOBSPEC_DEVICE_CPU;
    job.command.restart.budget = 7;
    memcpy(job.command.env, "\1RANK=x\0\1MINE=a b\0\1PYTHONUNBUFFERED=0\0", 38);
    assert_int_equal(setenv("MINE", "agent's", 1), 0);
    assert_int_equal(setenv("OTHER", "stays", 1), 0);
    assert_int_equal(setenv("CAIRN_SOCKET", "@another job's", 1), 0);
    assert_int_equal(launch_environment(&job, &assignment, &place, 1, "/w", &list), ST_OK);
    assert_string_equal(find(list, "RANK"), "5");
    assert_string_equal(find(list, "LOCAL_RANK"), "3");
    assert_string_equal(find(list, "WORLD_SIZE"), "8");
    assert_string_equal(find(list, "GROUP_RANK"), "1");
    assert_string_equal(find(list, "MASTER_ADDR"), "::1");
    assert_string_equal(find(list, "MASTER_PORT"), "99");
    assert_string_equal(find(list, "TORCHELASTIC_RESTART_COUNT"), "2");
    assert_string_equal(find(list, "TORCHELASTIC_MAX_RESTARTS"), "7");
    assert_string_equal(find(list, "MINE"), "a b");
    assert_string_equal(find(list, "OTHER"), "stays");
    assert_string_equal(find(list, "PYTHONUNBUFFERED"), "0"); /* the job's */
    assert_string_equal(find(list, "PYTHONFAULTHANDLER"), "1");
    assert_string_equal(find(list, "CAIRN_WORKER"), "/w");
    assert_null(find(list, "CAIRN_FOLDER"));
    assert_null(find(list, "CAIRN_SOCKET")); /* an agent may run in a job itself */
    launch_free(list);
}

static void test_text_is_for_the_shell(void **state)
{
    (void)state;
    static struct jobspec job;
    char **list = NULL;
    job.command.shell = true;
    memcpy(job.command.run, "\1echo $A\0", 9);
    assert_int_equal(launch_arguments(&job, &list), ST_OK);
    assert_string_equal(list[0], "/bin/sh");
    assert_string_equal(list[1], "-c");
    assert_string_equal(list[2], "echo $A");
    assert_null(list[3]);
    launch_free(list);
}

/* ---- processes ---- */

static enum status start_shell(const char *text, struct process *out, struct reason *why)
{
    char *const argv[] = { (char *)"sh", (char *)"-c", (char *)(uintptr_t)text, NULL };
    const struct process_start how = { .argv = argv, .env = environ, .workdir = "/" };
    return process_start(&how, out, why);
}

/* Waits for a line of the process and returns the number in it. */
static long read_number(struct process *process)
{
    char text[64];
    struct pollfd fd = { process->said_fd, POLLIN, 0 };
    assert_int_equal(poll(&fd, 1, 30000), 1);
    const ssize_t size = read(process->said_fd, text, sizeof(text) - 1);
    assert_true(size > 0);
    text[size] = '\0';
    return strtol(text, NULL, 10);
}

static void test_all_that_comes_of_a_process_is_killed(void **state)
{
    (void)state;
    struct process processes[2];
    struct reason why;
    assert_int_equal(processes_adopt_orphans(), ST_OK);
    /* one in a session of its own, whose parent ends at once; one that ignores signals */
    assert_int_equal(
        start_shell("setsid sh -c 'sleep 1000 & echo $!'; exec sleep 1000", &processes[0], &why),
        ST_OK);
    assert_int_equal(
        start_shell("trap '' TERM; echo $$; while :; do sleep 1000; done", &processes[1], &why),
        ST_OK);
    const long orphan = read_number(&processes[0]);
    assert_int_equal(read_number(&processes[1]), processes[1].pid);
    assert_int_equal(kill((pid_t)orphan, 0), 0);
    assert_int_equal(getpgid(processes[0].pid), processes[0].pid);
    process_signal(&processes[1], SIGTERM);
    assert_false(process_check(&processes[1]));
    assert_int_equal(processes_kill_all(processes, 2, NULL, 30000), ST_OK);
    assert_true(processes[0].ended && processes[1].ended);
    assert_int_equal(WTERMSIG(processes[0].status), SIGKILL);
    assert_int_equal(kill((pid_t)orphan, 0), -1);
    assert_int_equal(errno, ESRCH);
    for (int i = 0; i < 2; i++)
        (void)close(processes[i].said_fd);
}

static void test_what_cannot_be_run_is_named(void **state)
{
    (void)state;
    struct process process;
    struct reason why;
    char *argv[] = { (char *)"no-such-program", NULL };
    struct process_start how = { .argv = argv, .env = environ, .workdir = "/" };
    assert_int_equal(process_start(&how, &process, &why), ST_NOT_FOUND);
    assert_string_equal(why.text, "no-such-program: No such file or directory");
    argv[0] = (char *)"/etc/passwd";
    assert_int_equal(process_start(&how, &process, &why), ST_REFUSED);
    assert_string_equal(why.text, "/etc/passwd: Permission denied");
    argv[0] = (char *)"true";
    how.workdir = "/no-such-folder";
    assert_int_equal(process_start(&how, &process, &why), ST_NOT_FOUND);
    assert_string_equal(why.text, "workdir /no-such-folder: No such file or directory");
}

static void test_a_stopped_process_is_seen(void **state)
{
    (void)state;
    struct process process;
    struct reason why;
    int status = 0;
    assert_int_equal(start_shell("echo 1; exec sleep 1000", &process, &why), ST_OK);
    assert_int_equal(read_number(&process), 1);
    assert_false(process_is_stopped(&process));
    process_signal(&process, SIGSTOP);
    assert_int_equal(waitpid(process.pid, &status, WUNTRACED), process.pid);
    assert_true(process_is_stopped(&process));
    assert_int_equal(processes_kill_all(&process, 1, NULL, 30000), ST_OK);
    (void)close(process.said_fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places_count_by_node),
        cmocka_unit_test(test_a_listener_is_seen),
        cmocka_unit_test(test_the_environment_is_ours_then_the_jobs_then_the_place),
        cmocka_unit_test(test_text_is_for_the_shell),
        cmocka_unit_test(test_all_that_comes_of_a_process_is_killed),
        cmocka_unit_test(test_what_cannot_be_run_is_named),
        cmocka_unit_test(test_a_stopped_process_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
