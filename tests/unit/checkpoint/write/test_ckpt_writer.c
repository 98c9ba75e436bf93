/* The writer: the same bytes whoever encodes, nothing left behind by errors, memory as it says. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/format/hash.h"
#include "common/cleanup.h"
#include "tests/test.h"
#include "tests/unit/checkpoint/store_fixture.h"

#define DIR         "/d"
#define FILE_OF_ONE "/d/shard-00000-of-00001.cairn"
#define LARGE_STATE 700000 /* elements: 18 chunks with those of blobs */

static const uint32_t thread_counts[] = { 0, 1, 2, 7 };
#define THREAD_COUNTS (sizeof(thread_counts) / sizeof(thread_counts[0]))

static struct memory_io *new_folder(void)
{
    struct memory_io *memory = memory_io_new();
    const struct io *io = memory_io_table(memory);
    assert_int_equal(io->mkdir(io->self, DIR), ST_OK);
    return memory;
}

static enum status write_with(struct ckpt_writer *writer, const struct io *io, const char *dir,
                              const struct ckpt_state *state, struct ckpt_report *out)
{
    return ckpt_writer_write(writer, io, dir, state, 0, 1, NULL, out);
}

static struct ckpt_writer *new_writer(uint32_t threads)
{
    struct ckpt_writer *writer = NULL;
    assert_int_equal(ckpt_writer_new(CKPT_DEFAULT, threads, &writer), ST_OK);
    return writer;
}

static void assert_same_report(const struct ckpt_report *a, const struct ckpt_report *b)
{
    assert_int_equal(a->size, b->size);
    assert_int_equal(a->raw_bytes, b->raw_bytes);
    assert_memory_equal(a->hash.byte, b->hash.byte, sizeof(a->hash.byte));
    assert_int_equal(a->extent_count, b->extent_count);
    for (uint32_t i = 0; i < a->extent_count; i++) {
        assert_int_equal(a->extents[i].first, b->extents[i].first);
        assert_int_equal(a->extents[i].count, b->extents[i].count);
        if (a->extents[i].count == 0)
            continue;
        assert_memory_equal(a->extents[i].hashes, b->extents[i].hashes,
                            a->extents[i].count * sizeof(*a->extents[i].hashes));
    }
}

static void bytes_of_a_file_dont_depend_on_the_number_of_threads(void **unused)
{
    (void)unused;
    struct sample sample;
    sample_init(&sample, LARGE_STATE, 40, 2);
    struct memory_io *first = new_folder();
    struct ckpt_report report;
    assert_int_equal(
        ckpt_shard_write(memory_io_table(first), DIR, &sample.state, 0, 1, NULL, &report), ST_OK);
    size_t size = 0;
    const uint8_t *bytes = memory_io_bytes(first, FILE_OF_ONE, &size);
    for (size_t i = 0; i < THREAD_COUNTS; i++) {
        struct ckpt_writer *writer = new_writer(thread_counts[i]);
        for (int again = 0; again < 2; again++) { /* a writer is used for many files */
            struct memory_io *memory = new_folder();
            struct ckpt_report other;
            assert_int_equal(
                write_with(writer, memory_io_table(memory), DIR, &sample.state, &other), ST_OK);
            size_t other_size = 0;
            const uint8_t *mine = memory_io_bytes(memory, FILE_OF_ONE, &other_size);
            assert_int_equal(other_size, size);
            assert_memory_equal(mine, bytes, size);
            assert_same_report(&report, &other);
            ckpt_report_release(&other);
            memory_io_free(memory);
        }
        ckpt_writer_free(writer);
    }
    ckpt_report_release(&report);
    memory_io_free(first);
    sample_release(&sample);
}

static void writer_serves_states_of_any_size_in_turn(void **unused)
{
    (void)unused;
    static const uint64_t sizes[] = { 100, LARGE_STATE, 4, 262144, LARGE_STATE };
    struct ckpt_writer *writer = new_writer(2);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct sample sample;
        sample_init(&sample, sizes[i], 7 + i, 1);
        struct memory_io *alone = new_folder(), *memory = new_folder();
        struct ckpt_report a, b;
        assert_int_equal(
            ckpt_shard_write(memory_io_table(alone), DIR, &sample.state, 0, 1, NULL, &a), ST_OK);
        assert_int_equal(write_with(writer, memory_io_table(memory), DIR, &sample.state, &b),
                         ST_OK);
        assert_same_report(&a, &b);
        ckpt_report_release(&a);
        ckpt_report_release(&b);
        memory_io_free(alone);
        memory_io_free(memory);
        sample_release(&sample);
    }
    ckpt_writer_free(writer);
}

