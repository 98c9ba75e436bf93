/* Differences as the writer makes them: they save space, and a bad base costs nothing but that. */
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/format/disk.h"
#include "checkpoint/format/hash.h"
#include "checkpoint/s3/s3.h"
#include "common/cleanup.h"
#include "tests/test.h"
#include "tests/unit/checkpoint/store_fixture.h"

#define ELEMENTS 700000 /* 18 chunks */

static int set_up(void **state)
{
    *state = store_fixture_new(STORE_IN_FOLDER, ELEMENTS);
    return 0;
}

/* Some of the weights move, as in a step. */
static void train(struct store_fixture *f)
{
    float *weights = (float *)(uintptr_t)f->sample.buffers[0].data;
    for (uint64_t i = 0; i < f->sample.buffers[0].count; i += 7)
        weights[i] *= 1.0001F;
    f->sample.state.scalars.step++;
}

struct saved {
    char dir[LIMIT_PATH];
    struct ckpt_parent parent;
    uint64_t size;
    struct ckpt_hash hash;
};

/* Saves the state by one rank. base: folder or NULL. */
static struct saved commit(struct store_fixture *f, uint32_t threads, const char *base)
{
    struct saved saved;
    struct ckpt_manifest manifest;
    struct sample_options options = { .threads = threads };
    if (base != NULL)
        assert_int_equal(ckpt_open(f->io, base, NULL, NULL, &options.write.base), ST_OK);
    store_fixture_save(f, 1, &options);
    ckpt_close(options.write.base);
    assert_int_equal(ckpt_manifest_read(f->io, f->dir, &manifest, NULL), ST_OK);
    memcpy(saved.dir, f->dir, sizeof(saved.dir));
    saved.parent = manifest.parent;
    saved.size = manifest.files[0].size;
    saved.hash = manifest.files[0].hash;
    ckpt_manifest_release(&manifest);
    return saved;
}

static void difference_is_smaller_and_the_same_with_any_number_of_threads(void **state)
{
    struct store_fixture *f = *state;
    const struct saved full = commit(f, 0, NULL);
    assert_int_equal(full.parent.generation, 0);
    train(f);
    struct ckpt_hash first = { { 0 } };
    for (uint32_t threads = 0; threads < 5; threads++) {
        const struct saved saved = commit(f, threads, full.dir);
        assert_int_equal(saved.parent.step, 40);
        assert_int_equal(saved.parent.generation, 2);
        assert_true(saved.size < full.size / 2);
        if (threads == 0)
            first = saved.hash;
        assert_memory_equal(first.byte, saved.hash.byte, sizeof(first.byte));
        store_fixture_assert_saved(f, saved.dir);
        assert_int_equal(ckpt_remove(f->io, saved.dir), ST_OK);
    }
}

#define FURTHER ".t3"

/* A checkpoint that lies in the folder of a further try, and a difference to it. */
static void commit_further(struct store_fixture *f, struct saved *full, struct saved *child,
                           char further[LIMIT_PATH + 8])
{
    *full = commit(f, 0, NULL);
    train(f);
    *child = commit(f, 0, full->dir);
    assert_true(snprintf(further, LIMIT_PATH + 8, "%s" FURTHER, full->dir) > 0);
    assert_int_equal(f->io->rename(f->io->self, full->dir, further), ST_OK);
}

/* What a difference is read through may lie in the folder of a further try. */
static void parent_is_found_in_whichever_try_was_published(void **state)
{
    struct store_fixture *f = *state;
    char further[LIMIT_PATH + 8];
    struct saved full, child;
    commit_further(f, &full, &child, further);
    assert_int_equal(ckpt_folder_create(f->io, full.dir), ST_OK); /* not published */
    store_fixture_assert_saved(f, child.dir);
    struct ckpt_entry *entries = NULL;
    size_t count = 0;
    assert_int_equal(ckpt_list(f->io, f->store, f->sample.state.job, &entries, &count), ST_OK);
    assert_int_equal(count, 3);
    assert_true(entries[1].try_number == 3 && entries[1].committed);
    assert_true(entries[2].try_number == 0 && !entries[2].committed);
    free(entries);
    assert_int_equal(ckpt_remove(f->io, further), ST_OK);
    assert_int_equal(ckpt_verify(f->io, child.dir, NULL, NULL, NULL), ST_INCOMPLETE);
    assert_int_equal(ckpt_remove(f->io, full.dir), ST_OK);
}

