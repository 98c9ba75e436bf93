/* What /proc says of processes and the machine. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/telemetry/proc.h"
#include "agent/telemetry/usage.h"
#include "common/clock.h"
#include "tests/test.h"

#define SECOND_NS INT64_C(1000000000)
#define EATEN     ((size_t)64 << 20)

static void numbers_are_read_behind_any_process_name(void **state)
{
    (void)state;
    struct proc_stat stat;
    static const char line[] =
        "17 (a) b (c 9) S 1 17 17 0 -1 4194304 1 2 3 4 500 66 7 8 20 0 13 0 987654 1 4321 9 9";
    assert_int_equal(proc_stat_parse(line, &stat), ST_OK);
    assert_int_equal(stat.state, 'S');
    assert_int_equal(stat.start_time, 987654);
    assert_int_equal(stat.cpu_ticks, 566);
    assert_int_equal(stat.threads, 13);
    assert_int_equal(stat.resident_pages, 4321);
    assert_int_equal(proc_stat_parse("17 (a", &stat), ST_INVALID);
    assert_int_equal(proc_stat_parse("17 (a) S 1 2", &stat), ST_INVALID);
    assert_int_equal(proc_stat_parse("17 (a) S ", &stat), ST_INVALID);
    assert_int_equal(
        proc_stat_parse("17 (a) S 1 17 17 0 -1 4194304 1 2 3 x 500 66 7 8 20 0 13 0 1 1 "
                        "4321 9",
                        &stat),
        ST_INVALID);
    assert_int_equal(proc_stat_parse("", &stat), ST_INVALID);
    assert_int_equal(stat.threads, 13); /* untouched */
    assert_int_equal(proc_stat_read(getpid(), &stat), ST_OK);
    assert_true(stat.start_time > 0);
}

static void counters_are_found_by_their_whole_name(void **state)
{
    (void)state;
    static const char events[] = "low 0\noom 4\noom_kill 3\noom_group_kill 1\n";
    uint64_t value = 0;
    assert_true(proc_field(events, "oom_kill", &value));
    assert_int_equal(value, 3);
    assert_true(proc_field(events, "oom", &value));
    assert_int_equal(value, 4);
    assert_false(proc_field(events, "kill", &value));
    assert_false(proc_field("", "oom", &value));
}

static void processors_are_busy_where_they_neither_idle_nor_wait(void **state)
{
    (void)state;
    uint64_t ticks = 0;
    assert_true(usage_busy_ticks("cpu  10 2 30 4000 500 6 7 80 9 0\ncpu0 1 1 1\n", &ticks));
    assert_int_equal(ticks, 10 + 2 + 30 + 6 + 7);
    assert_false(usage_busy_ticks("cpu0 1 2 3 4 5 6 7\n", &ticks));
    assert_false(usage_busy_ticks("cpu  1 2 3\n", &ticks));
    assert_false(usage_busy_ticks("", &ticks));
}

static bool is_card(const char *name)
{
    return strcmp(name, "eth0") == 0 || strcmp(name, "wl:p3") == 0;
}

static void networks_are_added_up_where_they_count(void **state)
{
    (void)state;
    static const char text[] =
        "Inter-|   Receive                                                |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets\n"
        "    lo: 900 1 0 0 0 0 0 0 900 1 0 0 0 0 0 0\n"
        "  eth0:18446744073709551615 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0\n"
        "docker0: 5 1 0 0 0 0 0 0 6 1 0 0 0 0 0 0\n"
        " broken: 1 2 3\n";
    uint64_t received = 1, sent = 1;
    assert_int_equal(usage_network(text, is_card, &received, &sent), 1);
    assert_true(received == UINT64_MAX);
    assert_int_equal(sent, 20);
    assert_int_equal(usage_network("eth0: 1 2 3\n", is_card, &received, &sent), 0);
    assert_int_equal(usage_network("", is_card, &received, &sent), 0);
    assert_int_equal(received, 0);
}

