/* The coordinator's calls: what a failing disk, a repetition and foreign files do to a commit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/format/names.h"
#include "common/cleanup.h"
#include "tests/test.h"
#include "tests/unit/checkpoint/store_fixture.h"

#define DIR_40 SAMPLE_STORE "/" SAMPLE_JOB "/step-000000000040.g2"

static int set_up(void **state)
{
    *state = store_fixture_new(STORE_IN_MEMORY, 300);
    return 0;
}

static void save_at(struct store_fixture *f, uint64_t step, uint64_t generation)
{
    struct sample sample;
    sample_init(&sample, 20, step, generation);
    assert_int_equal(sample_save(f->io, &sample, 2, NULL, NULL), ST_OK);
    sample_release(&sample);
}

static void folder_has_the_documented_names(void **state)
{
    struct store_fixture *f = *state;
    char dir[LIMIT_PATH];
    assert_int_equal(sample_save(f->io, &f->sample, 2, NULL, dir), ST_OK);
    assert_string_equal(dir, DIR_40);
    assert_true(memory_io_has(f->memory, DIR_40 "/manifest.json"));
    assert_true(memory_io_has(f->memory, DIR_40 "/shard-00000-of-00002.cairn"));
    assert_true(memory_io_has(f->memory, DIR_40 "/shard-00001-of-00002.cairn"));
    assert_false(memory_io_has(f->memory, DIR_40 "/manifest.json.tmp"));
    assert_int_equal(ckpt_folder_path("/s", "..", 1, 1, 0, dir, sizeof(dir)), ST_INVALID);
    assert_int_equal(ckpt_folder_path("/s", "a/b", 1, 1, 0, dir, sizeof(dir)), ST_INVALID);
    assert_int_equal(ckpt_folder_path("/s", "j", 1, 1, 0, dir, 8), ST_TOO_LONG);
}

static void names_of_tries_are_printed_and_parsed_alike(void **state)
{
    (void)state;
    static const char *const none[] = { "step-000000000040.g2.t0",
                                        "step-000000000040.g2.t01",
                                        "step-000000000040.g2.t",
                                        "step-000000000040.g2.t4294967296",
                                        "step-000000000040.g2.2",
                                        "step-40.g2",
                                        "step-" };
    char name[LIMIT_NAME];
    struct ckpt_folder_name found;
    assert_int_equal(ckpt_folder_name(40, 2, 0, name), ST_OK);
    assert_string_equal(name, "step-000000000040.g2");
    assert_int_equal(ckpt_folder_name(40, 2, 13, name), ST_OK);
    assert_string_equal(name, "step-000000000040.g2.t13");
    assert_true(ckpt_folder_parse(name, &found));
    assert_true(found.step == 40 && found.generation == 2 && found.try_number == 13);
    assert_false(found.quarantined);
    assert_true(ckpt_folder_parse("bad-step-000000000040.g2.t13.4", &found));
    assert_true(found.quarantined && found.try_number == 13);
    assert_int_equal(found.plain_size, strlen(name));
    assert_true(ckpt_folder_parse("bad-step-000000000040.g2.4", &found));
    assert_int_equal(found.try_number, 0);
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        assert_false(ckpt_folder_parse(none[i], &found));
}

static void a_folder_with_a_manifest_is_not_dropped(void **state)
{
    struct store_fixture *f = *state;
    assert_int_equal(ckpt_folder_drop(f->io, DIR_40), ST_OK); /* there is none */
    assert_int_equal(sample_save(f->io, &f->sample, 2, NULL, NULL), ST_OK);
    uint64_t before = memory_io_hash(f->memory, "/");
    assert_int_equal(ckpt_folder_drop(f->io, DIR_40), ST_EXISTS);
    assert_int_equal(memory_io_hash(f->memory, "/"), before);
    assert_int_equal(f->io->unlink(f->io->self, DIR_40 "/manifest.json"), ST_OK);
    assert_int_equal(ckpt_folder_drop(f->io, DIR_40), ST_OK);
    assert_false(memory_io_has(f->memory, DIR_40));
}

/* Does what one rank does, with the nth call failing; its own file must be gone unless it worked.
 */