static enum status stat_that_fails(void *self, const char *path, struct io_stat *out)
{
    return strstr(path, FURTHER "/") != NULL ? ST_IO : io_system()->stat(self, path, out);
}

/* A disk that fails says nothing of what is on it. */
static void a_base_that_cannot_be_looked_at_is_not_missing(void **state)
{
    struct store_fixture *f = *state;
    char further[LIMIT_PATH + 8];
    struct saved full, child;
    commit_further(f, &full, &child, further);
    struct io failing = *f->io;
    failing.stat = stat_that_fails;
    assert_int_equal(ckpt_verify(&failing, child.dir, NULL, NULL, NULL), ST_IO);
    assert_int_equal(ckpt_verify(f->io, child.dir, NULL, NULL, NULL), ST_OK);
}

/* A reader is told a file of the difference; that file, or the base's, shows the damage. */
static void damage_of_the_base_is_found_by_the_file_of_the_difference(void **state)
{
    struct store_fixture *f = *state;
    struct ckpt_reader *reader = NULL;
    char path[LIMIT_PATH];
    const struct saved full = commit(f, 0, NULL);
    train(f);
    const struct saved child = commit(f, 0, full.dir);
    store_fixture_shard(full.dir, 0, 1, path);
    store_fixture_flip(f, path, 4096 + 104 + 5000, 1);
    assert_int_equal(ckpt_open(f->io, child.dir, NULL, NULL, &reader), ST_OK);
    assert_int_equal(ckpt_read_state(reader, NULL, NULL), ST_CORRUPT);
    assert_int_equal(ckpt_reader_damaged(reader), 1);
    ckpt_close(reader);
    assert_int_equal(ckpt_verify_file(f->io, child.dir, 0, NULL, NULL, NULL), ST_CORRUPT);
    assert_int_equal(ckpt_verify_file(f->io, full.dir, 0, NULL, NULL, NULL), ST_CORRUPT);
}

