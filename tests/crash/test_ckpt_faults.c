/*
 * Every file operation of a save, its commit, a removal, a quarantine and a restore fails once, or
 * from then on, in every way; what the coordinator does then is what the server does: it makes the
 * call again, or gives the save up and begins anew. Afterwards the machine crashes.
 *
 * Whatever failed: no descriptor is left open, what was acknowledged is there, what wasn't decided
 * isn't, and once the disk works again, the next try succeeds.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/crash/store_history.h"
#include "tests/test.h"

#define RANKS 2
#define TRIES 3

static const enum memory_io_fault faults[] = {
    MEMORY_IO_EIO,   MEMORY_IO_FULL,      MEMORY_IO_FULL_ONCE, MEMORY_IO_SHORT, MEMORY_IO_TORN,
    MEMORY_IO_AGAIN, MEMORY_IO_INTERRUPT, MEMORY_IO_READ_ONLY, MEMORY_IO_DEAD,
};
#define FAULTS (sizeof(faults) / sizeof(faults[0]))

static bool passes(enum memory_io_fault fault)
{
    return fault != MEMORY_IO_FULL && fault != MEMORY_IO_READ_ONLY && fault != MEMORY_IO_DEAD;
}

struct world {
    struct history history;
    const struct io *io;
    enum memory_io_fault fault;
    uint64_t nth, failed, states;
};

/* ---- the coordinator, with the server's patience ---- */

static enum status again_and_again(enum status (*call)(const struct io *io, const char *dir),
                                   const struct io *io, const char *dir)
{
    enum status st = ST_IO;
    for (int i = 0; i < TRIES && st != ST_OK; i++)
        st = call(io, dir);
    return st;
}

static enum status check(struct world *world, struct saving *it, const struct ckpt_report *reports)
{
    enum status st = ST_IO;
    for (int i = 0; i < TRIES && (st == ST_IO || st == ST_TIMED_OUT || st == ST_AGAIN); i++)
        st = ckpt_commit_check(world->io, it->dir, reports, it->ranks);
    struct ckpt_hash digest;
    if (st == ST_OK)
        st = ckpt_manifest_make(reports, it->ranks, SAMPLE_JOB, "now", &it->manifest, &digest);
    if (st == ST_OK)
        it->decided = memory_io_changes(world->history.memory);
    return st;
}

/* Up to the decision. */
static enum status write_and_decide(struct world *world, struct saving *it)
{
    struct ckpt_report reports[RANKS] = { 0 };
    enum status st = again_and_again(ckpt_folder_create, world->io, it->dir);
    for (uint32_t i = 0; i < RANKS && st == ST_OK; i++)
        st = ckpt_shard_write(world->io, it->dir, &it->sample.state, i, RANKS, NULL, &reports[i]);
    if (st == ST_OK)
        st = check(world, it, reports);
    for (uint32_t i = 0; i < RANKS; i++)
        ckpt_report_release(&reports[i]);
    return st;
}

static void publish(struct world *world, struct saving *it)
{
    enum status st = ST_IO;
    for (int i = 0; i < TRIES && st != ST_OK; i++)
        st = ckpt_manifest_publish(world->io, it->dir, it->manifest.data, it->manifest.size);
    if (st == ST_OK)
        it->acknowledged = memory_io_changes(world->history.memory);
}

/* Saves once; given up, its folder is removed, if it can be. */
static bool save_once(struct world *world, uint64_t step)
{
    struct saving *it = history_begin(&world->history, step, 1, RANKS);
    if (write_and_decide(world, it) == ST_OK) {
        publish(world, it);
        return it->acknowledged != NEVER;
    }
    it->given_up = memory_io_changes(world->history.memory);
    (void)again_and_again(ckpt_remove, world->io, it->dir);
    return false;
}

/* ---- what must hold ---- */

struct glance {
    struct world *world;
    enum history_when when;
    const char *why;
};

static bool look(void *arg, struct memory_io *found)
{
    struct glance *glance = arg;
    struct history *history = &glance->world->history;
    size_t n = memory_io_changes(history->memory);
    glance->world->states++;
    glance->why = history_check(history, found, n, glance->when);
    if (glance->why == NULL && glance->when == HISTORY_CUT_OFF) {
        glance->why = history_recover(history, found, n, true);
        if (glance->why == NULL)
            glance->why = history_check(history, found, n, HISTORY_RECOVERED);
    }
    return glance->why == NULL;
}

