/* The real agent with a coordinator of the test's and a shell script for a trainer. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/record.h"
#include "common/io.h"
#include "rpc/rpc.h"
#include "tests/test.h"
#include "tests/unit/agent/agent_world.h"
#include "tests/unit/agent/refuse.h"

#define UNKNOWN  CAIRN__V1__TRAINER_EXITED__CAUSE__CAUSE_UNSPECIFIED
#define EXIT     CAIRN__V1__TRAINER_EXITED__CAUSE__EXIT
#define SIGNALED CAIRN__V1__TRAINER_EXITED__CAUSE__SIGNAL
#define FINISHED CAIRN__V1__TRAINER_EXITED__CAUSE__FINISHED

static struct world *begin(void **state)
{
    struct world *world = *state;
    world_coordinator_start(world);
    world_agent_start(world, NULL);
    world_wait_hellos(world, 1);
    return world;
}

/* A trainer of generation 1 that holds. */
static pid_t hold(struct world *world, uint32_t rank)
{
    world_order_start(world, 1, rank, "hold");
    pid_t pid = world_wait_started(world, 1, rank, 1);
    (void)world_wait_log(world, rank, "holding");
    return pid;
}

static bool has_record(const struct world *world, uint32_t rank)
{
    const struct ref ref = { .job = "j-test", .generation = 1, .rank = rank };
    struct ref_files files;
    assert_int_equal(ref_files(&ref, world_paths(world), &files), ST_OK);
    return access(files.record, F_OK) == 0;
}

static void wait_no_record(const struct world *world, uint32_t rank)
{
    for (int i = 0; i < 5000 && has_record(world, rank); i++)
        (void)poll(NULL, 0, 5);
    assert_false(has_record(world, rank));
}

static void leave_words(const struct world *world, uint32_t rank)
{
    const struct ref ref = { .job = "j-test", .generation = 1, .rank = rank };
    struct ref_files files;
    uint8_t bytes[128];
    assert_int_equal(ref_files(&ref, world_paths(world), &files), ST_OK);
    Cairn__V1__LastWords words = CAIRN__V1__LAST_WORDS__INIT;
    words.job = (char *)"j-test";
    words.generation = 1;
    words.rank = rank;
    words.step = 60;
    words.finished = 1;
    size_t size = cairn__v1__last_words__pack(&words, bytes);
    assert_int_equal(io_replace(io_system(), files.words, bytes, size), ST_OK);
}

static void agent_introduces_itself_and_beats(void **state)
{
    struct world *world = begin(state);
    const Cairn__V1__AgentHello *hello = world_hello(world);
    assert_string_equal(hello->node, "node-1");
    assert_int_equal(hello->slots, 3);
    assert_string_equal(hello->device, "cpu");
    assert_int_equal(strlen(hello->boot_id), 36);
    assert_true(hello->cores >= 1);
    assert_true(hello->memory_bytes > 0);
    assert_int_equal(hello->n_running, 0);
    world_wait_beats(world, 2);
    assert_int_equal(world_agent_stop(world), 0);
}

static void trainer_gets_arguments_token_threads_and_no_other_descriptor(void **state)
{
    struct world *world = begin(state);
    pid_t pid = hold(world, 2);
    const char *log = world_wait_log(world, 2, "holding");
    assert_non_null(strstr(log, "arguments --job j-test --generation 1 --rank 2 --coordinator "));
    assert_non_null(strstr(log, "/jobs/j-test/g1/r2.words --flight "));
    assert_non_null(strstr(log, "/jobs/j-test/g1/r2.flight --token-fd 3 --tls-ca  --sums /"));
    assert_non_null(strstr(log, "/sums/node-1 --peaks /"));
    assert_non_null(strstr(log, "/peaks/node-1 --ports  --copies "));
    assert_non_null(strstr(log, "token t0ken threads 3\n"));
    assert_non_null(strstr(log, " CAIRN_HOME "));
    assert_null(strstr(log, " OMP_THREAD_LIMIT ")); /* of the agent's own environment what passes */
    assert_null(strstr(log, " OF_A_SHELL "));
    assert_non_null(strstr(log, "descriptors 0 1 2 3 \n")); /* 3 is the listing's own */
    assert_int_equal(getpgid(pid), pid);
}