/* The hashes of all pieces of all buffers, as a snapshot takes them; out[i]: free(). */
static void take_hashes(struct sample *sample, struct ckpt_hash *out[SAMPLE_BUFFERS])
{
    for (uint32_t i = 0; i < SAMPLE_BUFFERS; i++) {
        struct ckpt_buffer *buffer = &sample->buffers[i];
        out[i] = calloc((size_t)ckpt_pieces(buffer->count) + 1, sizeof(*out[i]));
        assert_non_null(out[i]);
        ckpt_piece_hashes(buffer->dtype, buffer->data,
                          (size_t)(buffer->count * ckpt_dtype_size(buffer->dtype)), out[i]);
        buffer->pieces = out[i];
    }
}

static void snapshot_that_changed_is_never_stored(void **unused)
{
    (void)unused;
    struct sample sample;
    struct ckpt_hash *hashes[SAMPLE_BUFFERS];
    sample_init(&sample, LARGE_STATE, 40, 2);
    take_hashes(&sample, hashes);
    for (size_t i = 0; i < THREAD_COUNTS; i++) {
        struct ckpt_writer *writer = new_writer(thread_counts[i]);
        for (uint32_t b = 0; b < SAMPLE_BUFFERS; b++) {
            struct memory_io *memory = new_folder();
            const struct io *io = memory_io_table(memory);
            uint8_t *last = (uint8_t *)(uintptr_t)sample.buffers[b].data +
                            sample.buffers[b].count * ckpt_dtype_size(sample.buffers[b].dtype) - 1;
            struct ckpt_report report;
            *last ^= 1;
            assert_int_equal(write_with(writer, io, DIR, &sample.state, &report), ST_CORRUPT);
            assert_false(memory_io_has(memory, FILE_OF_ONE));
            assert_int_equal(memory_io_open_files(memory), 0);
            *last ^= 1;
            assert_int_equal(write_with(writer, io, DIR, &sample.state, &report), ST_OK);
            assert_memory_equal(report.extents[b].hashes, hashes[b],
                                (size_t)report.extents[b].count * sizeof(**hashes));
            ckpt_report_release(&report);
            memory_io_free(memory);
        }
        ckpt_writer_free(writer);
    }
    for (uint32_t i = 0; i < SAMPLE_BUFFERS; i++)
        free(hashes[i]);
    sample_release(&sample);
}

/* A share whose data, and hashes, start elsewhere than the buffer. */
static void hashes_of_a_share_start_where_its_data_does(void **unused)
{
    (void)unused;
    struct sample sample;
    struct ckpt_hash *hashes[SAMPLE_BUFFERS];
    sample_init(&sample, LARGE_STATE, 40, 2);
    take_hashes(&sample, hashes);
    for (uint32_t rank = 0; rank < 3; rank++) {
        struct ckpt_buffer buffers[SAMPLE_BUFFERS];
        struct ckpt_state state = sample.state;
        struct ckpt_share share;
        assert_int_equal(ckpt_share_of(&state, rank, 3, &share), ST_OK);
        memcpy(buffers, sample.buffers, sizeof(buffers));
        for (uint32_t r = 0; r < share.count; r++) { /* one of a buffer */
            const struct ckpt_extent *extent = &share.extent[r];
            struct ckpt_buffer *buffer = &buffers[extent->buffer];
            buffer->data =
                (const uint8_t *)buffer->data + extent->first * ckpt_dtype_size(buffer->dtype);
            buffer->packed = true;
            buffer->pieces += extent->first / PIECE_ELEMENTS;
        }
        state.buffers = buffers;
        struct memory_io *memory = new_folder();
        const struct sample_options options = { .threads = 2 };
        struct ckpt_report report;
        assert_int_equal(
            sample_shard_write(memory_io_table(memory), DIR, &state, rank, 3, &options, &report),
            ST_OK);
        ckpt_report_release(&report);
        memory_io_free(memory);
    }
    for (uint32_t i = 0; i < SAMPLE_BUFFERS; i++)
        free(hashes[i]);
    sample_release(&sample);
}

/* Every call fails once, with encoders at work: no file, no descriptor, no thread that hangs; and
 * the writer does its next file. */