static void failing_shard_write_leaves_nothing(void **state)
{
    struct store_fixture *f = *state;
    static const enum memory_io_fault faults[] = { MEMORY_IO_EIO, MEMORY_IO_FULL, MEMORY_IO_SHORT,
                                                   MEMORY_IO_AGAIN };
    static const char path[] = DIR_40 "/shard-00000-of-00002.cairn";
    assert_int_equal(ckpt_folder_create(f->io, DIR_40), ST_OK);
    size_t failed = 0;
    for (size_t k = 0; k < 4; k++) {
        bool reached = true;
        for (uint64_t n = 1; reached; n++) {
            struct ckpt_report report;
            memory_io_arm(f->memory, faults[k], n);
            enum status st = ckpt_shard_write(f->io, DIR_40, &f->sample.state, 0, 2, NULL, &report);
            reached = memory_io_calls(f->memory) >= n;
            assert_int_equal(memory_io_open_files(f->memory), 0);
            memory_io_arm(f->memory, MEMORY_IO_NONE, 0);
            if (st != ST_OK) {
                assert_int_equal(st, faults[k] == MEMORY_IO_FULL ? ST_FULL : ST_IO);
                assert_false(memory_io_has(f->memory, path));
                failed++;
                continue;
            }
            assert_true(faults[k] != MEMORY_IO_EIO || !reached);
            assert_int_equal(f->io->unlink(f->io->self, path), ST_OK);
            ckpt_report_release(&report);
        }
    }
    assert_in_range(failed, 6, 64); /* open, write and fsync at least, each in two ways */
}

static void shard_file_of_that_name_is_never_touched(void **state)
{
    struct store_fixture *f = *state;
    size_t size = 0;
    assert_int_equal(ckpt_folder_create(f->io, DIR_40), ST_OK);
    memory_io_put(f->memory, DIR_40 "/shard-00000-of-00002.cairn", "old", 3);
    struct ckpt_report report;
    assert_int_equal(ckpt_shard_write(f->io, DIR_40, &f->sample.state, 0, 2, NULL, &report),
                     ST_EXISTS);
    assert_non_null(memory_io_bytes(f->memory, DIR_40 "/shard-00000-of-00002.cairn", &size));
    assert_int_equal(size, 3);
}

/* Every call of every part fails once. What is there then is a whole checkpoint or none, and doing
 * it all again gives a whole one. */
static void save_that_fails_anywhere_can_be_repeated(void **state)
{
    struct store_fixture *f = *state;
    static const enum memory_io_fault faults[] = { MEMORY_IO_EIO, MEMORY_IO_FULL };
    for (size_t k = 0; k < 2; k++) {
        bool reached = true;
        for (uint64_t n = 1; reached; n++) {
            bool equal = false;
            memory_io_arm(f->memory, faults[k], n);
            enum status st = sample_save(f->io, &f->sample, 2, NULL, NULL);
            reached = memory_io_calls(f->memory) >= n;
            assert_true(st == ST_OK || st == ST_IO || st == ST_FULL || st == ST_INCOMPLETE);
            memory_io_arm(f->memory, MEMORY_IO_NONE, 0);
            bool there = memory_io_has(f->memory, DIR_40 "/manifest.json");
            assert_true(st != ST_OK || there);
            if (there) {
                assert_int_equal(sample_compare(f->io, DIR_40, &f->sample, &equal), ST_OK);
                assert_true(equal);
            } else {
                assert_int_equal(sample_save(f->io, &f->sample, 3, NULL, NULL), ST_OK);
            }
            assert_int_equal(ckpt_verify(f->io, DIR_40, NULL, NULL, NULL), ST_OK);
            assert_int_equal(ckpt_remove(f->io, DIR_40), ST_OK);
            assert_false(memory_io_has(f->memory, DIR_40));
        }
    }
}

static void publication_is_repeated_after_any_failure(void **state)
{
    struct store_fixture *f = *state;
    auto_buf struct buf manifest;
    buf_init(&manifest, LIMIT_MANIFEST_BYTES);
    assert_int_equal(sample_write(f->io, &f->sample, 2, NULL, DIR_40, &manifest), ST_OK);
    bool reached = true;
    for (uint64_t n = 1; reached; n++) {
        memory_io_arm(f->memory, MEMORY_IO_EIO, n);
        enum status st = ckpt_manifest_publish(f->io, DIR_40, manifest.data, manifest.size);
        reached = memory_io_calls(f->memory) >= n;
        assert_int_equal(st, reached ? ST_IO : ST_OK);
        memory_io_arm(f->memory, MEMORY_IO_NONE, 0);
        for (int again = 0; again < 2; again++)
            assert_int_equal(ckpt_manifest_publish(f->io, DIR_40, manifest.data, manifest.size),
                             ST_OK);
        assert_int_equal(ckpt_verify(f->io, DIR_40, NULL, NULL, NULL), ST_OK);
        assert_false(memory_io_has(f->memory, DIR_40 "/manifest.json.tmp"));
        assert_int_equal(f->io->unlink(f->io->self, DIR_40 "/manifest.json"), ST_OK);
    }
    memory_io_put(f->memory, DIR_40 "/manifest.json", "another", 7);
    assert_int_equal(ckpt_manifest_publish(f->io, DIR_40, manifest.data, manifest.size), ST_EXISTS);
    assert_int_equal(ckpt_folder_create(f->io, DIR_40), ST_EXISTS);
}