/* Samples, once they are of so many trainers. */
static const Cairn__V1__AgentBeat *wait_usage(struct world *world, size_t trainers)
{
    const Cairn__V1__AgentBeat *beat = world_beat(world);
    for (int i = 0; beat->usage == NULL || beat->n_trainers != trainers; i++) {
        assert_true(i < 30);
        world_wait_beats(world, 1);
        beat = world_beat(world);
    }
    return beat;
}

static void beats_tell_what_trainers_and_the_machine_use(void **state)
{
    struct world *world = begin(state);
    (void)hold(world, 2);
    (void)hold(world, 1);
    const Cairn__V1__AgentBeat *beat = wait_usage(world, 2);
    assert_true(beat->usage->cpu_seconds > 0);
    assert_true(beat->usage->cores_count >= 1);
    assert_true(beat->usage->memory_available_bytes < beat->usage->memory_bytes);
    for (size_t i = 0; i < 2; i++) {
        const Cairn__V1__TrainerUsage *one = beat->trainers[i];
        assert_string_equal(one->ref->job, "j-test");
        assert_int_equal(one->ref->generation, 1);
        assert_true(one->usage->memory_bytes > 100000); /* a shell */
        assert_int_equal(one->usage->threads, 1);
    }
    assert_int_equal(beat->trainers[0]->ref->rank + beat->trainers[1]->ref->rank, 3);
    world_order_end(world, 1, 1, SIGKILL, 0);
    (void)world_wait_exited(world, 1, 1, 1);
    beat = wait_usage(world, 1); /* of who is gone nothing is told */
    assert_int_equal(beat->trainers[0]->ref->rank, 2);
}

static void trainer_sees_the_gpu_of_its_slot_by_uuid_and_no_other(void **state)
{
    struct world *world = begin(state);
    assert_int_equal(world_hello(world)->n_gpus, 2);
    (void)hold(world, 0);
    world_order_start_in(world, 1, 4);
    (void)world_wait_started(world, 1, 1, 1);
    assert_non_null(strstr(world_wait_log(world, 0, "holding"), "gpus []\n"));
    assert_non_null(strstr(world_wait_log(world, 1, "holding"), "gpus [GPU-fake-1]\n"));
    assert_non_null(strstr(world_wait_log(world, 0, "holding"), "nccl [ ]\n"));
    assert_non_null(strstr(world_wait_log(world, 1, "holding"), "nccl [=lo AF_INET]\n"));
    world_order_start_in(world, 2, 5);
    const Cairn__V1__TrainerExited *exited = world_wait_exited(world, 1, 2, 1);
    assert_int_equal(exited->cause, CAIRN__V1__TRAINER_EXITED__CAUSE__SPAWN_FAILED);
    assert_non_null(strstr(exited->message, "slot 5"));
}

static void exit_is_told_with_code_and_last_lines_until_it_is_acknowledged(void **state)
{
    struct world *world = begin(state);
    world_ack_exits(world, false);
    world_order_start(world, 1, 0, "exit7");
    const Cairn__V1__TrainerExited *exited = world_wait_exited(world, 1, 0, 3);
    assert_int_equal(exited->cause, EXIT);
    assert_int_equal(exited->code, 7);
    assert_int_equal(exited->pid, world_wait_started(world, 1, 0, 1));
    assert_true(exited->n_last_lines >= 2);
    assert_string_equal(exited->last_lines[exited->n_last_lines - 1], "goodbye");
    assert_true(has_record(world, 0));
    world_order_start(world, 1, 0, "hold"); /* a repeated order doesn't start it again */
    (void)world_wait_exited(world, 1, 0, 4);
    world_ack_exits(world, true);
    wait_no_record(world, 0);
    assert_int_equal(world_processes(world), 0);
}

static void signals_are_told_by_their_number(void **state)
{
    struct world *world = begin(state);
    world_order_start(world, 1, 0, "segv");
    const Cairn__V1__TrainerExited *exited = world_wait_exited(world, 1, 0, 1);
    assert_int_equal(exited->cause, SIGNALED);
    assert_int_equal(exited->signal, SIGSEGV);
    pid_t pid = hold(world, 1);
    assert_int_equal(kill(pid, SIGKILL), 0);
    exited = world_wait_exited(world, 1, 1, 1);
    assert_int_equal(exited->cause, SIGNALED);
    assert_int_equal(exited->signal, SIGKILL);
    assert_int_equal(exited->words__case, CAIRN__V1__TRAINER_EXITED__WORDS___NOT_SET);
}