/* Writes the state alone to a folder of its own. */
static struct ckpt_hash write_alone(struct store_fixture *f, struct ckpt_reader *base)
{
    char dir[LIMIT_PATH], path[LIMIT_PATH];
    const struct sample_options options = { .threads = 1, .write = { .base = base } };
    struct ckpt_report report;
    store_fixture_path(f->store, "alone", dir);
    assert_int_equal(f->io->mkdir(f->io->self, dir), ST_OK);
    assert_int_equal(sample_shard_write(f->io, dir, &f->sample.state, 0, 1, &options, &report),
                     ST_OK);
    assert_int_equal(report.parent.generation, 0);
    store_fixture_path(dir, report.file, path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
    const struct ckpt_hash hash = report.hash;
    ckpt_report_release(&report);
    return hash;
}

static void base_of_other_buffers_or_a_later_step_is_left_alone(void **state)
{
    struct store_fixture *f = *state;
    const struct saved full = commit(f, 0, NULL);
    struct sample other, mine = f->sample;
    sample_init(&other, ELEMENTS / 2, 41, 2);
    for (int kind = 0; kind < 3; kind++) {
        f->sample = kind == 0 ? other : mine;
        if (kind == 1)
            (void)snprintf(f->sample.state.job, sizeof(f->sample.state.job), "j-another");
        f->sample.state.scalars.step = kind == 2 ? 39 : 41; /* 39: before its base */
        struct ckpt_reader *base = NULL;
        assert_int_equal(ckpt_open(f->io, full.dir, NULL, NULL, &base), ST_OK);
        const struct ckpt_hash hash = write_alone(f, base), alone = write_alone(f, NULL);
        assert_memory_equal(alone.byte, hash.byte, sizeof(alone.byte));
        ckpt_close(base);
    }
    f->sample = mine;
    sample_release(&other);
}

/* The medium has lost a chunk of the base: that chunk is stored whole, and all of it reads back. */
static void chunk_of_the_base_that_cannot_be_read_is_stored_whole(void **state)
{
    struct store_fixture *f = *state;
    char path[LIMIT_PATH];
    const struct saved full = commit(f, 0, NULL);
    train(f);
    const struct saved difference = commit(f, 2, full.dir);
    assert_int_equal(ckpt_remove(f->io, difference.dir), ST_OK);
    store_fixture_shard(full.dir, 0, 1, path);
    store_fixture_flip(f, path, DISK_HEADER_SIZE + 5000, 1);
    const struct saved saved = commit(f, 2, full.dir);
    assert_int_equal(saved.parent.generation, 2);
    assert_true(saved.size > difference.size);
    assert_true(saved.size < full.size);
    bool equal = false;
    assert_int_equal(sample_compare(f->io, saved.dir, &f->sample, &equal), ST_OK);
    assert_true(equal);
}

static void chain_that_is_long_enough_ends_with_a_full_checkpoint(void **state)
{
    struct store_fixture *f = *state;
    struct saved last = { .size = 0 };
    for (uint32_t i = 0; i <= DISK_CHAIN_MAX + 1; i++) {
        last = commit(f, 1, i == 0 ? NULL : last.dir);
        const bool stands_alone = i == 0 || i == DISK_CHAIN_MAX + 1;
        assert_int_equal(last.parent.generation == 0, stands_alone);
        store_fixture_assert_saved(f, last.dir);
        train(f);
    }
}

/* ---- memory ---- */

/* What a store's files would hold that are open, as those of S3 do, and what this process has. */
static struct {
    struct io io;
    pthread_mutex_t mutex;
    bool writes[1024]; /* by descriptor */
    size_t held, peak;
} held = { .mutex = PTHREAD_MUTEX_INITIALIZER };

static size_t held_by(int fd)
{
    const struct s3_options o = s3_defaults();
    return held.writes[fd] ? (o.parts_max + 1) * o.part_bytes : o.blocks_max * o.block_bytes;
}

static void note_peak(void)
{
    const size_t now = held.held + resident_bytes();
    held.peak = now > held.peak ? now : held.peak;
}

static enum status held_open(void *self, const char *path, int flags, int *out_fd)
{
    enum status st = io_system()->open(self, path, flags, out_fd);
    if (st != ST_OK)
        return st;
    (void)pthread_mutex_lock(&held.mutex);
    assert_in_range(*out_fd, 0, 1023);
    held.writes[*out_fd] = (flags & IO_CREATE_NEW) != 0;
    held.held += held_by(*out_fd);
    note_peak();
    (void)pthread_mutex_unlock(&held.mutex);
    return ST_OK;
}

static enum status held_close(void *self, int fd)
{
    (void)pthread_mutex_lock(&held.mutex);
    note_peak();
    held.held -= held_by(fd);
    (void)pthread_mutex_unlock(&held.mutex);
    return io_system()->close(self, fd);
}

/* To and from a store like S3, with a base of as many parents as there may be. */
static void difference_takes_no_more_memory_than_the_writer_says(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* what is resident is the sanitizer's */
#endif
    struct store_fixture *f = *state;
    struct saved base = { .size = 0 };
    for (uint32_t i = 0; i < DISK_CHAIN_MAX; i++) {
        base = commit(f, 0, i == 0 ? NULL : base.dir);
        train(f);
    }
    held.io = *io_system();
    held.io.open = held_open;
    held.io.close = held_close;
    f->io = &held.io;
    for (uint32_t threads = 0; threads < 3; threads++) {
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < f->sample.state.buffer_count; i++) {
            const struct ckpt_buffer *b = &f->sample.buffers[i];
            bytes += b->count * ckpt_dtype_size(b->dtype);
        }
        const struct ckpt_writer_use use = {
            .threads = threads, .share_bytes = bytes, .base_bytes = bytes, .object = true
        };
        (void)malloc_trim(0);
        const size_t before = resident_bytes();
        held.peak = 0;
        const struct saved saved = commit(f, threads, base.dir);
        assert_true(saved.parent.generation != 0);
        assert_in_range(held.peak - before, DISK_CHAIN_MAX * s3_read_bytes(),
                        ckpt_writer_bytes(&use));
        assert_int_equal(held.held, 0);
        assert_int_equal(ckpt_remove(f->io, saved.dir), ST_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            difference_is_smaller_and_the_same_with_any_number_of_threads, set_up,
            store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(parent_is_found_in_whichever_try_was_published, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(a_base_that_cannot_be_looked_at_is_not_missing, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(damage_of_the_base_is_found_by_the_file_of_the_difference,
                                        set_up, store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(base_of_other_buffers_or_a_later_step_is_left_alone, set_up,
                                        store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(chunk_of_the_base_that_cannot_be_read_is_stored_whole,
                                        set_up, store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(chain_that_is_long_enough_ends_with_a_full_checkpoint,
                                        set_up, store_fixture_tear_down),
        cmocka_unit_test_setup_teardown(difference_takes_no_more_memory_than_the_writer_says,
                                        set_up, store_fixture_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