/* A request whose answer was lost is sent again by NFS, and may find done what it did itself. */
static enum status link_twice(void *self, const char *from, const char *to)
{
    const struct io *io = memory_io_table(self);
    enum status st = io->link(io->self, from, to);
    return st == ST_OK ? io->link(io->self, from, to) : st;
}

static enum status unlink_twice(void *self, const char *path)
{
    const struct io *io = memory_io_table(self);
    enum status st = io->unlink(io->self, path);
    return st == ST_OK ? io->unlink(io->self, path) : st;
}

static void publication_succeeds_though_answers_are_lost(void **state)
{
    struct store_fixture *f = *state;
    auto_buf struct buf manifest;
    struct io io = *f->io;
    io.link = link_twice;
    io.unlink = unlink_twice;
    buf_init(&manifest, LIMIT_MANIFEST_BYTES);
    assert_int_equal(sample_write(f->io, &f->sample, 2, NULL, DIR_40, &manifest), ST_OK);
    assert_int_equal(ckpt_manifest_publish(&io, DIR_40, manifest.data, manifest.size), ST_OK);
    assert_int_equal(ckpt_verify(f->io, DIR_40, NULL, NULL, NULL), ST_OK);
    assert_false(memory_io_has(f->memory, DIR_40 "/manifest.json.tmp"));
    assert_int_equal(ckpt_remove(&io, DIR_40), ST_OK);
    assert_false(memory_io_has(f->memory, DIR_40));
}

static void commit_is_refused_while_a_file_is_missing_or_short(void **state)
{
    struct store_fixture *f = *state;
    struct ckpt_report reports[2];
    assert_int_equal(ckpt_folder_create(f->io, DIR_40), ST_OK);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(ckpt_shard_write(f->io, DIR_40, &f->sample.state, i, 2, NULL, &reports[i]),
                         ST_OK);
    assert_int_equal(ckpt_commit_check(f->io, DIR_40, reports, 2), ST_OK);
    reports[1].size++;
    assert_int_equal(ckpt_commit_check(f->io, DIR_40, reports, 2), ST_INCOMPLETE);
    reports[1].size--;
    assert_int_equal(f->io->unlink(f->io->self, DIR_40 "/shard-00001-of-00002.cairn"), ST_OK);
    assert_int_equal(ckpt_commit_check(f->io, DIR_40, reports, 2), ST_INCOMPLETE);
    ckpt_report_release(&reports[0]);
    ckpt_report_release(&reports[1]);
}

/* Changes one report in one way; a manifest must not be made of it. */
static void spoil(struct ckpt_report *report, int kind)
{
    struct ckpt_piece_extent *extent = &report->extents[0];
    report->step += kind == 0;
    report->generation += kind == 1;
    report->rank += kind == 2;
    report->size *= kind != 3;
    report->scalars.byte[5] ^= kind == 4;
    report->file[0] ^= kind == 5;
    extent->first += kind == 6;
    extent->buffer += kind == 7 ? 9 : 0;
    report->extent_count -= kind == 8;                            /* an end mark less */
    report->extents[report->extent_count - 1].first += kind == 9; /* a buffer that ends elsewhere */
    report->extents[report->extent_count - 1].buffer += kind == 10;
    report->raw_bytes = kind == 11 ? UINT64_MAX : report->raw_bytes;
}