/* A child that has used some processor time and has memory of its own, and sleeps. */
static pid_t busy_child(void)
{
    int ready[2];
    char byte = 0;
    assert_int_equal(pipe(ready), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that failed leaves nobody behind */
        char *memory = malloc(EATEN);
        const int64_t until = clock_mono_ns() + SECOND_NS / 5;
        for (unsigned round = 0; memory != NULL && clock_mono_ns() < until; round++)
            memset(memory, (int)round, EATEN);
        (void)!write(ready[1], memory != NULL ? memory : "", 1);
        (void)pause();
        _exit(0);
    }
    assert_true(pid > 0);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(close(ready[0]), 0);
    assert_int_equal(close(ready[1]), 0);
    return pid;
}

static void a_process_is_sampled_until_it_is_gone(void **state)
{
    (void)state;
    struct usage_process usage = { .samples = 0 };
    struct proc_stat stat;
    const pid_t pid = busy_child();
    assert_int_equal(proc_stat_read(pid, &stat), ST_OK);
    assert_int_equal(usage_process_sample(&usage, pid, stat.start_time + 1, 1), ST_NOT_FOUND);
    assert_int_equal(usage.samples, 0);
    assert_int_equal(usage_process_sample(&usage, pid, stat.start_time, 1), ST_OK);
    assert_int_equal(usage.samples, 1);
    assert_true(isnan(usage.cores));
    assert_true(usage.cpu_seconds > 0);
    assert_true(usage.memory_bytes > EATEN / 2 && usage.memory_bytes < 4 * EATEN);
    assert_true(usage.threads >= 1); /* a sanitizer may have one of its own */
    const double before = usage.cpu_seconds;
    assert_int_equal(usage_process_sample(&usage, pid, stat.start_time, 1 + SECOND_NS), ST_OK);
    assert_true(fabs(usage.cores - (usage.cpu_seconds - before)) < 1e-9); /* it sleeps */
    assert_int_equal(kill(pid, SIGKILL), 0);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(usage_process_sample(&usage, pid, stat.start_time, 3 * SECOND_NS),
                     ST_NOT_FOUND); /* a zombie */
    assert_int_equal(usage.samples, 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(usage_process_sample(&usage, pid, stat.start_time, 4 * SECOND_NS),
                     ST_NOT_FOUND);
}

static void the_machine_is_sampled_and_rates_follow(void **state)
{
    (void)state;
    struct usage_machine usage = { .samples = 0 };
    assert_int_equal(usage_machine_sample(&usage, SECOND_NS), ST_OK);
    assert_true(isnan(usage.cores) && isnan(usage.sent_bytes_per_s));
    assert_true(usage.cpu_seconds > 0 && usage.cores_count >= 1);
    assert_true(usage.memory_available_bytes > 0);
    assert_true(usage.memory_available_bytes < usage.memory_bytes);
    const struct usage_machine first = usage;
    assert_int_equal(usage_machine_sample(&usage, 3 * SECOND_NS), ST_OK);
    assert_int_equal(usage.samples, 2);
    assert_true(fabs(usage.cores - (usage.cpu_seconds - first.cpu_seconds) / 2) < 1e-9);
    assert_true(usage.received_bytes >= first.received_bytes);
    assert_int_equal(usage_machine_sample(&usage, 3 * SECOND_NS), ST_OK);
    assert_true(isnan(usage.cores)); /* no time passed */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_read_behind_any_process_name),
        cmocka_unit_test(counters_are_found_by_their_whole_name),
        cmocka_unit_test(processors_are_busy_where_they_neither_idle_nor_wait),
        cmocka_unit_test(networks_are_added_up_where_they_count),
        cmocka_unit_test(a_process_is_sampled_until_it_is_gone),
        cmocka_unit_test(the_machine_is_sampled_and_rates_follow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
