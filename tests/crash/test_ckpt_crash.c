/*
 * A power failure at any moment of saves, commits and retention loses no checkpoint that was
 * acknowledged and makes none that isn't whole.
 *
 * A history of saves is recorded once. For every prefix of its changes, and for every choice of
 * which unsynced ones survive, the store is built as it would be found, the coordinator's recovery
 * is run on it (with its journal, which is a database of its own), and the promises are checked.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "common/cleanup.h"
#include "tests/crash/ckpt_sample.h"
#include "tests/crash/memory_io.h"
#include "tests/test.h"

#define SAVES    3
#define RANKS    2
#define ELEMENTS 24
#define DRAWS    6 /* of random subsets, beside the systematic ones; more with CAIRN_TEST_FULL */

/* One save, and when what happened to it, counted in changes of the store. */
struct saving {
    struct sample sample;
    char dir[LIMIT_PATH];
    struct buf manifest; /* what the journal's committing record leads to */
    size_t decided;      /* the record was journalled before the next change */
    size_t acknowledged; /* likewise: ckpt_manifest_publish had returned */
    size_t removal;      /* the journal gave it up before the next change; SIZE_MAX: never */
};

struct history {
    struct memory_io *memory;
    struct saving savings[SAVES];
    uint64_t states; /* that were checked */
};

static void save(struct history *history, size_t i)
{
    struct saving *it = &history->savings[i];
    const struct io *io = memory_io_table(history->memory);
    sample_init(&it->sample, ELEMENTS, 40 * (i + 1), i + 1);
    buf_init(&it->manifest, LIMIT_MANIFEST_BYTES);
    it->removal = SIZE_MAX;
    assert_int_equal(ckpt_folder_path(SAMPLE_STORE, SAMPLE_JOB, it->sample.state.scalars.step,
                                      i + 1, it->dir, sizeof(it->dir)),
                     ST_OK);
    assert_int_equal(sample_write(io, &it->sample, RANKS, it->dir, &it->manifest), ST_OK);
    it->decided = memory_io_changes(history->memory);
    assert_int_equal(ckpt_manifest_publish(io, it->dir, it->manifest.data, it->manifest.size),
                     ST_OK);
    it->acknowledged = memory_io_changes(history->memory);
}

/* keep: {last: 1}: an older one goes after a newer one was read back. */
static void retain(struct history *history, size_t old, size_t newer)
{
    const struct io *io = memory_io_table(history->memory);
    assert_int_equal(ckpt_verify(io, history->savings[newer].dir, NULL, NULL), ST_OK);
    history->savings[old].removal = memory_io_changes(history->memory);
    assert_int_equal(ckpt_remove(io, history->savings[old].dir), ST_OK);
}

static int set_up(void **state)
{
    struct history *history = calloc(1, sizeof(*history));
    assert_non_null(history);
    history->memory = memory_io_new();
    for (size_t i = 0; i < SAVES; i++) {
        save(history, i);
        if (i > 0)
            retain(history, i - 1, i);
    }
    *state = history;
    return 0;
}

static int tear_down(void **state)
{
    struct history *history = *state;
    for (size_t i = 0; i < SAVES; i++) {
        sample_release(&history->savings[i].sample);
        buf_release(&history->savings[i].manifest);
    }
    memory_io_free(history->memory);
    free(history);
    return 0;
}

static void assert_whole(const struct io *io, const struct saving *it)
{
    bool equal = false;
    assert_int_equal(ckpt_verify(io, it->dir, NULL, NULL), ST_OK);
    assert_int_equal(sample_compare(io, it->dir, &it->sample, &equal), ST_OK);
    assert_true(equal);
}

/* What a restarted coordinator does with its journal as it was after `changes`. */
static void recover(const struct history *history, const struct io *io, size_t changes)
{
    for (size_t i = 0; i < SAVES; i++) {
        const struct saving *it = &history->savings[i];
        if (changes >= it->decided && changes < it->acknowledged) {
            assert_int_equal(
                ckpt_manifest_publish(io, it->dir, it->manifest.data, it->manifest.size), ST_OK);
        } else if (changes < it->decided || changes >= it->removal) {
            assert_int_equal(ckpt_remove(io, it->dir), ST_OK);
        }
    }
}

/* Whatever calls itself committed is whole, and it was decided. */
static void assert_nothing_false(const struct history *history, const struct io *io, size_t changes)
{
    struct ckpt_entry *entries = NULL;
    size_t count = 0;
    assert_int_equal(ckpt_list(io, SAMPLE_STORE, SAMPLE_JOB, &entries, &count), ST_OK);
    for (size_t k = 0; k < count; k++) {
        assert_false(entries[k].damaged);
        for (size_t i = 0; i < SAVES && entries[k].committed; i++) {
            const struct saving *it = &history->savings[i];
            if (it->sample.state.scalars.step != entries[k].step)
                continue;
            assert_true(changes >= it->decided);
            assert_whole(io, it);
        }
    }
    free(entries);
}

/* Every decided checkpoint that wasn't given up is there. */
static void assert_nothing_lost(const struct history *history, const struct io *io, size_t changes)
{
    for (size_t i = 0; i < SAVES; i++) {
        const struct saving *it = &history->savings[i];
        if (changes >= it->decided && changes < it->removal)
            assert_whole(io, it);
    }
}

static uint64_t choices(size_t loose)
{
    return 2 + 2 * loose + (getenv("CAIRN_TEST_FULL") != NULL ? 40 * DRAWS : DRAWS);
}