static void reports_that_contradict_each_other_make_no_manifest(void **state)
{
    struct store_fixture *f = *state;
    assert_int_equal(ckpt_folder_create(f->io, DIR_40), ST_OK);
    for (int kind = -1; kind < 12; kind++) {
        for (uint32_t victim = 0; victim < 2; victim++) {
            struct ckpt_report reports[2];
            for (uint32_t i = 0; i < 2; i++) {
                assert_int_equal(
                    ckpt_shard_write(f->io, DIR_40, &f->sample.state, i, 2, NULL, &reports[i]),
                    ST_OK);
                char path[LIMIT_PATH];
                (void)snprintf(path, sizeof(path), DIR_40 "/%.60s", reports[i].file);
                assert_int_equal(f->io->unlink(f->io->self, path), ST_OK);
            }
            if (kind >= 0)
                spoil(&reports[victim], kind);
            auto_buf struct buf manifest;
            buf_init(&manifest, LIMIT_MANIFEST_BYTES);
            struct ckpt_hash digest;
            assert_int_equal(ckpt_manifest_make(reports, 2, SAMPLE_JOB, "now", &manifest, &digest),
                             kind < 0 ? ST_OK : ST_INVALID);
            assert_true(kind < 0 || manifest.size == 0);
            ckpt_report_release(&reports[0]);
            ckpt_report_release(&reports[1]);
        }
    }
}

static void one_report_of_two_makes_no_manifest(void **state)
{
    struct store_fixture *f = *state;
    struct ckpt_report report;
    assert_int_equal(ckpt_folder_create(f->io, DIR_40), ST_OK);
    assert_int_equal(ckpt_shard_write(f->io, DIR_40, &f->sample.state, 0, 2, NULL, &report), ST_OK);
    (void)snprintf(report.file, sizeof(report.file), "shard-00000-of-00001.cairn");
    auto_buf struct buf manifest;
    buf_init(&manifest, LIMIT_MANIFEST_BYTES);
    struct ckpt_hash digest;
    assert_int_equal(ckpt_manifest_make(&report, 1, SAMPLE_JOB, "now", &manifest, &digest),
                     ST_INVALID);
    assert_int_equal(ckpt_manifest_make(&report, 0, SAMPLE_JOB, "now", &manifest, &digest),
                     ST_INVALID);
    assert_int_equal(ckpt_manifest_make(&report, 1, SAMPLE_JOB, "a\"b", &manifest, &digest),
                     ST_INVALID);
    ckpt_report_release(&report);
}

static void leftover_folder_is_emptied_of_our_files_only(void **state)
{
    struct store_fixture *f = *state;
    assert_int_equal(ckpt_folder_create(f->io, DIR_40), ST_OK);
    memory_io_put(f->memory, DIR_40 "/shard-00000-of-00009.cairn", "x", 1);
    memory_io_put(f->memory, DIR_40 "/manifest.json.tmp", "x", 1);
    memory_io_put(f->memory, DIR_40 "/notes.txt", "x", 1);
    assert_int_equal(ckpt_folder_create(f->io, DIR_40), ST_OK);
    assert_false(memory_io_has(f->memory, DIR_40 "/shard-00000-of-00009.cairn"));
    assert_false(memory_io_has(f->memory, DIR_40 "/manifest.json.tmp"));
    assert_true(memory_io_has(f->memory, DIR_40 "/notes.txt"));
    assert_int_equal(ckpt_remove(f->io, DIR_40), ST_OK);
    assert_true(memory_io_has(f->memory, DIR_40 "/notes.txt"));
}

static void more_files_than_are_looked_at_in_one_go_are_removed(void **state)
{
    struct store_fixture *f = *state;
    assert_int_equal(ckpt_folder_create(f->io, DIR_40), ST_OK);
    for (uint32_t i = 0; i < LIMIT_RANKS; i++) {
        char path[LIMIT_PATH], name[64];
        ckpt_shard_name(i, LIMIT_RANKS, name);
        (void)snprintf(path, sizeof(path), DIR_40 "/%s", name);
        memory_io_put(f->memory, path, "x", 1);
    }
    assert_int_equal(ckpt_remove(f->io, DIR_40), ST_OK);
    assert_false(memory_io_has(f->memory, DIR_40));
}