/* Here and now, and after a power failure. */
static void assert_promises(struct world *world, enum history_when when)
{
    static const struct crash_limits limits = { .all_max = 64, .draws = 2, .seed = 5 };
    struct memory_io *memory = world->history.memory;
    struct glance glance = { .world = world, .when = when };
    memory_io_arm(memory, MEMORY_IO_NONE, 0);
    glance.why = history_check(&world->history, memory, memory_io_changes(memory), when);
    if (glance.why == NULL) {
        struct crash_point *point = crash_point_new(memory, memory_io_changes(memory));
        (void)crash_explore(point, &limits, look, &glance);
        crash_point_free(point);
    }
    if (glance.why != NULL)
        fail_msg("fault %d at call %" PRIu64 ": %s", (int)world->fault, world->nth, glance.why);
}

static void arm(struct world *world)
{
    memory_io_arm(world->history.memory, world->fault, world->nth);
}

static uint64_t calls_of(const struct world *world)
{
    return memory_io_calls(world->history.memory);
}

/* The life after: a process that died is followed by one whose disk works. */
static void next_life(struct world *world)
{
    struct history *history = &world->history;
    memory_io_close_all(history->memory);
    memory_io_arm(history->memory, MEMORY_IO_NONE, 0);
    const char *why =
        history_recover(history, history->memory, memory_io_changes(history->memory), false);
    if (why != NULL)
        fail_msg("fault %d at call %" PRIu64 ": %s", (int)world->fault, world->nth, why);
    assert_promises(world, HISTORY_RECOVERED);
}

/* Makes an attempt after an acknowledged save of step 40, with every fault at every call that it
 * makes. attempt: arms the fault, and returns how many calls were made since. failed_min: more
 * attempts than that must fail. */
static void fail_everywhere(uint64_t (*attempt)(struct world *world), uint64_t failed_min)
{
    struct world world = { 0 };
    for (size_t f = 0; f < FAULTS; f++) {
        uint64_t calls = UINT64_MAX;
        world.fault = faults[f];
        for (world.nth = 1; calls >= world.nth - 1; world.nth++) {
            world.history = (struct history){ .memory = memory_io_new() };
            world.io = memory_io_table(world.history.memory);
            assert_true(save_once(&world, 40));
            calls = attempt(&world);
            history_release(&world.history);
        }
    }
    assert_true(world.failed > failed_min);
    print_message("%" PRIu64 " failed, %" PRIu64 " states\n", world.failed, world.states);
}

static uint64_t save(struct world *world)
{
    bool saved = false;
    arm(world);
    for (int i = 0; i < TRIES && !saved; i++) {
        saved = save_once(world, 80);
        world->failed += !saved;
        const struct history *history = &world->history;
        if (!saved && history->savings[history->count - 1].decided != NEVER)
            break; /* nothing but its publication is tried from now on */
        if (world->fault == MEMORY_IO_DEAD)
            break;
    }
    uint64_t calls = calls_of(world);
    assert_true(saved || !passes(world->fault));
    if (world->fault != MEMORY_IO_DEAD) {
        assert_int_equal(memory_io_open_files(world->history.memory), 0);
        assert_promises(world, HISTORY_CUT_OFF);
    }
    next_life(world);
    assert_true(saved || save_once(world, 120));
    assert_promises(world, HISTORY_RECOVERED);
    return calls;
}

static void save_that_fails_at_any_call_is_made_again_or_leaves_nothing(void **state)
{
    (void)state;
    fail_everywhere(save, 100);
}

static uint64_t removal(struct world *world)
{
    assert_true(save_once(world, 80));
    arm(world);
    struct saving *it = &world->history.savings[0];
    it->given_up = memory_io_changes(world->history.memory);
    enum status st = ckpt_remove(world->io, it->dir);
    uint64_t calls = calls_of(world);
    world->failed += st != ST_OK;
    assert_int_equal(memory_io_open_files(world->history.memory), 0);
    assert_true(st == ST_OK || world->fault != MEMORY_IO_FULL); /* a full disk is emptied */
    assert_promises(world, st == ST_OK ? HISTORY_RECOVERED : HISTORY_CUT_OFF);
    next_life(world);
    return calls;
}

