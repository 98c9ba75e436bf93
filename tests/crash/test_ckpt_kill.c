/*
 * A process that saves is killed, at random moments, again and again, in one folder; and in one on
 * a tmpfs so small that it is full now and then. After each kill whatever is listed as committed is
 * read back and is bit for bit what its step was, and the newest step that was acknowledged to us
 * is among it. The next life settles what the last one left.
 *
 * CAIRN_TEST_FULL=1 kills 1,000 times each, CAIRN_TEST_KILLS=n so often; CAIRN_TEST_SEED=n draws
 * others. Moments are drawn, but what is under way then isn't known: a seed doesn't repeat a run.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "common/rng.h"
#include "tests/crash/saver.h"
#include "tests/test.h"

#define NOT_ALLOWED 77 /* exit status of a child that could make no namespace */
#define TMPFS_BYTES (512 * 1024)
#define SPAN_US     20000 /* to begin with */
#define SPAN_US_MAX 2000000
#define KILLS       150
#define KILLS_FULL  1000

struct killer {
    char store[LIMIT_PATH];
    uint64_t seed, life;
    uint32_t span_us;            /* a life is killed within so much: a few saves */
    uint64_t newest, generation; /* acknowledged */
    uint64_t saved, full, checked, settled;
    uint64_t acknowledged; /* saves of the last life */
    bool is_full;          /* it said so */
};

static uint64_t kills(void)
{
    bool full = sample_setting("CAIRN_TEST_FULL", 0) != 0;
    return sample_setting("CAIRN_TEST_KILLS", full ? KILLS_FULL : KILLS);
}

static uint32_t draw(const struct killer *killer, uint32_t purpose, uint32_t n)
{
    return rng_below(rng_words(killer->seed, (uint32_t)killer->life, purpose, 0, 0).word[0], n);
}

/* Starts a life; *out_pipe gets what it says. */
static pid_t start(struct killer *killer, uint64_t saves, int *out_pipe)
{
    int ends[2];
    char life[24], count[24], descriptor[24];
    CHECK(pipe(ends) == 0);
    killer->life++;
    (void)snprintf(life, sizeof(life), "%" PRIu64, killer->life);
    (void)snprintf(count, sizeof(count), "%" PRIu64, saves);
    (void)snprintf(descriptor, sizeof(descriptor), "%d", ends[1]);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        (void)close(ends[0]);
        (void)execl(SAVER, "saver", killer->store, life, count, descriptor, (char *)NULL);
        _exit(127);
    }
    (void)close(ends[1]);
    *out_pipe = ends[0];
    return pid;
}

/* Takes down what the life has said, to the end: it is dead or about to be. */
static void listen(struct killer *killer, int pipe)
{
    struct saver_message message;
    ssize_t size = 0;
    killer->is_full = false;
    killer->acknowledged = 0;
    while ((size = read(pipe, &message, sizeof(message))) != 0) {
        if (size < 0 && errno == EINTR)
            continue;
        CHECK(size == (ssize_t)sizeof(message)); /* small enough to be written as one */
        killer->is_full = killer->is_full || message.kind == SAVER_FULL;
        killer->full += message.kind == SAVER_FULL;
        killer->settled += message.kind == SAVER_READY;
        if (message.kind == SAVER_READY)
            CHECK(message.step >= killer->newest);
        if (message.kind != SAVER_SAVED)
            continue;
        CHECK(message.step >= killer->newest);
        killer->saved += message.step > killer->newest;
        killer->acknowledged++;
        killer->newest = message.step;
        killer->generation = message.generation;
    }
    (void)close(pipe);
}

/* Everything that calls itself committed. */
static void check_store(struct killer *killer, bool settled)
{
    auto_free struct ckpt_entry *entries = NULL;
    size_t count = 0;
    bool newest = killer->newest == 0;
    const struct io *io = io_system();
    CHECK(ckpt_list(io, killer->store, SAMPLE_JOB, &entries, &count) == ST_OK);
    for (size_t i = 0; i < count; i++) {
        struct sample sample;
        bool equal = false;
        CHECK(!entries[i].damaged);
        CHECK(entries[i].committed || !settled);
        CHECK(entries[i].committed || entries[i].manifest == ST_NOT_FOUND);
        if (!entries[i].committed)
            continue;
        saver_sample(&sample, entries[i].step, entries[i].generation);
        CHECK(ckpt_verify(io, entries[i].dir, NULL, NULL, NULL) == ST_OK);
        CHECK(sample_compare(io, entries[i].dir, &sample, &equal) == ST_OK);
        CHECK(equal);
        sample_release(&sample);
        killer->checked++;
        newest = newest ||
                 (entries[i].step == killer->newest && entries[i].generation == killer->generation);
    }
    CHECK(newest);
}

static void wait_for(pid_t pid, int *out_status)
{
    pid_t ended = 0;
    do {
        ended = waitpid(pid, out_status, 0);
    } while (ended < 0 && errno == EINTR);
    CHECK(ended == pid);
}