static void removal_takes_the_manifest_first(void **state)
{
    struct store_fixture *f = *state;
    bool reached = true;
    for (uint64_t n = 1; reached; n++) {
        memory_io_arm(f->memory, MEMORY_IO_NONE, 0);
        assert_int_equal(sample_save(f->io, &f->sample, 2, NULL, NULL), ST_OK);
        memory_io_arm(f->memory, MEMORY_IO_EIO, n);
        enum status st = ckpt_remove(f->io, DIR_40);
        reached = memory_io_calls(f->memory) >= n;
        assert_int_equal(st, reached ? ST_IO : ST_OK);
        memory_io_arm(f->memory, MEMORY_IO_NONE, 0);
        if (memory_io_has(f->memory, DIR_40 "/manifest.json"))
            assert_int_equal(ckpt_verify(f->io, DIR_40, NULL, NULL, NULL), ST_OK);
        assert_int_equal(ckpt_remove(f->io, DIR_40), ST_OK);
        assert_int_equal(ckpt_remove(f->io, DIR_40), ST_OK); /* a missing one is success */
        assert_false(memory_io_has(f->memory, DIR_40));
    }
}

static void list_is_newest_first_and_ignores_what_is_foreign(void **state)
{
    struct store_fixture *f = *state;
    static const char job[] = SAMPLE_STORE "/" SAMPLE_JOB;
    struct ckpt_entry *entries = NULL;
    size_t count = 7;
    assert_int_equal(ckpt_list(f->io, SAMPLE_STORE, SAMPLE_JOB, &entries, &count), ST_OK);
    assert_int_equal(count, 0);
    free(entries);
    save_at(f, 10, 1);
    save_at(f, 30, 3);
    save_at(f, 30, 12);
    save_at(f, 20, 2);
    assert_int_equal(io_mkdir_all(f->io, SAMPLE_STORE "/" SAMPLE_JOB "/step-000000000050.g4"),
                     ST_OK);
    assert_int_equal(io_mkdir_all(f->io, SAMPLE_STORE "/" SAMPLE_JOB "/step-60.g4"), ST_OK);
    assert_int_equal(io_mkdir_all(f->io, SAMPLE_STORE "/" SAMPLE_JOB "/other"), ST_OK);
    memory_io_put(f->memory, SAMPLE_STORE "/" SAMPLE_JOB "/step-000000000070.g1", "x", 1);
    size_t size = 0;
    memory_io_bytes(f->memory, SAMPLE_STORE "/" SAMPLE_JOB "/step-000000000020.g2/manifest.json",
                    &size)[9] ^= 1;
    char moved[LIMIT_PATH];
    assert_int_equal(ckpt_quarantine(f->io, SAMPLE_STORE "/" SAMPLE_JOB "/step-000000000010.g1",
                                     moved, sizeof(moved)),
                     ST_OK);
    assert_string_equal(moved, SAMPLE_STORE "/" SAMPLE_JOB "/bad-step-000000000010.g1");
    assert_int_equal(ckpt_list(f->io, SAMPLE_STORE, SAMPLE_JOB, &entries, &count), ST_OK);
    assert_int_equal(count, 5);
    static const uint64_t steps[] = { 50, 30, 30, 20, 10 }, generations[] = { 4, 12, 3, 2, 1 };
    static const bool committed[] = { false, true, true, false, false };
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(entries[i].step, steps[i]);
        assert_int_equal(entries[i].generation, generations[i]);
        assert_int_equal(entries[i].committed, committed[i]);
        assert_int_equal(entries[i].damaged, i == 3);
        assert_int_equal(entries[i].quarantined, i == 4);
        assert_memory_equal(entries[i].dir, job, sizeof(job) - 1);
    }
    assert_int_equal(entries[0].manifest, ST_NOT_FOUND);
    assert_int_equal(entries[1].files, 2);
    assert_true(entries[1].bytes > 8192);
    assert_true(entries[1].raw_bytes > 0);
    assert_string_equal(entries[1].created_at, SAMPLE_TIME);
    free(entries);
}

static void checkpoint_in_the_folder_of_another_is_none(void **state)
{
    struct store_fixture *f = *state;
    save_at(f, 10, 1);
    assert_int_equal(f->io->rename(f->io->self, SAMPLE_STORE "/" SAMPLE_JOB "/step-000000000010.g1",
                                   SAMPLE_STORE "/" SAMPLE_JOB "/step-000000000011.g1"),
                     ST_OK);
    struct ckpt_entry *entries = NULL;
    size_t count = 0;
    assert_int_equal(ckpt_list(f->io, SAMPLE_STORE, SAMPLE_JOB, &entries, &count), ST_OK);
    assert_int_equal(count, 1);
    assert_false(entries[0].committed);
    assert_true(entries[0].damaged);
    free(entries);
    assert_int_equal(
        ckpt_verify(f->io, SAMPLE_STORE "/" SAMPLE_JOB "/step-000000000011.g1", NULL, NULL, NULL),
        ST_CORRUPT);
}