static void crash_anywhere_loses_nothing_and_makes_nothing_false(void **state)
{
    struct history *history = *state;
    size_t total = memory_io_changes(history->memory);
    assert_true(total > 60);
    for (size_t n = 0; n <= total; n++) {
        size_t loose = 0;
        for (uint64_t choice = 0; choice < choices(loose); choice++) {
            struct memory_io *found = memory_io_crash(history->memory, n, choice, &loose);
            const struct io *io = memory_io_table(found);
            assert_nothing_false(history, io, n);
            for (size_t i = 0; i < SAVES; i++) { /* what was acknowledged needs no recovery */
                const struct saving *it = &history->savings[i];
                if (n >= it->acknowledged && n <= it->removal)
                    assert_whole(io, it);
            }
            recover(history, io, n);
            assert_nothing_false(history, io, n);
            assert_nothing_lost(history, io, n);
            history->states++;
            memory_io_free(found);
        }
    }
    print_message("%llu states\n", (unsigned long long)history->states);
}

static void crash_during_recovery_is_recovered_from(void **state)
{
    struct history *history = *state;
    static const uint64_t firsts[] = { 0, 1, MEMORY_IO_KILL };
    size_t total = memory_io_changes(history->memory);
    for (size_t n = 0; n <= total; n++) {
        for (size_t f = 0; f < 3; f++) {
            size_t loose = 0;
            struct memory_io *found = memory_io_crash(history->memory, n, firsts[f], &loose);
            size_t begin = memory_io_changes(found);
            recover(history, memory_io_table(found), n);
            size_t end = memory_io_changes(found);
            for (size_t m = begin; m <= end; m++) {
                for (uint64_t choice = 0; choice < choices(loose); choice++) {
                    struct memory_io *again = memory_io_crash(found, m, choice, &loose);
                    const struct io *io = memory_io_table(again);
                    assert_nothing_false(history, io, n);
                    if (m < end) /* else what was redone is acknowledged */
                        recover(history, io, n);
                    assert_nothing_lost(history, io, n);
                    history->states++;
                    memory_io_free(again);
                }
            }
            memory_io_free(found);
        }
    }
    print_message("%llu states\n", (unsigned long long)history->states);
}

/* A save that was acknowledged survives, whatever it found when it began. */
static void assert_lasting(struct history *history, const struct memory_io *memory,
                           const struct saving *it)
{
    size_t loose = 0;
    for (uint64_t choice = 0; choice < choices(loose); choice++) {
        struct memory_io *after =
            memory_io_crash(memory, memory_io_changes(memory), choice, &loose);
        assert_whole(memory_io_table(after), it);
        history->states++;
        memory_io_free(after);
    }
}

static void first_save_of_a_killed_coordinator_is_made_again(void **state)
{
    struct history *history = *state;
    const struct saving *it = &history->savings[0];
    for (size_t n = 0; n < it->decided; n++) {
        size_t loose = 0;
        struct memory_io *found = memory_io_crash(history->memory, n, MEMORY_IO_KILL, &loose);
        assert_int_equal(sample_save(memory_io_table(found), &it->sample, RANKS, NULL), ST_OK);
        assert_lasting(history, found, it);
        memory_io_free(found);
    }
    print_message("%llu states\n", (unsigned long long)history->states);
}

static void save_that_a_crash_cut_off_is_made_again(void **state)
{
    struct history *history = *state;
    struct saving *last = &history->savings[SAVES - 1];
    size_t begin = history->savings[SAVES - 2].acknowledged;
    for (size_t n = begin; n < last->decided; n++) {
        size_t loose = 0;
        for (uint64_t choice = 0; choice < choices(loose); choice++) {
            struct memory_io *found = memory_io_crash(history->memory, n, choice, &loose);
            const struct io *io = memory_io_table(found);
            assert_int_equal(sample_save(io, &last->sample, RANKS + 1, NULL), ST_OK);
            assert_whole(io, last);
            history->states++;
            memory_io_free(found);
        }
    }
    print_message("%llu states\n", (unsigned long long)history->states);
}

/* The test of the test: the model does lose what isn't synced. */
static void publication_without_its_last_sync_would_be_caught(void **state)
{
    struct history *history = *state;
    struct memory_io *memory = memory_io_new();
    const struct saving *it = &history->savings[0];
    const struct io *io = memory_io_table(memory);
    struct buf manifest;
    buf_init(&manifest, LIMIT_MANIFEST_BYTES);
    assert_int_equal(sample_write(io, &it->sample, RANKS, it->dir, &manifest), ST_OK);
    size_t before = memory_io_changes(memory);
    assert_int_equal(ckpt_manifest_publish(io, it->dir, manifest.data, manifest.size), ST_OK);
    /* All changes of the publication but the last, its fsync of the folder. */
    size_t loose = 0, lost = 0, end = memory_io_changes(memory) - 1;
    assert_true(end > before);
    for (uint64_t choice = 0; choice < choices(loose); choice++) {
        struct memory_io *found = memory_io_crash(memory, end, choice, &loose);
        lost += ckpt_verify(memory_io_table(found), it->dir, NULL, NULL) != ST_OK;
        memory_io_free(found);
    }
    assert_true(lost > 0);
    buf_release(&manifest);
    memory_io_free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(crash_anywhere_loses_nothing_and_makes_nothing_false,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(crash_during_recovery_is_recovered_from, set_up, tear_down),
        cmocka_unit_test_setup_teardown(first_save_of_a_killed_coordinator_is_made_again, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(save_that_a_crash_cut_off_is_made_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(publication_without_its_last_sync_would_be_caught, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
