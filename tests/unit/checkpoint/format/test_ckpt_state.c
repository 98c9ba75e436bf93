/* A state that was saved is the state that is read, whoever wrote and whoever reads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "tests/test.h"
#include "tests/unit/checkpoint/store_fixture.h"

#define LARGE_STATE 700000 /* elements: three chunks a float buffer, eleven pieces */

static void state_written_by_any_number_of_ranks_is_read_back(void **unused)
{
    (void)unused;
    static const uint64_t sizes[] = { 1, 2, 100, 65536, 262144, LARGE_STATE };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint64_t elements = sizes[i] < 4 ? 4 * sizes[i] : sizes[i];
        struct store_fixture *f = store_fixture_new(STORE_IN_MEMORY, elements);
        struct ckpt_hash digest, stored;
        assert_int_equal(ckpt_state_digest(&f->sample.state, &digest), ST_OK);
        for (uint32_t ranks = 1; ranks <= 5; ranks++) {
            store_fixture_save(f, ranks, NULL);
            store_fixture_assert_saved(f, f->dir);
            assert_int_equal(ckpt_digest(f->io, f->dir, &stored), ST_OK);
            assert_memory_equal(digest.byte, stored.byte, sizeof(digest.byte));
            struct ckpt_manifest manifest;
            assert_int_equal(ckpt_manifest_read(f->io, f->dir, &manifest, NULL), ST_OK);
            assert_memory_equal(digest.byte, manifest.digest.byte, sizeof(digest.byte));
            assert_int_equal(manifest.file_count, ranks);
            ckpt_manifest_release(&manifest);
            assert_int_equal(memory_io_open_files(f->memory), 0);
            assert_int_equal(ckpt_remove(f->io, f->dir), ST_OK);
        }
        store_fixture_free(f);
    }
}

static void slices_are_read_from_any_place(void **unused)
{
    (void)unused;
    struct store_fixture *f = store_fixture_new(STORE_IN_MEMORY, LARGE_STATE);
    store_fixture_save(f, 3, NULL);
    struct ckpt_reader *reader = NULL;
    assert_int_equal(ckpt_open(f->io, f->dir, NULL, NULL, &reader), ST_OK);
    const float *all = f->sample.buffers[1].data;
    auto_free float *part = calloc(LARGE_STATE, sizeof(*part));
    static const uint64_t slices[][2] = {
        { 0, 1 },           { 1, 262143 },      { 262143, 2 },          { 262144, 262144 },
        { 5, 600000 },      { 524288, 175712 }, { LARGE_STATE - 1, 1 }, { 17, 0 },
        { LARGE_STATE, 0 }, { 0, LARGE_STATE },
    };
    for (size_t i = 0; i < sizeof(slices) / sizeof(slices[0]); i++) {
        uint64_t first = slices[i][0], count = slices[i][1];
        assert_int_equal(ckpt_read_buffer(reader, "momentum", first, count, part, NULL), ST_OK);
        if (count > 0)
            assert_memory_equal(part, all + first, (size_t)count * sizeof(*part));
    }
    assert_int_equal(ckpt_read_buffer(reader, "momentum", LARGE_STATE, 1, part, NULL), ST_INVALID);
    assert_int_equal(ckpt_read_buffer(reader, "momentum", UINT64_MAX, 2, part, NULL), ST_INVALID);
    assert_int_equal(ckpt_read_buffer(reader, "absent", 0, 1, part, NULL), ST_NOT_FOUND);
    char *blob = NULL;
    size_t blob_size = 0;
    assert_int_equal(ckpt_read_blob(reader, "absent", &blob, &blob_size), ST_NOT_FOUND);
    ckpt_close(reader);
    store_fixture_free(f);
}