static void second_bad_folder_of_one_name_gets_a_number(void **state)
{
    struct store_fixture *f = *state;
    char moved[LIMIT_PATH];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(sample_save(f->io, &f->sample, 1, NULL, NULL), ST_OK);
        assert_int_equal(ckpt_quarantine(f->io, DIR_40, moved, sizeof(moved)), ST_OK);
    }
    assert_string_equal(moved, SAMPLE_STORE "/" SAMPLE_JOB "/bad-step-000000000040.g2.3");
    assert_int_equal(ckpt_verify(f->io, moved, NULL, NULL, NULL), ST_OK);
    struct ckpt_entry *entries = NULL;
    size_t count = 0;
    assert_int_equal(ckpt_list(f->io, SAMPLE_STORE, SAMPLE_JOB, &entries, &count), ST_OK);
    assert_int_equal(count, 3);
    assert_true(entries[2].quarantined);
    free(entries);
    moved[0] = '\0'; /* once more: it is where it was */
    assert_int_equal(ckpt_quarantine(f->io, DIR_40, moved, sizeof(moved)), ST_OK);
    assert_string_equal(moved, SAMPLE_STORE "/" SAMPLE_JOB "/bad-step-000000000040.g2.3");
    assert_int_equal(ckpt_quarantine(f->io, SAMPLE_STORE "/" SAMPLE_JOB "/step-000000000041.g2",
                                     moved, sizeof(moved)),
                     ST_NOT_FOUND);
}

/* In builds without fault points they cost nothing and do nothing; there is nothing to see then. */
static void every_fault_point_is_passed_by_a_save_or_a_removal(void **state)
{
#ifdef CAIRN_FAULTS
    struct store_fixture *f = *state;
    static const char *const points[] = {
        "save.create",         "save.write",          "save.fsync",  "save.written",
        "commit.folder",       "commit.check",        "commit.link", "commit.fsync_dir",
        "commit.manifest_tmp", "retention.unpublish",
    };
    for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
        char dir[] = "/tmp/cairn-fault-XXXXXX", fault[64], hit[128];
        assert_non_null(mkdtemp(dir));
        (void)snprintf(fault, sizeof(fault), "%s:enospc", points[i]);
        (void)snprintf(hit, sizeof(hit), "%s/%s.hit", dir, points[i]);
        assert_int_equal(setenv("CAIRN_FAULT_DIR", dir, 1), 0);
        assert_int_equal(setenv("CAIRN_FAULT", fault, 1), 0);
        enum status saved = sample_save(f->io, &f->sample, 2, NULL, NULL);
        enum status removed = ckpt_remove(f->io, DIR_40);
        assert_int_equal(unsetenv("CAIRN_FAULT"), 0);
        assert_true(saved == ST_FULL || (saved == ST_OK && removed == ST_FULL));
        if (strncmp(points[i], "save.", 5) == 0)
            assert_false(memory_io_has(f->memory, DIR_40 "/shard-00000-of-00002.cairn"));
        assert_int_equal(ckpt_remove(f->io, DIR_40), ST_OK);
        assert_int_equal(unlink(hit), 0);
        assert_int_equal(rmdir(dir), 0);
    }
#else
    (void)state;
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(folder_has_the_documented_names, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(names_of_tries_are_printed_and_parsed_alike, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(a_folder_with_a_manifest_is_not_dropped, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(failing_shard_write_leaves_nothing, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(shard_file_of_that_name_is_never_touched, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(save_that_fails_anywhere_can_be_repeated, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(publication_succeeds_though_answers_are_lost, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(publication_is_repeated_after_any_failure, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(commit_is_refused_while_a_file_is_missing_or_short, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(reports_that_contradict_each_other_make_no_manifest, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(one_report_of_two_makes_no_manifest, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(leftover_folder_is_emptied_of_our_files_only, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(more_files_than_are_looked_at_in_one_go_are_removed, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(removal_takes_the_manifest_first, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(list_is_newest_first_and_ignores_what_is_foreign, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(checkpoint_in_the_folder_of_another_is_none, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(every_fault_point_is_passed_by_a_save_or_a_removal, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(second_bad_folder_of_one_name_gets_a_number, set_up,
                                        store_fixture_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
