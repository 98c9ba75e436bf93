/* Differences as the writer makes them: they save space, and a bad base costs nothing but that. */
#include <ftw.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/format/disk.h"
#include "checkpoint/format/hash.h"
#include "checkpoint/s3/s3.h"
#include "common/cleanup.h"
#include "tests/crash/ckpt_sample.h"
#include "tests/test.h"

#define ELEMENTS 700000 /* 18 chunks */

struct world {
    char store[64];
    const struct io *io;
    struct sample sample;
};

static int setup(void **state)
{
    struct world *world = calloc(1, sizeof(*world));
    assert_non_null(world);
    (void)snprintf(world->store, sizeof(world->store), "/tmp/cairn-differences-XXXXXX");
    assert_non_null(mkdtemp(world->store));
    world->io = io_system();
    sample_init(&world->sample, ELEMENTS, 40, 2);
    *state = world;
    return 0;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info;
    (void)kind;
    (void)place;
    return remove(path);
}

static int teardown(void **state)
{
    struct world *world = *state;
    sample_release(&world->sample);
    assert_int_equal(nftw(world->store, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
    free(world);
    return 0;
}

/* Some of the weights move, as in a step. */
static void train(struct world *world)
{
    float *weights = (float *)(uintptr_t)world->sample.buffers[0].data;
    for (uint64_t i = 0; i < world->sample.buffers[0].count; i += 7)
        weights[i] *= 1.0001F;
    world->sample.state.scalars.step++;
}

/* Commits the state; base: folder or NULL. */
static void commit(struct world *world, uint32_t threads, const char *base, char *dir,
                   struct ckpt_report *out)
{
    const struct ckpt_state *state = &world->sample.state;
    struct sample_options options = { .threads = threads };
    struct ckpt_hash digest;
    auto_buf struct buf manifest;
    buf_init(&manifest, LIMIT_MANIFEST_BYTES);
    if (base != NULL)
        assert_int_equal(ckpt_open(world->io, base, NULL, NULL, &options.write.base), ST_OK);
    assert_int_equal(ckpt_folder_path(world->store, SAMPLE_JOB, state->scalars.step,
                                      state->generation, dir, LIMIT_PATH),
                     ST_OK);
    assert_int_equal(ckpt_folder_create(world->io, dir), ST_OK);
    assert_int_equal(sample_shard_write(world->io, dir, state, 0, 1, &options, out), ST_OK);
    ckpt_close(options.write.base);
    assert_int_equal(ckpt_commit_check(world->io, dir, out, 1), ST_OK);
    assert_int_equal(
        ckpt_manifest_make(out, 1, SAMPLE_JOB, "2026-01-01T00:00:00Z", &manifest, &digest), ST_OK);
    assert_int_equal(ckpt_manifest_publish(world->io, dir, manifest.data, manifest.size), ST_OK);
}

static void assert_reads_back(const struct world *world, const char *dir)
{
    bool equal = false;
    assert_int_equal(sample_compare(world->io, dir, &world->sample, &equal), ST_OK);
    assert_true(equal);
}

static void difference_is_smaller_and_the_same_with_any_number_of_threads(void **state)
{
    struct world *world = *state;
    char base[LIMIT_PATH], dir[LIMIT_PATH];
    struct ckpt_report full, report;
    commit(world, 0, NULL, base, &full);
    assert_int_equal(full.parent.generation, 0);
    train(world);
    struct ckpt_hash first = { { 0 } };
    for (uint32_t threads = 0; threads < 5; threads++) {
        commit(world, threads, base, dir, &report);
        assert_int_equal(report.parent.step, 40);
        assert_int_equal(report.parent.generation, 2);
        assert_true(report.size < full.size / 2);
        if (threads == 0)
            first = report.hash;
        assert_memory_equal(first.byte, report.hash.byte, sizeof(first.byte));
        assert_reads_back(world, dir);
        assert_int_equal(ckpt_verify(world->io, dir, NULL, NULL, NULL), ST_OK);
        assert_int_equal(ckpt_remove(world->io, dir), ST_OK);
        ckpt_report_release(&report);
    }
    ckpt_report_release(&full);
}

static void base_of_other_buffers_or_a_later_step_is_left_alone(void **state)
{
    struct world *world = *state;
    char base[LIMIT_PATH], dir[LIMIT_PATH];
    struct ckpt_report full, report;
    commit(world, 0, NULL, base, &full);
    struct sample other;
    sample_init(&other, ELEMENTS / 2, 41, 2);
    struct sample mine = world->sample;
    for (int kind = 0; kind < 3; kind++) {
        world->sample = kind == 0 ? other : mine;
        if (kind == 1)
            (void)snprintf(world->sample.state.job, sizeof(world->sample.state.job), "j-another");
        world->sample.state.scalars.step = kind == 2 ? 39 : 41; /* 39: before its base */
        struct sample_options options = { .threads = 1 };
        assert_int_equal(ckpt_open(world->io, base, NULL, NULL, &options.write.base), ST_OK);
        (void)snprintf(dir, sizeof(dir), "%s/alone", world->store);
        assert_int_equal(world->io->mkdir(world->io->self, dir), ST_OK);
        struct ckpt_report alone;
        assert_int_equal(
            sample_shard_write(world->io, dir, &world->sample.state, 0, 1, &options, &report),
            ST_OK);
        ckpt_close(options.write.base);
        assert_int_equal(report.parent.generation, 0);
        char path[2 * LIMIT_PATH];
        (void)snprintf(path, sizeof(path), "%s/%s", dir, report.file);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(ckpt_shard_write(world->io, dir, &world->sample.state, 0, 1, NULL, &alone),
                         ST_OK);
        assert_memory_equal(alone.hash.byte, report.hash.byte, sizeof(alone.hash.byte));
        assert_int_equal(unlink(path), 0);
        assert_int_equal(rmdir(dir), 0);
        ckpt_report_release(&report);
        ckpt_report_release(&alone);
    }
    world->sample = mine;
    sample_release(&other);
    ckpt_report_release(&full);
}

/* The medium has lost a chunk of the base: that chunk is stored whole, and all of it reads back. */
static void chunk_of_the_base_that_cannot_be_read_is_stored_whole(void **state)
{
    struct world *world = *state;
    char base[LIMIT_PATH], dir[LIMIT_PATH], path[2 * LIMIT_PATH];
    struct ckpt_report full, whole, report;
    commit(world, 0, NULL, base, &full);
    train(world);
    commit(world, 2, base, dir, &whole);
    assert_int_equal(ckpt_remove(world->io, dir), ST_OK);
    (void)snprintf(path, sizeof(path), "%s/%s", base, full.file);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, DISK_HEADER_SIZE + 5000, SEEK_SET), 0);
    const int byte = fgetc(file);
    assert_int_equal(fseek(file, -1, SEEK_CUR), 0);
    assert_int_equal(fputc(byte ^ 1, file), byte ^ 1);
    assert_int_equal(fclose(file), 0);
    commit(world, 2, base, dir, &report);
    assert_int_equal(report.parent.generation, 2);
    assert_true(report.size > whole.size);
    assert_true(report.size < full.size);
    assert_reads_back(world, dir);
    ckpt_report_release(&full);
    ckpt_report_release(&whole);
    ckpt_report_release(&report);
}