static void last_words_come_with_the_exit(void **state)
{
    struct world *world = begin(state);
    pid_t pid = hold(world, 0);
    leave_words(world, 0);
    assert_int_equal(kill(pid, SIGKILL), 0);
    const Cairn__V1__TrainerExited *exited = world_wait_exited(world, 1, 0, 1);
    assert_int_equal(exited->cause, SIGNALED);
    assert_int_equal(exited->words__case, CAIRN__V1__TRAINER_EXITED__WORDS__WORDS);
    assert_int_equal(exited->words->step, 60);
    assert_true(exited->words->finished);
}

static void ending_kills_what_does_not_go_in_time(void **state)
{
    struct world *world = begin(state);
    (void)hold(world, 0);
    world_order_end(world, 1, 0, SIGTERM, 60000);
    const Cairn__V1__TrainerExited *exited = world_wait_exited(world, 1, 0, 1);
    assert_int_equal(exited->signal, SIGTERM);

    world_order_start(world, 1, 1, "stubborn");
    (void)world_wait_log(world, 1, "won't go");
    world_order_end(world, 1, 1, SIGTERM, 100);
    exited = world_wait_exited(world, 1, 1, 1);
    assert_int_equal(exited->cause, SIGNALED);
    assert_int_equal(exited->signal, SIGKILL);

    pid_t stopped = hold(world, 2);
    assert_int_equal(kill(stopped, SIGSTOP), 0);
    world_order_end(world, 1, 2, SIGKILL, 0);
    assert_int_equal(world_wait_exited(world, 1, 2, 1)->signal, SIGKILL);
    assert_int_equal(world_processes(world), 0);
}

static void processes_that_a_trainer_leaves_behind_are_killed(void **state)
{
    struct world *world = begin(state);
    world_order_start(world, 1, 0, "orphan");
    const Cairn__V1__TrainerExited *exited = world_wait_exited(world, 1, 0, 1);
    assert_int_equal(exited->cause, EXIT);
    assert_int_equal(exited->code, 0);
    const char *line = exited->last_lines[exited->n_last_lines - 1];
    assert_int_equal(strncmp(line, "child ", 6), 0);
    wait_process_gone((pid_t)strtol(line + 6, NULL, 10));
}

static void repeated_start_makes_one_process(void **state)
{
    struct world *world = begin(state);
    pid_t pid = hold(world, 0);
    world_order_start(world, 1, 0, "hold");
    world_order_start(world, 1, 0, "hold");
    assert_int_equal(world_wait_started(world, 1, 0, 3), pid);
    world_order_start(world, 2, 0, "hold"); /* another generation is another trainer */
    assert_int_not_equal(world_wait_started(world, 2, 0, 1), pid);
}

static void orders_about_what_is_not_there_are_answered_and_bad_names_ignored(void **state)
{
    struct world *world = begin(state);
    world_order_end(world, 9, 9, SIGTERM, 0);
    const Cairn__V1__TrainerExited *exited = world_wait_exited(world, 9, 9, 1);
    assert_int_equal(exited->cause, UNKNOWN);
    assert_int_equal(exited->pid, 0);
    world_order_log(world, 77, 5, 0, 100);
    assert_true(world_wait_chunk(world, 77)->missing);
    world_order_start_bad(world, "../../etc");
    world_order_start_bad(world, "");
    world_wait_beats(world, 1); /* it lives */
    assert_int_equal(world_processes(world), 0);
}

static void log_is_read_in_pieces(void **state)
{
    struct world *world = begin(state);
    (void)hold(world, 0);
    const char *log = world_wait_log(world, 0, "holding");
    world_order_log(world, 1000, 0, 10, 5);
    const Cairn__V1__LogChunk *chunk = world_wait_chunk(world, 1000);
    assert_int_equal(chunk->offset, 10);
    assert_int_equal(chunk->data.len, 5);
    assert_memory_equal(chunk->data.data, log + 10, 5);
    assert_int_equal(chunk->size, strlen(log));
}

static void coordinator_may_come_late_and_go(void **state)
{
    struct world *world = *state;
    world_agent_start(world, NULL);
    world_coordinator_start(world);
    world_wait_hellos(world, 1);
    pid_t pid = hold(world, 0);
    world_ack_exits(world, false);
    world_order_start(world, 1, 1, "exit7");
    (void)world_wait_exited(world, 1, 1, 1);
    world_coordinator_stop(world);
    world_ack_exits(world, true);
    assert_true(process_lives(pid));
    unsigned before = world_hellos(world);
    world_coordinator_start(world);
    world_wait_hellos(world, before + 1);
    const Cairn__V1__AgentHello *hello = world_hello(world);
    assert_int_equal(hello->n_running, 2); /* that, and the one whose exit isn't acknowledged */
    assert_true(hello->running[0]->pid == (uint32_t)pid || hello->running[1]->pid == (uint32_t)pid);
    wait_no_record(world, 1); /* its exit was said again, and acknowledged */
    assert_true(process_lives(pid));
}