static void kill_once(struct killer *killer)
{
    int pipe = -1, status = 0;
    pid_t pid = start(killer, 0, &pipe);
    uint32_t us = draw(killer, 1, killer->span_us);
    struct timespec moment = { .tv_sec = us / 1000000, .tv_nsec = 1000L * (us % 1000000) };
    while (nanosleep(&moment, &moment) < 0 && errno == EINTR)
        continue;
    CHECK(kill(pid, SIGKILL) == 0);
    listen(killer, pipe);
    wait_for(pid, &status);
    CHECK(WIFSIGNALED(status)); /* it never ends by itself, whatever it finds */
    check_store(killer, false);
    /* Lives of a few saves each, however slow the machine is at the moment. */
    if (killer->acknowledged == 0 && !killer->is_full && killer->span_us < SPAN_US_MAX)
        killer->span_us += killer->span_us / 4;
    if (killer->acknowledged > 3)
        killer->span_us -= killer->span_us / 8;
}

/* A life that nobody kills. */
static void live(struct killer *killer)
{
    int pipe = -1, status = 0;
    uint64_t before = killer->newest;
    pid_t pid = start(killer, 3, &pipe);
    listen(killer, pipe);
    wait_for(pid, &status);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(killer->newest >= before + 3);
    check_store(killer, true);
}

static void print_killer(const struct killer *killer, uint64_t count)
{
    print_message("%" PRIu64 " kills: %" PRIu64 " saves acknowledged, %" PRIu64
                  " lives settled what they found, %" PRIu64 " times full, %" PRIu64
                  " checkpoints read back; seed %" PRIu64 "\n",
                  count, killer->saved, killer->settled, killer->full, killer->checked,
                  killer->seed);
}

static void remove_store(const char *store)
{
    char command[LIMIT_PATH + 16];
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", store);
    assert_int_equal(system(command), 0);
}

static void process_that_is_killed_while_it_saves_loses_nothing(void **state)
{
    (void)state;
    char folder[] = "/tmp/cairn-kill-XXXXXX";
    struct killer killer = { .seed = sample_setting("CAIRN_TEST_SEED", 1), .span_us = SPAN_US };
    assert_non_null(mkdtemp(folder));
    (void)snprintf(killer.store, sizeof(killer.store), "%s/store", folder);
    for (uint64_t i = 0; i < kills(); i++)
        kill_once(&killer);
    live(&killer);
    print_killer(&killer, kills());
    assert_true(killer.saved > kills() / 10);
    remove_store(folder);
}

/* ---- on a tmpfs that fills up ---- */

/* Leaves room for so many bytes. */
static void fill_up(const char *path, uint64_t room)
{
    auto_close int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    static const char block[4096];
    uint64_t size = 0;
    while (write(fd, block, sizeof(block)) == (ssize_t)sizeof(block))
        size += sizeof(block);
    CHECK(ftruncate(fd, (off_t)(size > room ? size - room : 0)) == 0);
}

static void run_on_tmpfs(const char *folder, uint64_t count)
{
    char ballast[LIMIT_PATH];
    struct killer killer = { .seed = sample_setting("CAIRN_TEST_SEED", 1) + 1, .span_us = SPAN_US };
    (void)snprintf(killer.store, sizeof(killer.store), "%.400s/store", folder);
    (void)snprintf(ballast, sizeof(ballast), "%.400s/ballast", folder);
    for (uint64_t i = 0; i < count; i++) {
        if (draw(&killer, 2, 3) != 0) { /* two lives of three have little room */
            fill_up(ballast, draw(&killer, 3, TMPFS_BYTES / 3));
        } else {
            (void)unlink(ballast);
        }
        kill_once(&killer);
    }
    CHECK(killer.full > 0);
    CHECK(killer.saved > count / 20);
    (void)unlink(ballast);
    live(&killer); /* space is there again: it commits again */
    print_killer(&killer, count);
}

/* In a child, for a namespace of mounts can't be left again. */
static int mount_and_run(const char *folder, uint64_t count)
{
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return NOT_ALLOWED;
    char options[32];
    (void)snprintf(options, sizeof(options), "size=%d", TMPFS_BYTES);
    if (mount("tmpfs", folder, "tmpfs", 0, options) != 0)
        return NOT_ALLOWED;
    run_on_tmpfs(folder, count);
    return 0;
}

static void store_that_is_full_now_and_then_loses_nothing_either(void **state)
{
    (void)state;
    char folder[] = "/tmp/cairn-full-XXXXXX";
    assert_non_null(mkdtemp(folder));
    (void)fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int code = mount_and_run(folder, kills());
        (void)fflush(NULL);
        _exit(code);
    }
    int status = 0;
    wait_for(pid, &status);
    assert_int_equal(rmdir(folder), 0);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == NOT_ALLOWED) {
        print_message("no mount namespace is allowed here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(process_that_is_killed_while_it_saves_loses_nothing),
        cmocka_unit_test(store_that_is_full_now_and_then_loses_nothing_either),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