static void failing_call_leaves_nothing_whoever_encodes(void **unused)
{
    (void)unused;
    static const enum memory_io_fault faults[] = { MEMORY_IO_EIO, MEMORY_IO_FULL, MEMORY_IO_SHORT,
                                                   MEMORY_IO_AGAIN };
    struct sample sample;
    sample_init(&sample, LARGE_STATE, 40, 2);
    for (size_t i = 0; i < THREAD_COUNTS; i++) {
        struct ckpt_writer *writer = new_writer(thread_counts[i]);
        size_t failed = 0;
        for (size_t f = 0; f < sizeof(faults) / sizeof(faults[0]); f++) {
            bool reached = true;
            for (uint64_t n = 1; reached; n++) {
                struct memory_io *memory = new_folder();
                const struct io *io = memory_io_table(memory);
                struct ckpt_report report;
                memory_io_arm(memory, faults[f], n);
                enum status st = write_with(writer, io, DIR, &sample.state, &report);
                reached = memory_io_calls(memory) >= n;
                assert_int_equal(memory_io_open_files(memory), 0);
                assert_int_equal(memory_io_has(memory, FILE_OF_ONE), st == ST_OK);
                if (st == ST_OK) {
                    ckpt_report_release(&report);
                } else {
                    assert_int_equal(st, faults[f] == MEMORY_IO_FULL ? ST_FULL : ST_IO);
                    failed++;
                }
                memory_io_free(memory);
            }
        }
        assert_in_range(failed, 8, 64);
        ckpt_writer_free(writer);
    }
    sample_release(&sample);
}

static void names_that_stand_twice_are_refused_before_a_file_is_made(void **unused)
{
    (void)unused;
    struct sample sample;
    struct ckpt_report report;
    struct memory_io *memory = new_folder();
    sample_init(&sample, 300, 40, 2);
    char *names[] = { sample.buffers[1].name, sample.tensors[1].name, sample.blobs[1].name };
    const char *others[] = { sample.buffers[0].name, sample.tensors[0].name, sample.blobs[0].name };
    for (size_t i = 0; i < 3; i++) {
        char before[LIMIT_NAME];
        memcpy(before, names[i], sizeof(before));
        memcpy(names[i], others[i], sizeof(before));
        assert_int_equal(
            ckpt_shard_write(memory_io_table(memory), DIR, &sample.state, 0, 1, NULL, &report),
            ST_INVALID);
        assert_false(memory_io_has(memory, FILE_OF_ONE));
        memcpy(names[i], before, sizeof(before));
    }
    memory_io_free(memory);
    sample_release(&sample);
}

/* One byte of what an encoder made is wrong: it is seen while the state is still at hand. */
static void what_a_coder_got_wrong_is_stored_plain(void **unused)
{
    (void)unused;
    char dir[] = "/tmp/ckpt-encode-XXXXXX", hit[64];
    struct sample sample;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(setenv("CAIRN_FAULT_DIR", dir, 1), 0);
    assert_int_equal(setenv("CAIRN_FAULT", "save.encode:eio", 1), 0);
    (void)snprintf(hit, sizeof(hit), "%s/save.encode.hit", dir);
    sample_init(&sample, LARGE_STATE, 40, 2);
    for (uint32_t threads = 0; threads < 3; threads++) {
        struct memory_io *memory = new_folder();
        const struct io *io = memory_io_table(memory);
        struct ckpt_writer *writer = new_writer(threads);
        struct ckpt_report report;
        char path[LIMIT_PATH];
        bool equal = false;
        assert_int_equal(write_with(writer, io, DIR, &sample.state, &report), ST_OK);
        assert_int_equal(report.mistakes, 1);
        ckpt_report_release(&report);
        assert_int_equal(unlink(hit), 0);
        assert_int_equal(sample_save(io, &sample, 1, NULL, path), ST_OK);
        assert_int_equal(unlink(hit), 0);
        assert_int_equal(ckpt_verify(io, path, NULL, NULL, NULL), ST_OK);
        assert_int_equal(sample_compare(io, path, &sample, &equal), ST_OK);
        assert_true(equal);
        ckpt_writer_free(writer);
        memory_io_free(memory);
    }
    assert_int_equal(unsetenv("CAIRN_FAULT"), 0);
    assert_int_equal(rmdir(dir), 0);
    sample_release(&sample);
}