static void killed_agent_is_followed_by_one_that_adopts(void **state)
{
    struct world *world = begin(state);
    pid_t unfinished = hold(world, 0);
    pid_t finished = hold(world, 1);
    pid_t away = hold(world, 2);
    world_agent_kill(world);
    assert_true(process_lives(unfinished));
    leave_words(world, 2);
    assert_int_equal(kill(away, SIGKILL), 0); /* while nobody looks */
    wait_process_gone(away);
    unsigned before = world_hellos(world);
    world_agent_start(world, NULL);
    world_wait_hellos(world, before + 1);
    assert_int_equal(world_hello(world)->n_running, 3); /* one of them is gone, as told at once */
    assert_int_equal(world_wait_exited(world, 1, 2, 1)->cause, FINISHED);

    assert_int_equal(kill(unfinished, SIGKILL), 0);
    const Cairn__V1__TrainerExited *exited = world_wait_exited(world, 1, 0, 1);
    assert_int_equal(exited->cause, UNKNOWN);
    assert_int_equal(exited->pid, unfinished);
    assert_true(exited->n_last_lines > 0);
    leave_words(world, 1);
    world_order_end(world, 1, 1, SIGTERM, 60000); /* an adopted one can be ended, too */
    assert_int_equal(world_wait_exited(world, 1, 1, 1)->cause, FINISHED);
    wait_process_gone(finished);
    for (uint32_t rank = 0; rank < 3; rank++)
        wait_no_record(world, rank);
}

static void agent_that_is_asked_to_end_leaves_its_trainers(void **state)
{
    struct world *world = begin(state);
    pid_t pid = hold(world, 0);
    assert_int_equal(world_agent_stop(world), 0);
    assert_true(process_lives(pid));
    unsigned before = world_hellos(world);
    world_agent_start(world, NULL);
    world_wait_hellos(world, before + 1);
    assert_int_equal(world_hello(world)->n_running, 1);
    assert_int_equal(world_hello(world)->running[0]->pid, pid);
}

static void second_agent_of_a_name_is_refused(void **state)
{
    struct world *world = begin(state);
    pid_t pid = hold(world, 0);
    assert_int_equal(world_second_agent(world), 4);
    assert_true(process_lives(pid));
    world_wait_beats(world, 1);
}

static void restart_agent(struct world *world)
{
    unsigned before = world_hellos(world);
    world_agent_start(world, NULL);
    world_wait_hellos(world, before + 1);
}

/* Waits until the trainer's exit is told, and nothing is left of it. */
static const Cairn__V1__TrainerExited *expect_end(struct world *world)
{
    const Cairn__V1__TrainerExited *exited = world_wait_exited(world, 1, 0, 1);
    wait_no_record(world, 0);
    for (int i = 0; i < 5000 && world_processes(world) > 0; i++)
        (void)poll(NULL, 0, 5);
    assert_int_equal(world_processes(world), 0);
    return exited;
}

/* An agent with this fault gets the order to start a trainer, and dies of it. */
static struct world *agent_dies_at(void **state, const char *fault, const char *mode)
{
    struct world *world = *state;
    world_coordinator_start(world);
    world_agent_start(world, fault);
    world_wait_hellos(world, 1);
    world_order_start(world, 1, 0, mode);
    world_agent_wait_killed(world);
    return world;
}

/* Builds without fault points have nothing to die at. */
static void need_faults(void)
{
#ifndef CAIRN_FAULTS
    skip();
#endif
}

static void agent_that_died_before_the_process_was_made_starts_it_when_asked_again(void **state)
{
    need_faults();
    struct world *world = agent_dies_at(state, "agent.intent:kill", "hold");
    assert_int_equal(world_processes(world), 0);
    restart_agent(world);
    assert_int_equal(world_hello(world)->n_running, 0);
    assert_false(has_record(world, 0));
    assert_int_equal(kill(hold(world, 0), SIGKILL), 0);
    assert_int_equal(expect_end(world)->cause, SIGNALED);
}