static void rank_writes_what_a_copy_of_its_share_holds(void **unused)
{
    (void)unused;
    struct sample sample;
    sample_init(&sample, LARGE_STATE, 12, 1);
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct memory_io *memory = memory_io_new();
        const struct io *io = memory_io_table(memory);
        assert_int_equal(io_mkdir_all(io, "/whole"), ST_OK);
        assert_int_equal(io_mkdir_all(io, "/share"), ST_OK);
        struct ckpt_report whole, share;
        assert_int_equal(ckpt_shard_write(io, "/whole", &sample.state, rank, 4, NULL, &whole),
                         ST_OK);
        struct ckpt_state state = sample.state;
        struct ckpt_buffer buffers[SAMPLE_BUFFERS];
        memcpy(buffers, sample.buffers, sizeof(buffers));
        state.buffers = buffers;
        struct ckpt_share held;
        assert_int_equal(ckpt_share_of(&sample.state, rank, 4, &held), ST_OK);
        for (uint32_t i = 0; i < SAMPLE_BUFFERS; i++) {
            buffers[i].data = NULL;
            buffers[i].packed = true;
        }
        for (uint32_t r = 0; r < held.count; r++) { /* one of a buffer */
            const struct ckpt_extent *extent = &held.extent[r];
            const uint64_t size = ckpt_dtype_size(buffers[extent->buffer].dtype);
            char *copy = malloc((size_t)(extent->count * size));
            assert_non_null(copy);
            memcpy(copy, (const char *)sample.buffers[extent->buffer].data + extent->first * size,
                   (size_t)(extent->count * size));
            assert_null(buffers[extent->buffer].data);
            buffers[extent->buffer].data = copy;
        }
        assert_int_equal(ckpt_shard_write(io, "/share", &state, rank, 4, NULL, &share), ST_OK);
        assert_memory_equal(whole.hash.byte, share.hash.byte, sizeof(whole.hash.byte));
        for (uint32_t i = 0; i < SAMPLE_BUFFERS; i++)
            free((void *)(uintptr_t)buffers[i].data);
        ckpt_report_release(&whole);
        ckpt_report_release(&share);
        memory_io_free(memory);
    }
    sample_release(&sample);
}

static void shares_cover_every_chunk_once_and_are_balanced(void **unused)
{
    (void)unused;
    for (uint64_t chunks = 0; chunks < 40; chunks++) {
        for (uint32_t size = 1; size <= 17; size++) {
            uint64_t next = 0;
            for (uint32_t rank = 0; rank < size; rank++) {
                uint64_t first = 0, count = 0;
                ckpt_share_chunks(chunks, rank, size, &first, &count);
                assert_int_equal(first, next);
                assert_true(count == chunks / size || count == chunks / size + 1);
                next += count;
            }
            assert_int_equal(next, chunks);
        }
    }
}

static void digest_is_the_documented_list_of_hashes(void **unused)
{
    (void)unused;
    /* Two pieces, one of a single element, and the record of scalars, put together by hand. */
    uint64_t count = PIECE_ELEMENTS + 1;
    auto_free float *data = malloc((size_t)count * sizeof(float));
    assert_non_null(data);
    for (uint64_t i = 0; i < count; i++)
        data[i] = (float)i;
    struct ckpt_buffer buffer = {
        .name = "parameters", .dtype = CKPT_F32, .count = count, .data = data
    };
    struct ckpt_state state = {
        .buffers = &buffer,
        .buffer_count = 1,
        .scalars = { .seed = 1, .step = 2, .loss_scale = 1 },
    };
    struct ckpt_hash digest;
    assert_int_equal(ckpt_state_digest(&state, &digest), ST_OK);
    char text[33];
    ckpt_hash_text(&digest, text);
    /* Computed by a program of its own from the table in docs/format.md. */
    assert_string_equal(text, "96aea8966324b5a3b5c75652f200b45b");
}

static void every_difference_changes_the_digest(void **unused)
{
    (void)unused;
    struct sample sample;
    sample_init(&sample, 1000, 7, 1);
    struct ckpt_hash digest, other;
    assert_int_equal(ckpt_state_digest(&sample.state, &digest), ST_OK);
    for (uint32_t i = 0; i < SAMPLE_BUFFERS; i++) {
        uint8_t *bytes = (uint8_t *)(uintptr_t)sample.buffers[i].data;
        bytes[17] ^= 4;
        assert_int_equal(ckpt_state_digest(&sample.state, &other), ST_OK);
        assert_memory_not_equal(digest.byte, other.byte, sizeof(digest.byte));
        bytes[17] ^= 4;
    }
    struct ckpt_scalars *scalars = &sample.state.scalars;
    uint64_t *fields[] = { &scalars->seed,
                           &scalars->step,
                           &scalars->epoch,
                           &scalars->epoch_step,
                           &scalars->loss_scale_good_steps,
                           &sample.skip[1] };
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        *fields[i] ^= 1;
        assert_int_equal(ckpt_state_digest(&sample.state, &other), ST_OK);
        assert_memory_not_equal(digest.byte, other.byte, sizeof(digest.byte));
        *fields[i] ^= 1;
    }
    sample.state.generation++; /* not in the digest's domain */
    sample.state.blob_count = 0;
    assert_int_equal(ckpt_state_digest(&sample.state, &other), ST_OK);
    assert_memory_equal(digest.byte, other.byte, sizeof(digest.byte));
    sample_release(&sample);
}