static void removal_that_fails_at_any_call_is_made_again(void **state)
{
    (void)state;
    fail_everywhere(removal, 20);
}

static uint64_t quarantine(struct world *world)
{
    char path[LIMIT_PATH];
    assert_true(save_once(world, 80));
    struct memory_io *memory = world->history.memory;
    struct saving *it = &world->history.savings[1];
    (void)snprintf(path, sizeof(path), "%.400s/shard-00000-of-00002.cairn", it->dir);
    it->damaged = memory_io_changes(memory);
    memory_io_damage(memory, path, 4096 + 200, 0x10);
    it->condemned = memory_io_changes(memory);
    arm(world);
    enum status st = ckpt_quarantine(world->io, it->dir, path, sizeof(path));
    uint64_t calls = calls_of(world);
    world->failed += st != ST_OK;
    assert_promises(world, st == ST_OK ? HISTORY_RECOVERED : HISTORY_CUT_OFF);
    next_life(world);
    return calls;
}

static void quarantine_that_fails_at_any_call_is_made_again(void **state)
{
    (void)state;
    fail_everywhere(quarantine, 5);
}

static uint64_t reading(struct world *world)
{
    struct memory_io *memory = world->history.memory;
    const struct saving *it = &world->history.savings[0];
    struct ckpt_entry *entries = NULL;
    size_t count = 0;
    bool equal = false;
    arm(world);
    enum status st = ckpt_list(world->io, SAMPLE_STORE, SAMPLE_JOB, &entries, &count);
    if (st == ST_OK) {
        assert_int_equal(count, 1);
        assert_false(entries[0].damaged);
        assert_true(entries[0].committed || status_scope(entries[0].manifest) == SCOPE_CALL);
        free(entries);
    }
    uint64_t calls = calls_of(world);
    arm(world);
    st = ckpt_verify(world->io, it->dir, NULL, NULL, NULL);
    assert_true(st == ST_OK || status_scope(st) == SCOPE_CALL);
    assert_true(st != ST_NOT_FOUND);
    calls = calls_of(world) > calls ? calls_of(world) : calls;
    arm(world);
    st = sample_compare(world->io, it->dir, &it->sample, &equal);
    assert_true(st == ST_OK ? equal : status_scope(st) == SCOPE_CALL);
    assert_true(st != ST_NOT_FOUND);
    calls = calls_of(world) > calls ? calls_of(world) : calls;
    world->failed += st != ST_OK;
    if (world->fault != MEMORY_IO_DEAD)
        assert_int_equal(memory_io_open_files(memory), 0);
    assert_int_equal(memory_io_changes(memory), it->acknowledged);
    return calls;
}

/* ST_OK and right, or an error that isn't damage; a list never leaves one out in silence. */
static void reading_that_fails_at_any_call_tells_no_lie(void **state)
{
    (void)state;
    fail_everywhere(reading, 10);
}

/* The model fails with statuses; a system call's errors come to the same. */
static void errors_of_a_disk_are_told_apart(void **state)
{
    (void)state;
    assert_int_equal(status_from_errno(ENOSPC), ST_FULL);
    assert_int_equal(status_from_errno(EDQUOT), ST_FULL);
    assert_int_equal(status_from_errno(EROFS), ST_REFUSED);
    assert_int_equal(status_from_errno(EINTR), ST_AGAIN);
    assert_int_equal(status_from_errno(EAGAIN), ST_AGAIN);
    assert_int_equal(status_from_errno(EIO), ST_IO);
    assert_int_equal(status_from_errno(ESTALE), ST_FORGOTTEN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(save_that_fails_at_any_call_is_made_again_or_leaves_nothing),
        cmocka_unit_test(removal_that_fails_at_any_call_is_made_again),
        cmocka_unit_test(quarantine_that_fails_at_any_call_is_made_again),
        cmocka_unit_test(reading_that_fails_at_any_call_tells_no_lie),
        cmocka_unit_test(errors_of_a_disk_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