static void agent_dies_then_adopts(void **state, const char *fault)
{
    need_faults();
    struct world *world = agent_dies_at(state, fault, "hold");
    restart_agent(world);
    const Cairn__V1__AgentHello *hello = world_hello(world);
    assert_int_equal(hello->n_running, 1);
    pid_t pid = (pid_t)hello->running[0]->pid;
    assert_true(process_lives(pid));
    (void)world_wait_log(world, 0, "holding");
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(expect_end(world)->pid, pid);
}

static void agent_that_died_before_the_process_was_recorded_finds_it(void **state)
{
    agent_dies_then_adopts(state, "agent.spawned:kill");
}

static void agent_that_died_after_the_process_was_recorded_finds_it(void **state)
{
    agent_dies_then_adopts(state, "agent.recorded:kill");
}

static void agent_that_died_before_an_exit_was_recorded_tells_that_it_does_not_know(void **state)
{
    need_faults();
    struct world *world = agent_dies_at(state, "agent.exit_seen:kill", "exit7");
    restart_agent(world);
    assert_int_equal(expect_end(world)->cause, UNKNOWN);
}

static void agent_that_died_after_an_exit_was_recorded_tells_it(void **state)
{
    need_faults();
    struct world *world = agent_dies_at(state, "agent.exit_recorded:kill", "exit7");
    restart_agent(world);
    const Cairn__V1__TrainerExited *exited = expect_end(world);
    assert_int_equal(exited->cause, EXIT);
    assert_int_equal(exited->code, 7);
}

/* ---- leaving ---- */

static struct world *begin_leaving(void **state, const char *grace)
{
    world_agent_leaves(*state, grace);
    return begin(state);
}

static void who_leaves_waits_until_exits_are_acknowledged(void **state)
{
    struct world *world = begin_leaving(state, "3600");
    pid_t pid = hold(world, 0);
    world_ack_exits(world, false);
    world_agent_term(world);
    const Cairn__V1__AgentLeaving *leaving = world_wait_leaving(world);
    assert_in_range(leaving->grace_ms, 3500000, 3600000);
    assert_string_equal(leaving->reason, "SIGTERM");
    world_agent_term(world); /* shortens nothing */
    world_wait_beats(world, 1);
    assert_true(process_lives(pid));
    world_order_end(world, 1, 0, SIGTERM, 60000);
    (void)world_wait_exited(world, 1, 0, 3); /* repeated */
    assert_false(world_heard_left(world));
    world_ack_exits(world, true);
    assert_int_equal(world_agent_wait(world), 0);
    assert_true(world_heard_left(world));
    assert_false(has_record(world, 0));
}

static void who_leaves_takes_no_trainer_and_says_so_in_each_hello(void **state)
{
    struct world *world = begin_leaving(state, "3600");
    assert_null(world_hello(world)->leaving);
    (void)hold(world, 0);
    world_agent_term(world);
    (void)world_wait_leaving(world);
    world_order_start(world, 1, 1, "hold");
    const Cairn__V1__TrainerExited *exited = world_wait_exited(world, 1, 1, 1);
    assert_int_equal(exited->cause, UNKNOWN);
    assert_string_equal(exited->message, "this agent leaves");
    world_coordinator_stop(world);
    world_coordinator_start(world);
    world_wait_hellos(world, 2);
    assert_non_null(world_hello(world)->leaving);
    assert_int_equal(world_hello(world)->n_running, 1);
    world_order_end(world, 1, 0, SIGTERM, 60000);
    assert_int_equal(world_agent_wait(world), 0);
}

static void what_runs_when_the_time_of_grace_is_over_is_killed(void **state)
{
    struct world *world = begin_leaving(state, "0.3");
    pid_t pid = hold(world, 0);
    world_agent_term(world);
    const Cairn__V1__TrainerExited *exited = world_wait_exited(world, 1, 0, 1);
    assert_int_equal(exited->cause, SIGNALED);
    assert_int_equal(exited->signal, SIGKILL);
    assert_non_null(strstr(exited->message, "time of grace"));
    assert_int_equal(world_agent_wait(world), 0);
    assert_true(world_heard_left(world));
    assert_false(process_lives(pid));
}