static void states_without_a_chunk_are_written_too(void **unused)
{
    (void)unused;
    struct sample sample;
    sample_init(&sample, 64, 40, 2);
    struct ckpt_state state = sample.state;
    for (size_t i = 0; i < THREAD_COUNTS; i++) {
        struct memory_io *memory = new_folder();
        const struct sample_options options = { .threads = thread_counts[i] };
        struct ckpt_report report;
        assert_int_equal(
            sample_shard_write(memory_io_table(memory), DIR, &state, 1000, 1001, &options, &report),
            ST_OK);
        assert_int_equal(report.raw_bytes, 0);
        ckpt_report_release(&report);
        memory_io_free(memory);
    }
    sample_release(&sample);
}

static void count_progress(void *arg, uint64_t done)
{
    uint64_t *last = arg;
    assert_int_equal(done, *last + 1);
    *last = done;
}

static void progress_is_told_for_every_chunk_in_order(void **unused)
{
    (void)unused;
    struct sample sample;
    sample_init(&sample, LARGE_STATE, 40, 2);
    for (size_t i = 0; i < THREAD_COUNTS; i++) {
        struct memory_io *memory = new_folder();
        uint64_t done = 0;
        const struct sample_options options = {
            .threads = thread_counts[i],
            .write = { .progress = count_progress, .progress_arg = &done },
        };
        struct ckpt_report report;
        assert_int_equal(sample_shard_write(memory_io_table(memory), DIR, &sample.state, 0, 1,
                                            &options, &report),
                         ST_OK);
        assert_in_range(done, 18, 24);
        ckpt_report_release(&report);
        memory_io_free(memory);
    }
    sample_release(&sample);
}

/* ---- the machine's files ---- */

/* The machine's table; every write is looked at. */
struct watched {
    struct io io;
    size_t writes;
    bool direct;
};

static enum status watched_open(void *self, const char *path, int flags, int *out_fd)
{
    struct watched *watched = self;
    watched->direct = watched->direct || (flags & IO_DIRECT) != 0;
    return io_system()->open(io_system()->self, path, flags, out_fd);
}

static enum status watched_pwrite(void *self, int fd, const void *data, size_t size, uint64_t at,
                                  size_t *out_size)
{
    struct watched *watched = self;
    assert_int_equal((uintptr_t)data % IO_DIRECT_ALIGN, 0);
    assert_int_equal(size % IO_DIRECT_ALIGN, 0);
    assert_int_equal(at % IO_DIRECT_ALIGN, 0);
    watched->writes++;
    return io_system()->pwrite(io_system()->self, fd, data, size, at, out_size);
}

static void writes_are_large_and_aligned_on_a_real_folder(void **unused)
{
    (void)unused;
    char dir[] = "/tmp/cairn-writer-XXXXXX", path[LIMIT_PATH];
    assert_non_null(mkdtemp(dir));
    struct sample sample;
    sample_init(&sample, 3 * LARGE_STATE, 40, 2);
    struct memory_io *memory = new_folder();
    struct ckpt_report want, got;
    assert_int_equal(
        ckpt_shard_write(memory_io_table(memory), DIR, &sample.state, 0, 1, NULL, &want), ST_OK);
    struct watched watched = { .io = *io_system() };
    watched.io.self = &watched;
    watched.io.open = watched_open;
    watched.io.pwrite = watched_pwrite;
    struct ckpt_writer *writer = new_writer(2);
    assert_int_equal(write_with(writer, &watched.io, dir, &sample.state, &got), ST_OK);
    ckpt_writer_free(writer);
    assert_same_report(&want, &got);
    assert_true(watched.direct);
    assert_int_equal(watched.writes, (got.size + (4 << 20) - 1) / (4 << 20));

    size_t size = 0, there = 0;
    const uint8_t *bytes = memory_io_bytes(memory, FILE_OF_ONE, &size);
    auto_free char *stored = NULL;
    (void)snprintf(path, sizeof(path), "%s/%s", dir, got.file);
    assert_int_equal(io_read_file(io_system(), path, size, &stored, &there), ST_OK);
    assert_int_equal(there, size);
    assert_memory_equal(stored, bytes, size);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
    ckpt_report_release(&want);
    ckpt_report_release(&got);
    memory_io_free(memory);
    sample_release(&sample);
}