static void state_that_no_reader_would_accept_is_refused(void **unused)
{
    (void)unused;
    struct memory_io *memory = memory_io_new();
    const struct io *io = memory_io_table(memory);
    assert_int_equal(io_mkdir_all(io, "/d"), ST_OK);
    for (int kind = 0; kind < 10; kind++) {
        struct sample sample;
        sample_init(&sample, 64, 1, 1);
        struct sample_options options = { .level = kind == 9 ? (enum ckpt_level)7 : CKPT_DEFAULT };
        sample.tensors[1].offset += kind == 0;
        sample.tensors[1].dims[0] += kind == 1 ? UINT64_MAX / 2 : 0;
        sample.tensors[2].buffer += kind == 2 ? 90 : 0;
        sample.tensors[2].ndim = kind == 3 ? 5 : 1;
        if (kind == 4)
            sample.buffers[0].name[0] = '\0';
        if (kind == 5)
            memset(sample.blobs[0].name, 'x', LIMIT_NAME);
        if (kind == 6)
            (void)snprintf(sample.state.job, sizeof(sample.state.job), "../job");
        if (kind == 7)
            sample.state.buffer_count = CKPT_BUFFERS_MAX + 1;
        const void *data = sample.buffers[3].data;
        if (kind == 8)
            sample.buffers[3].data = NULL;
        struct ckpt_report report;
        assert_int_equal(sample_shard_write(io, "/d", &sample.state, 0, 1, &options, &report),
                         ST_INVALID);
        assert_false(memory_io_has(memory, "/d/shard-00000-of-00001.cairn"));
        sample.buffers[3].data = data;
        sample_release(&sample);
    }
    memory_io_free(memory);
}

static bool zstd_accepts(const char *path)
{
    char command[2 * LIMIT_PATH];
    (void)snprintf(command, sizeof(command), "zstd -q -t '%s' 2>/dev/null", path);
    return system(command) == 0;
}

static void stock_zstd_walks_the_whole_file(void **unused)
{
    (void)unused;
    if (system("command -v zstd >/dev/null") != 0) {
        print_message("zstd isn't installed\n");
        skip();
    }
    struct store_fixture *f = store_fixture_new(STORE_IN_FOLDER, LARGE_STATE);
    store_fixture_save(f, 2, NULL);
    store_fixture_assert_saved(f, f->dir);
    for (uint32_t i = 0; i < 2; i++) {
        struct io_stat info;
        char path[LIMIT_PATH];
        store_fixture_shard(f->dir, i, 2, path);
        assert_true(zstd_accepts(path));
        assert_int_equal(f->io->stat(f->io->self, path, &info), ST_OK);
        assert_int_equal(info.size % 4096, 0);
        assert_int_equal(truncate(path, (off_t)info.size - 1), 0);
        assert_false(zstd_accepts(path)); /* it does look at the end */
    }
    store_fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(state_written_by_any_number_of_ranks_is_read_back),
        cmocka_unit_test(slices_are_read_from_any_place),
        cmocka_unit_test(rank_writes_what_a_copy_of_its_share_holds),
        cmocka_unit_test(shares_cover_every_chunk_once_and_are_balanced),
        cmocka_unit_test(digest_is_the_documented_list_of_hashes),
        cmocka_unit_test(every_difference_changes_the_digest),
        cmocka_unit_test(state_that_no_reader_would_accept_is_refused),
        cmocka_unit_test(stock_zstd_walks_the_whole_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