static void who_leaves_does_not_wait_for_a_coordinator_without_end(void **state)
{
    struct world *world = begin_leaving(state, "0.3");
    pid_t pid = hold(world, 0);
    world_coordinator_stop(world);
    world_agent_term(world);
    assert_int_equal(world_agent_wait(world), 0);
    assert_false(process_lives(pid));
    assert_true(has_record(world, 0)); /* its exit is still to be told */
}

/* The number belongs to another process, as after the restart of a container. */
static void a_process_of_another_space_is_not_adopted(void **state)
{
    struct world *world = begin(state);
    pid_t pid = hold(world, 0);
    world_agent_kill(world);
    const struct ref ref = { .job = "j-test", .generation = 1, .rank = 0 };
    struct ref_files files;
    struct record record;
    assert_int_equal(ref_files(&ref, world_paths(world), &files), ST_OK);
    assert_int_equal(record_read(io_system(), files.record, &record), ST_OK);
    assert_int_not_equal(record.pid_space[0], '\0');
    record.pid_space[0]++;
    assert_int_equal(record_write(io_system(), world_paths(world), &record), ST_OK);
    world_agent_start(world, NULL);
    assert_int_equal(world_wait_exited(world, 1, 0, 1)->cause, UNKNOWN);
    assert_true(process_lives(pid)); /* for all that is known, it is another one's */
}

#define WORLD_TEST(name) cmocka_unit_test_setup_teardown(name, world_set_up, world_tear_down)

/* Where pidfds are refused with this errno. */
static int main_without_pidfds(int error)
{
    const struct CMUnitTest tests[] = {
        WORLD_TEST(exit_is_told_with_code_and_last_lines_until_it_is_acknowledged),
        WORLD_TEST(signals_are_told_by_their_number),
        WORLD_TEST(ending_kills_what_does_not_go_in_time),
        WORLD_TEST(processes_that_a_trainer_leaves_behind_are_killed),
        WORLD_TEST(killed_agent_is_followed_by_one_that_adopts),
        WORLD_TEST(agent_that_died_before_the_process_was_recorded_finds_it),
        WORLD_TEST(what_runs_when_the_time_of_grace_is_over_is_killed),
    };
    refuse_pidfds(error);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        WORLD_TEST(agent_introduces_itself_and_beats),
        WORLD_TEST(trainer_gets_arguments_token_threads_and_no_other_descriptor),
        WORLD_TEST(beats_tell_what_trainers_and_the_machine_use),
        WORLD_TEST(trainer_sees_the_gpu_of_its_slot_by_uuid_and_no_other),
        WORLD_TEST(exit_is_told_with_code_and_last_lines_until_it_is_acknowledged),
        WORLD_TEST(signals_are_told_by_their_number),
        WORLD_TEST(last_words_come_with_the_exit),
        WORLD_TEST(ending_kills_what_does_not_go_in_time),
        WORLD_TEST(processes_that_a_trainer_leaves_behind_are_killed),
        WORLD_TEST(repeated_start_makes_one_process),
        WORLD_TEST(orders_about_what_is_not_there_are_answered_and_bad_names_ignored),
        WORLD_TEST(log_is_read_in_pieces),
        WORLD_TEST(coordinator_may_come_late_and_go),
        WORLD_TEST(killed_agent_is_followed_by_one_that_adopts),
        WORLD_TEST(agent_that_is_asked_to_end_leaves_its_trainers),
        WORLD_TEST(second_agent_of_a_name_is_refused),
        WORLD_TEST(agent_that_died_before_the_process_was_made_starts_it_when_asked_again),
        WORLD_TEST(agent_that_died_before_the_process_was_recorded_finds_it),
        WORLD_TEST(agent_that_died_after_the_process_was_recorded_finds_it),
        WORLD_TEST(agent_that_died_before_an_exit_was_recorded_tells_that_it_does_not_know),
        WORLD_TEST(agent_that_died_after_an_exit_was_recorded_tells_it),
        WORLD_TEST(who_leaves_waits_until_exits_are_acknowledged),
        WORLD_TEST(who_leaves_takes_no_trainer_and_says_so_in_each_hello),
        WORLD_TEST(what_runs_when_the_time_of_grace_is_over_is_killed),
        WORLD_TEST(who_leaves_does_not_wait_for_a_coordinator_without_end),
        WORLD_TEST(a_process_of_another_space_is_not_adopted),
    };
    rpc_init();
    int failed = argc == 2 ? main_without_pidfds((int)strtol(argv[1], NULL, 10))
                           : cmocka_run_group_tests(tests, NULL, NULL);
    rpc_shutdown();
    return failed;
}