/* A file system, or a device, that wants no direct writes, is written to all the same. */
static void direct_writes_that_are_refused_go_the_other_way(void **unused)
{
    (void)unused;
    char path[] = "/tmp/cairn-direct-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    assert_int_equal(unlink(path), 0);
    const struct io *io = io_system();
    assert_int_equal(io->open(io->self, path, IO_CREATE_NEW | IO_DIRECT, &fd), ST_OK);
    static const char odd[] = "neither size nor place nor memory are aligned";
    assert_int_equal(io_write_all(io, fd, odd + 1, sizeof(odd) - 1, 0), ST_OK);
    assert_int_equal(io->fsync(io->self, fd), ST_OK);
    assert_int_equal(io->close(io->self, fd), ST_OK);
    auto_free char *stored = NULL;
    size_t size = 0;
    assert_int_equal(io_read_file(io, path, 100, &stored, &size), ST_OK);
    assert_int_equal(size, sizeof(odd) - 1);
    assert_memory_equal(stored, odd + 1, size);
    assert_int_equal(unlink(path), 0);
}

/* ---- memory ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RESIDENT_IS_OURS 0 /* not the sanitizer's */
#else
#define RESIDENT_IS_OURS 1
#endif

#define WRITES_MAX 50

static void assert_fits(enum ckpt_level level, uint32_t threads, const struct sample *sample)
{
    char dir[] = "/tmp/cairn-writer-XXXXXX", path[LIMIT_PATH];
    const size_t before = resident_bytes();
    size_t kept = 0, heap = 1;
    struct ckpt_writer *writer = NULL;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(ckpt_writer_new(level, threads, &writer), ST_OK);
    /* Files come and go, and nothing is added, once every thread has had a chunk of its own. */
    for (int again = 0; again < 3 || heap != kept; again++) {
        struct ckpt_report report;
        assert_in_range(again, 0, WRITES_MAX);
        kept = heap;
        assert_int_equal(
            ckpt_writer_write(writer, io_system(), dir, &sample->state, 0, 1, NULL, &report),
            ST_OK);
        (void)snprintf(path, sizeof(path), "%s/%s", dir, report.file);
        assert_int_equal(unlink(path), 0);
        ckpt_report_release(&report);
        heap = mallinfo2().uordblks;
    }
    const size_t after = resident_bytes();
    const struct ckpt_writer_use use = { .threads = threads,
                                         .share_bytes = 3 * LARGE_STATE * sizeof(float) };
    assert_in_range(after > before ? after - before : 0, 0, ckpt_writer_bytes(&use));
    ckpt_writer_free(writer);
    assert_int_equal(rmdir(dir), 0);
}

static void writer_takes_no_more_memory_than_it_says(void **unused)
{
    (void)unused;
    if (!RESIDENT_IS_OURS)
        skip();
    struct sample sample;
    sample_init(&sample, 3 * LARGE_STATE, 40, 2);
    for (size_t i = 0; i < THREAD_COUNTS; i++) {
        assert_fits(CKPT_DEFAULT, thread_counts[i], &sample);
        assert_fits(CKPT_FAST, thread_counts[i], &sample);
        assert_fits(CKPT_MAX, thread_counts[i], &sample);
    }
    sample_release(&sample);
}

static void writer_of_another_level_or_too_many_threads_is_refused(void **unused)
{
    (void)unused;
    struct ckpt_writer *writer = NULL;
    assert_int_equal(ckpt_writer_new(CKPT_DEFAULT, CKPT_THREADS_MAX + 1, &writer), ST_INVALID);
    assert_int_equal(ckpt_writer_new((enum ckpt_level)9, 0, &writer), ST_INVALID);
    assert_null(writer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_of_a_file_dont_depend_on_the_number_of_threads),
        cmocka_unit_test(writer_serves_states_of_any_size_in_turn),
        cmocka_unit_test(snapshot_that_changed_is_never_stored),
        cmocka_unit_test(hashes_of_a_share_start_where_its_data_does),
        cmocka_unit_test(failing_call_leaves_nothing_whoever_encodes),
        cmocka_unit_test(names_that_stand_twice_are_refused_before_a_file_is_made),
        cmocka_unit_test(what_a_coder_got_wrong_is_stored_plain),
        cmocka_unit_test(states_without_a_chunk_are_written_too),
        cmocka_unit_test(progress_is_told_for_every_chunk_in_order),
        cmocka_unit_test(writes_are_large_and_aligned_on_a_real_folder),
        cmocka_unit_test(direct_writes_that_are_refused_go_the_other_way),
        cmocka_unit_test(writer_takes_no_more_memory_than_it_says),
        cmocka_unit_test(writer_of_another_level_or_too_many_threads_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