static void chain_that_is_long_enough_ends_with_a_full_checkpoint(void **state)
{
    struct world *world = *state;
    char dirs[2][LIMIT_PATH];
    for (uint32_t i = 0; i <= DISK_CHAIN_MAX + 1; i++) {
        struct ckpt_report report;
        commit(world, 1, i == 0 ? NULL : dirs[(i + 1) % 2], dirs[i % 2], &report);
        const bool stands_alone = i == 0 || i == DISK_CHAIN_MAX + 1;
        assert_int_equal(report.parent.generation == 0, stands_alone);
        assert_reads_back(world, dirs[i % 2]);
        ckpt_report_release(&report);
        train(world);
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

static size_t resident_bytes(void)
{
    unsigned long whole = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu %lu", &whole, &resident), 2);
    assert_int_equal(fclose(file), 0);
    return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}

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
    struct world *world = *state;
    char base[LIMIT_PATH] = "", dir[LIMIT_PATH];
    struct ckpt_report report;
    for (uint32_t i = 0; i < DISK_CHAIN_MAX; i++) {
        commit(world, 0, i == 0 ? NULL : base, dir, &report);
        ckpt_report_release(&report);
        memcpy(base, dir, sizeof(base));
        train(world);
    }
    held.io = *io_system();
    held.io.open = held_open;
    held.io.close = held_close;
    world->io = &held.io;
    for (uint32_t threads = 0; threads < 3; threads++) {
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < world->sample.state.buffer_count; i++) {
            const struct ckpt_buffer *b = &world->sample.buffers[i];
            bytes += b->count * ckpt_dtype_size(b->dtype);
        }
        const struct ckpt_writer_use use = {
            .threads = threads, .share_bytes = bytes, .base_bytes = bytes, .object = true
        };
        (void)malloc_trim(0);
        const size_t before = resident_bytes();
        held.peak = 0;
        commit(world, threads, base, dir, &report);
        assert_true(report.parent.generation != 0);
        assert_in_range(held.peak - before, DISK_CHAIN_MAX * s3_read_bytes(),
                        ckpt_writer_bytes(&use));
        assert_int_equal(held.held, 0);
        assert_int_equal(ckpt_remove(world->io, dir), ST_OK);
        ckpt_report_release(&report);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            difference_is_smaller_and_the_same_with_any_number_of_threads, setup, teardown),
        cmocka_unit_test_setup_teardown(base_of_other_buffers_or_a_later_step_is_left_alone, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(chunk_of_the_base_that_cannot_be_read_is_stored_whole,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(chain_that_is_long_enough_ends_with_a_full_checkpoint,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(difference_takes_no_more_memory_than_the_writer_says, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
