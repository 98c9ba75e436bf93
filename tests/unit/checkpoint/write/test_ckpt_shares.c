/*
 * Shares of many extents: what is one and what isn't; files whose chunks are dealt to ranks by
 * turns are the same state; a reader that wants a part reads that part.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "checkpoint/format/hash.h"
#include "common/cleanup.h"
#include "tests/test.h"
#include "tests/unit/checkpoint/store_fixture.h"

#define CHUNK    (UINT64_C(1) << 20) /* of bytes; of floats a quarter */
#define FLOATS   (CHUNK / 4)
#define ELEMENTS (5 * FLOATS + 777) /* six chunks of a float buffer */

static const uint32_t rank_counts[] = { 1, 2, 3, 5 };
#define RANK_COUNTS (sizeof(rank_counts) / sizeof(rank_counts[0]))

/* ---- what a share is ---- */

/* Only described: nobody looks at data. */
static const struct ckpt_buffer large[] = {
    { .name = "bytes", .dtype = CKPT_U8, .count = 40000 * CHUNK },
    { .name = "floats", .dtype = CKPT_F32, .count = ELEMENTS },
};
static const struct ckpt_state described = { .job = "j-0123456789",
                                             .buffers = large,
                                             .buffer_count = 2 };

static void runs_are_kept_in_order_and_neighbours_merged(void **unused)
{
    (void)unused;
    struct ckpt_share share = { .count = 0 };
    const struct ckpt_state *s = &described;
    assert_int_equal(ckpt_share_add(s, 1, 5 * FLOATS, 777, &share), ST_OK);
    assert_int_equal(ckpt_share_add(s, 1, 0, FLOATS, &share), ST_OK);
    assert_int_equal(ckpt_share_add(s, 0, 7 * CHUNK, 2 * CHUNK, &share), ST_OK);
    assert_int_equal(ckpt_share_add(s, 1, 3 * FLOATS, FLOATS, &share), ST_OK);
    assert_int_equal(share.count, 4);
    assert_int_equal(ckpt_share_add(s, 1, FLOATS, FLOATS, &share), ST_OK);     /* behind one */
    assert_int_equal(ckpt_share_add(s, 1, 4 * FLOATS, FLOATS, &share), ST_OK); /* between two */
    assert_int_equal(ckpt_share_add(s, 0, 6 * CHUNK, CHUNK, &share), ST_OK);   /* before one */
    assert_int_equal(ckpt_share_add(s, 0, 0, 0, &share), ST_OK);               /* nothing */
    const struct ckpt_extent want[] = { { 0, 6 * CHUNK, 3 * CHUNK },
                                        { 1, 0, 2 * FLOATS },
                                        { 1, 3 * FLOATS, 2 * FLOATS + 777 } };
    assert_int_equal(share.count, 3);
    for (uint32_t i = 0; i < share.count; i++) {
        assert_int_equal(share.extent[i].buffer, want[i].buffer);
        assert_int_equal(share.extent[i].first, want[i].first);
        assert_int_equal(share.extent[i].count, want[i].count);
    }
    assert_int_equal(ckpt_share_check(s, &share), ST_OK);
    assert_int_equal(ckpt_share_bytes(s, &share), 3 * CHUNK + 4 * (4 * FLOATS + 777));
}

static void what_cannot_be_added_changes_nothing(void **unused)
{
    (void)unused;
    static const struct ckpt_extent bad[] = {
        { 1, 1, FLOATS },                                /* begins within a chunk */
        { 1, FLOATS, FLOATS / 2 },                       /* ends in one */
        { 1, 5 * FLOATS, 778 },                          /* the buffer is shorter */
        { 1, 6 * FLOATS, FLOATS },                       /* behind it */
        { 1, UINT64_MAX / FLOATS * FLOATS, 2 * FLOATS }, /* around the end of all numbers */
        { 2, 0, FLOATS },                                /* no such buffer */
        { 1, 2 * FLOATS, FLOATS },                       /* there */
        { 1, FLOATS, 2 * FLOATS },                       /* the second half is there */
        { 1, 3 * FLOATS, 2 * FLOATS },                   /* the first half is */
        { 1, 0, ELEMENTS },                              /* a part in the middle is */
    };
    struct ckpt_share share = { .count = 0 };
    assert_int_equal(ckpt_share_add(&described, 1, 2 * FLOATS, 2 * FLOATS, &share), ST_OK);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(
            ckpt_share_add(&described, bad[i].buffer, bad[i].first, bad[i].count, &share),
            ST_INVALID);
        assert_int_equal(share.count, 1);
        assert_int_equal(share.extent[0].count, 2 * FLOATS);
    }
    share.count = 0;
    for (uint64_t i = 0; i < CKPT_EXTENTS_MAX; i++)
        assert_int_equal(ckpt_share_add(&described, 0, 2 * i * CHUNK, CHUNK, &share), ST_OK);
    assert_int_equal(ckpt_share_add(&described, 1, 0, FLOATS, &share), ST_FULL);
    assert_int_equal(ckpt_share_add(&described, 0, CHUNK, CHUNK, &share), ST_OK); /* fills a gap */
    assert_int_equal(share.count, CKPT_EXTENTS_MAX - 1);
    assert_int_equal(ckpt_share_check(&described, &share), ST_OK);
}

/* Each way in which extents that somebody put together himself may be none. */
static void a_share_that_is_none_is_refused_before_a_file_is_made(void **unused)
{
    (void)unused;
    static const struct ckpt_extent bad[][2] = {
        { { 1, 2 * FLOATS, FLOATS }, { 1, 0, FLOATS } },     /* out of order */
        { { 2, 0, FLOATS }, { 1, 0, FLOATS } },              /* buffers are */
        { { 1, 0, FLOATS }, { 1, FLOATS, FLOATS } },         /* neighbours */
        { { 1, 0, 2 * FLOATS }, { 1, FLOATS, 2 * FLOATS } }, /* overlap */
        { { 1, 0, FLOATS }, { 1, 3 * FLOATS, 0 } },          /* nothing */
        { { 1, 0, FLOATS }, { 1, 3 * FLOATS, 5 } },          /* no whole chunk */
        { { 1, 0, FLOATS }, { SAMPLE_BUFFERS, 0, FLOATS } }, /* no such buffer */
    };
    struct store_fixture *f = store_fixture_new(STORE_IN_MEMORY, ELEMENTS);
    struct ckpt_share share = { .count = 2 };
    struct ckpt_report report;
    assert_int_equal(f->io->mkdir(f->io->self, "/d"), ST_OK);
    f->sample.state.share = &share;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        memcpy(share.extent, bad[i], sizeof(bad[i]));
        assert_int_equal(ckpt_share_check(&f->sample.state, &share), ST_INVALID);
        assert_int_equal(ckpt_shard_write(f->io, "/d", &f->sample.state, 0, 1, NULL, &report),
                         ST_INVALID);
        assert_false(memory_io_has(f->memory, "/d/shard-00000-of-00001.cairn"));
    }
    share.count = CKPT_EXTENTS_MAX + 1;
    assert_int_equal(ckpt_share_check(&f->sample.state, &share), ST_INVALID);
    store_fixture_free(f);
}

/* 480 pieces in a row that have no whole branch: 16 of a chunk, 256 of a branch. */
static void a_share_whose_report_fits_no_message_is_refused(void **unused)
{
    (void)unused;
    struct ckpt_share share = { .count = 0 }, out;
    struct ckpt_state state = described;
    state.share = &share;
    enum status st = ST_OK;
    for (uint64_t hashes = 480; st == ST_OK; hashes += 480) {
        const uint64_t first = (32 * (uint64_t)share.count + 1) * CHUNK;
        assert_int_equal(ckpt_share_add(&state, 0, first, 30 * CHUNK, &share), ST_OK);
        st = ckpt_share_of(&state, 0, 1, &out);
        assert_int_equal(st, hashes <= CKPT_REPORT_HASHES_MAX ? ST_OK : ST_FULL);
    }
    assert_in_range(share.count, 400, CKPT_EXTENTS_MAX - 1);
}

static void what_is_not_held_is_not_written(void **unused)
{
    (void)unused;
    struct ckpt_share share = { .count = 0 }, held = { .count = 0 }, out;
    struct ckpt_state state = described;
    state.held = &held;
    assert_int_equal(ckpt_share_add(&state, 1, 0, 2 * FLOATS, &held), ST_OK);
    assert_int_equal(ckpt_share_of(&state, 0, 1, &out), ST_INVALID); /* all, evenly */
    state.share = &share;
    assert_int_equal(ckpt_share_add(&state, 1, FLOATS, FLOATS, &share), ST_OK);
    assert_int_equal(ckpt_share_of(&state, 0, 1, &out), ST_OK);
    assert_int_equal(out.count, 1);
    assert_int_equal(ckpt_share_add(&state, 1, 2 * FLOATS, FLOATS, &share), ST_OK);
    assert_int_equal(ckpt_share_of(&state, 0, 1, &out), ST_INVALID);
}

static void some_buffers_are_dealt_evenly_beside_others(void **unused)
{
    (void)unused;
    struct store_fixture *f = store_fixture_new(STORE_IN_MEMORY, ELEMENTS);
    const struct ckpt_state *s = &f->sample.state;
    struct ckpt_share all = { .count = 0 };
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct ckpt_share share = { .count = 0 };
        assert_int_equal(ckpt_share_even(s, 1u << 1 | 1u << 4, rank, 4, &share), ST_OK);
        uint64_t chunks = 0;
        for (uint32_t i = 0; i < share.count; i++) {
            const struct ckpt_extent *extent = &share.extent[i];
            assert_true(extent->buffer == 1 || extent->buffer == 4);
            chunks += ckpt_chunks(s->buffers[extent->buffer].dtype, extent->count);
            assert_int_equal(ckpt_share_add(s, extent->buffer, extent->first, extent->count, &all),
                             ST_OK);
        }
        assert_int_equal(chunks, 3); /* of 6 + 6 */
    }
    assert_int_equal(all.count, 2);
    assert_int_equal(all.extent[0].count, s->buffers[1].count);
    assert_int_equal(all.extent[1].count, s->buffers[4].count);
    store_fixture_free(f);
}

/* ---- files of them ---- */

/* Deals as sharded moments do: chunk c of momentum and adam.v is rank (c + buffer) % size's, all
 * else is dealt evenly. */
static void deal_by_turns(const struct ckpt_state *state, uint32_t rank, uint32_t size,
                          struct ckpt_share *out)
{
    assert_int_equal(ckpt_share_even(state, ~(1u << 1 | 1u << 2), rank, size, out), ST_OK);
    for (uint32_t b = 1; b <= 2; b++) {
        const struct ckpt_buffer *buffer = &state->buffers[b];
        for (uint64_t c = ckpt_chunks(buffer->dtype, buffer->count); c-- > 0;) {
            const uint64_t first = c * FLOATS, left = buffer->count - first;
            if ((c + b) % size != rank)
                continue;
            assert_int_equal(ckpt_share_add(state, b, first, left < FLOATS ? left : FLOATS, out),
                             ST_OK);
        }
    }
}

static void chunks_dealt_by_turns_are_the_same_state(void **unused)
{
    (void)unused;
    struct store_fixture *f = store_fixture_new(STORE_IN_MEMORY, ELEMENTS);
    struct ckpt_hash digest, stored;
    assert_int_equal(ckpt_state_digest(&f->sample.state, &digest), ST_OK);
    for (size_t i = 0; i < RANK_COUNTS; i++) {
        const struct sample_options options = { .deal = deal_by_turns, .threads = i % 2 * 2 };
        struct ckpt_manifest manifest;
        store_fixture_save(f, rank_counts[i], &options);
        store_fixture_assert_saved(f, f->dir);
        assert_int_equal(ckpt_digest(f->io, f->dir, &stored), ST_OK);
        assert_memory_equal(stored.byte, digest.byte, sizeof(digest.byte));
        assert_int_equal(ckpt_manifest_read(f->io, f->dir, &manifest, NULL), ST_OK);
        assert_memory_equal(manifest.digest.byte, digest.byte, sizeof(digest.byte));
        for (uint32_t k = 0; k < manifest.file_count; k++)
            assert_int_equal(ckpt_verify_file(f->io, f->dir, k, NULL, NULL, NULL), ST_OK);
        ckpt_manifest_release(&manifest);
        assert_int_equal(ckpt_remove(f->io, f->dir), ST_OK);
    }
    store_fixture_free(f);
}

static void differences_to_a_base_of_other_shares_are_read(void **unused)
{
    (void)unused;
    struct store_fixture *f = store_fixture_new(STORE_IN_MEMORY, ELEMENTS);
    static const struct {
        uint32_t base, then;
        bool base_by_turns, by_turns;
    } cases[] = { { 3, 5, false, true }, { 5, 2, true, false }, { 3, 2, true, true } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct sample next;
        struct ckpt_reader *base = NULL;
        char dir[LIMIT_PATH];
        struct sample_options options = { .deal = cases[i].base_by_turns ? deal_by_turns : NULL };
        store_fixture_save(f, cases[i].base, &options);
        assert_int_equal(ckpt_open(f->io, f->dir, NULL, NULL, &base), ST_OK);
        sample_init_near(&next, &f->sample, 41, 2);
        options = (struct sample_options){ .deal = cases[i].by_turns ? deal_by_turns : NULL,
                                           .write = { .base = base } };
        assert_int_equal(sample_save(f->io, &next, cases[i].then, &options, dir), ST_OK);
        ckpt_close(base);
        bool equal = false;
        assert_int_equal(sample_compare(f->io, dir, &next, &equal), ST_OK);
        assert_true(equal);
        assert_int_equal(ckpt_verify(f->io, dir, NULL, NULL, NULL), ST_OK);
        struct ckpt_manifest manifest;
        uint64_t bytes = 0;
        assert_int_equal(ckpt_manifest_read(f->io, dir, &manifest, NULL), ST_OK);
        for (uint32_t k = 0; k < manifest.file_count; k++)
            bytes += manifest.files[k].size;
        assert_int_equal(manifest.parent.step, 40);
        assert_true(bytes < manifest.raw_bytes / 4); /* differences they are */
        ckpt_manifest_release(&manifest);
        assert_int_equal(ckpt_remove(f->io, dir), ST_OK);
        assert_int_equal(ckpt_remove(f->io, f->dir), ST_OK);
        sample_release(&next);
    }
    store_fixture_free(f);
}

/* How extents of three ranks contradict each other: a rank's share is another than it should be. */
enum planted { NOTHING, MISSING, MISSING_AT_THE_END, TWICE };

static void remove_run(struct ckpt_share *share, uint32_t buffer, uint64_t first)
{
    const uint32_t i = ckpt_share_find(share, buffer, first);
    assert_true(i < share->count && share->extent[i].first == first);
    share->count--;
    memmove(&share->extent[i], &share->extent[i + 1],
            (share->count - i) * sizeof(share->extent[0]));
}

/* Rank 0 has chunks 2 and 5 of momentum, rank 1 chunks 0 and 3. */
static enum status manifest_of(struct store_fixture *f, enum planted planted)
{
    struct ckpt_report reports[3] = { 0 };
    struct ckpt_hash digest;
    auto_buf struct buf bytes;
    buf_init(&bytes, LIMIT_MANIFEST_BYTES);
    assert_int_equal(ckpt_folder_create(f->io, "/planted"), ST_OK);
    for (uint32_t rank = 0; rank < 3; rank++) {
        struct ckpt_share share = { .count = 0 };
        struct ckpt_state state = f->sample.state;
        deal_by_turns(&state, rank, 3, &share);
        if (rank == 0 && planted == MISSING_AT_THE_END)
            remove_run(&share, 1, 5 * FLOATS);
        if (rank == 1 && planted == MISSING)
            remove_run(&share, 1, 3 * FLOATS);
        if (rank == 1 && planted == TWICE)
            assert_int_equal(ckpt_share_add(&state, 1, 2 * FLOATS, FLOATS, &share), ST_OK);
        state.share = &share;
        assert_int_equal(ckpt_shard_write(f->io, "/planted", &state, rank, 3, NULL, &reports[rank]),
                         ST_OK);
    }
    const enum status st = ckpt_manifest_make(reports, 3, SAMPLE_JOB, SAMPLE_TIME, &bytes, &digest);
    for (uint32_t rank = 0; rank < 3; rank++)
        ckpt_report_release(&reports[rank]);
    assert_int_equal(ckpt_folder_drop(f->io, "/planted"), ST_OK);
    return st;
}

static void runs_that_are_missing_or_there_twice_make_no_manifest(void **unused)
{
    (void)unused;
    struct store_fixture *f = store_fixture_new(STORE_IN_MEMORY, ELEMENTS);
    assert_int_equal(manifest_of(f, NOTHING), ST_OK);
    assert_int_equal(manifest_of(f, MISSING), ST_INVALID);
    assert_int_equal(manifest_of(f, TWICE), ST_INVALID);
    assert_int_equal(manifest_of(f, MISSING_AT_THE_END), ST_INVALID);
    store_fixture_free(f);
}

/* Buffers whose data are only the share's extents, one after the other, and hashes of their
 * pieces. */
struct packed {
    struct ckpt_buffer buffers[SAMPLE_BUFFERS];
    uint8_t *data[SAMPLE_BUFFERS];
    struct ckpt_hash *pieces[SAMPLE_BUFFERS];
};

static void pack(const struct ckpt_state *state, const struct ckpt_share *share, struct packed *out)
{
    for (uint32_t b = 0; b < SAMPLE_BUFFERS; b++) {
        const struct ckpt_buffer *from = &state->buffers[b];
        const uint64_t width = ckpt_dtype_size(from->dtype);
        size_t size = 0;
        out->data[b] = calloc((size_t)from->count, (size_t)width);
        out->pieces[b] = calloc((size_t)ckpt_pieces(from->count), sizeof(**out->pieces));
        assert_true(out->data[b] != NULL && out->pieces[b] != NULL);
        for (uint32_t i = 0; i < share->count; i++) {
            const struct ckpt_extent *extent = &share->extent[i];
            if (extent->buffer != b)
                continue;
            memcpy(out->data[b] + size, (const uint8_t *)from->data + extent->first * width,
                   (size_t)(extent->count * width));
            size += (size_t)(extent->count * width);
        }
        ckpt_piece_hashes(from->dtype, out->data[b], size, out->pieces[b]);
        out->buffers[b] = *from;
        out->buffers[b].data = out->data[b];
        out->buffers[b].packed = true;
        out->buffers[b].pieces = out->pieces[b];
    }
}

static void packed_free(struct packed *packed)
{
    for (uint32_t b = 0; b < SAMPLE_BUFFERS; b++) {
        free(packed->data[b]);
        free(packed->pieces[b]);
    }
}

/* Writes a shard file to a folder, reads its hash, and drops the folder. */
static enum status hash_of_file(struct store_fixture *f, const struct ckpt_state *state,
                                uint32_t rank, struct ckpt_hash *out)
{
    struct ckpt_report report;
    assert_int_equal(ckpt_folder_create(f->io, "/one"), ST_OK);
    const enum status st = ckpt_shard_write(f->io, "/one", state, rank, 3, NULL, &report);
    assert_int_equal(ckpt_folder_drop(f->io, "/one"), ST_OK);
    if (st != ST_OK)
        return st;
    *out = report.hash;
    ckpt_report_release(&report);
    return ST_OK;
}

static void packed_runs_make_the_same_file(void **unused)
{
    (void)unused;
    struct store_fixture *f = store_fixture_new(STORE_IN_MEMORY, ELEMENTS);
    for (uint32_t rank = 0; rank < 3; rank++) {
        struct ckpt_share share = { .count = 0 };
        struct ckpt_state state = f->sample.state;
        struct packed packed;
        struct ckpt_hash whole, other;
        deal_by_turns(&state, rank, 3, &share);
        pack(&state, &share, &packed);
        state.share = &share;
        assert_int_equal(hash_of_file(f, &state, rank, &whole), ST_OK);
        state.buffers = packed.buffers;
        assert_int_equal(hash_of_file(f, &state, rank, &other), ST_OK);
        assert_memory_equal(other.byte, whole.byte, sizeof(whole.byte));
        packed.pieces[1][FLOATS / PIECE_ELEMENTS].byte[3] ^= 1; /* of its second extent */
        assert_int_equal(hash_of_file(f, &state, rank, &other), ST_CORRUPT);
        packed_free(&packed);
    }
    store_fixture_free(f);
}

/* A part of a state has no digest. */
static void only_a_whole_state_has_a_digest(void **unused)
{
    (void)unused;
    struct store_fixture *f = store_fixture_new(STORE_IN_MEMORY, 300);
    struct ckpt_state state = f->sample.state;
    struct ckpt_share share = { .count = 0 };
    struct ckpt_hash digest, again;
    assert_int_equal(ckpt_state_digest(&state, &digest), ST_OK);
    assert_int_equal(ckpt_share_even(&state, ~UINT32_C(2), 0, 1, &share), ST_OK);
    state.held = &share;
    assert_int_equal(ckpt_state_digest(&state, &again), ST_INVALID);
    state.held = NULL;
    f->sample.buffers[0].packed = f->sample.buffers[1].packed = true;
    assert_int_equal(ckpt_state_digest(&state, &again), ST_INVALID); /* of whose share? */
    state.share = &share;
    assert_int_equal(ckpt_state_digest(&state, &again), ST_INVALID); /* momentum isn't in it */
    f->sample.buffers[1].packed = false;
    assert_int_equal(ckpt_state_digest(&state, &again), ST_OK);
    assert_memory_equal(again.byte, digest.byte, sizeof(digest.byte));
    store_fixture_free(f);
}

/* ---- reading a part ---- */

/* The machine's files; bytes that are read are counted, and how often one is opened. */
struct counted {
    struct io io;
    _Atomic uint64_t bytes, opened;
};

static enum status counted_open(void *self, const char *path, int flags, int *out_fd)
{
    struct counted *counted = self;
    counted->opened++;
    return io_system()->open(io_system()->self, path, flags, out_fd);
}

static enum status counted_pread(void *self, int fd, void *data, size_t size, uint64_t at,
                                 size_t *out_size)
{
    struct counted *counted = self;
    const enum status st = io_system()->pread(io_system()->self, fd, data, size, at, out_size);
    if (st == ST_OK)
        counted->bytes += *out_size;
    return st;
}

/* A place for each buffer, of which only what is held may be touched. */
struct places {
    void *data[SAMPLE_BUFFERS];
    size_t size[SAMPLE_BUFFERS];
};

static void places_open(const struct ckpt_state *state, const struct ckpt_share *held,
                        struct places *out)
{
    for (uint32_t b = 0; b < SAMPLE_BUFFERS; b++) {
        out->size[b] =
            (size_t)(ckpt_chunks(state->buffers[b].dtype, state->buffers[b].count) * CHUNK);
        out->data[b] =
            mmap(NULL, out->size[b], PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        assert_true(out->data[b] != MAP_FAILED);
    }
    for (uint32_t i = 0; i < held->count; i++) {
        const struct ckpt_extent *extent = &held->extent[i];
        const uint64_t width = ckpt_dtype_size(state->buffers[extent->buffer].dtype);
        const size_t size = (size_t)(extent->count * width + 4095) / 4096 * 4096;
        assert_int_equal(mprotect((uint8_t *)out->data[extent->buffer] + extent->first * width,
                                  size, PROT_READ | PROT_WRITE),
                         0);
    }
}

static void places_close(struct places *places)
{
    for (uint32_t b = 0; b < SAMPLE_BUFFERS; b++)
        assert_int_equal(munmap(places->data[b], places->size[b]), 0);
}

static void assert_holds(const struct ckpt_state *state, const struct ckpt_share *held,
                         const struct places *places)
{
    for (uint32_t i = 0; i < held->count; i++) {
        const struct ckpt_extent *extent = &held->extent[i];
        const uint64_t width = ckpt_dtype_size(state->buffers[extent->buffer].dtype);
        assert_memory_equal((uint8_t *)places->data[extent->buffer] + extent->first * width,
                            (const uint8_t *)state->buffers[extent->buffer].data +
                                extent->first * width,
                            (size_t)(extent->count * width));
    }
}

/* By files of other shares than what is held. */
static void what_is_not_held_is_neither_read_nor_touched(void **unused)
{
    (void)unused;
    struct store_fixture *f = store_fixture_new(STORE_IN_FOLDER, ELEMENTS);
    const struct ckpt_state *state = &f->sample.state;
    const struct sample_options options = { .deal = deal_by_turns };
    store_fixture_save(f, 3, &options);
    struct counted counted = { .io = *io_system() };
    counted.io.self = &counted;
    counted.io.open = counted_open;
    counted.io.pread = counted_pread;
    for (uint32_t rank = 0; rank < 5; rank++) {
        struct ckpt_reader *reader = NULL;
        struct ckpt_share held = { .count = 0 };
        struct places places;
        const struct ckpt_read_options read = { .held = &held, .threads = rank % 3 };
        assert_int_equal(ckpt_open(&counted.io, f->dir, NULL, NULL, &reader), ST_OK);
        deal_by_turns(state, rank, 5, &held);
        places_open(state, &held, &places);
        counted.bytes = 0;
        assert_int_equal(ckpt_read_state(reader, places.data, &read), ST_OK);
        assert_holds(state, &held, &places);
        const uint64_t part = counted.bytes;
        counted.bytes = counted.opened = 0;
        assert_int_equal(ckpt_read_state(reader, NULL, NULL), ST_OK);
        assert_in_range(counted.opened, 2, 3); /* file by file, though chunks go by turns */
        assert_in_range(part, counted.bytes / 10,
                        counted.bytes * 2 / 5); /* of six chunks one or two */
        ckpt_close(reader);
        places_close(&places);
    }
    store_fixture_free(f);
}

static void only_damage_of_what_is_held_is_found(void **unused)
{
    (void)unused;
    struct store_fixture *f = store_fixture_new(STORE_IN_MEMORY, ELEMENTS);
    struct ckpt_share held = { .count = 0 }, none = { .count = 0 }, bad = { .count = 1 };
    const struct ckpt_read_options read = { .held = &held };
    struct ckpt_reader *reader = NULL;
    struct places places;
    char path[LIMIT_PATH];
    store_fixture_save(f, 1, NULL);
    store_fixture_shard(f->dir, 0, 1, path);
    store_fixture_flip(f, path, 4096 + 500, 8); /* in chunk 0 of the parameters */
    assert_int_equal(ckpt_share_add(&f->sample.state, 0, FLOATS, 3 * FLOATS, &held), ST_OK);
    assert_int_equal(ckpt_share_add(&f->sample.state, 5, 0, f->sample.buffers[5].count, &held),
                     ST_OK);
    places_open(&f->sample.state, &held, &places);
    assert_int_equal(ckpt_open(f->io, f->dir, NULL, NULL, &reader), ST_OK);
    assert_int_equal(ckpt_read_state(reader, places.data, &read), ST_OK);
    assert_holds(&f->sample.state, &held, &places);
    places_close(&places);
    assert_int_equal(ckpt_share_add(&f->sample.state, 0, 0, FLOATS, &held), ST_OK);
    assert_int_equal(ckpt_read_state(reader, NULL, &read), ST_CORRUPT);
    assert_int_equal(ckpt_reader_damaged(reader), 1);
    const struct ckpt_read_options nothing = { .held = &none }, unsound = { .held = &bad };
    assert_int_equal(ckpt_read_state(reader, NULL, &nothing), ST_OK);
    bad.extent[0] = (struct ckpt_extent){ 0, 5, 7 };
    assert_int_equal(ckpt_read_state(reader, NULL, &unsound), ST_INVALID);
    ckpt_close(reader);
    store_fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_are_kept_in_order_and_neighbours_merged),
        cmocka_unit_test(what_cannot_be_added_changes_nothing),
        cmocka_unit_test(a_share_that_is_none_is_refused_before_a_file_is_made),
        cmocka_unit_test(a_share_whose_report_fits_no_message_is_refused),
        cmocka_unit_test(what_is_not_held_is_not_written),
        cmocka_unit_test(some_buffers_are_dealt_evenly_beside_others),
        cmocka_unit_test(chunks_dealt_by_turns_are_the_same_state),
        cmocka_unit_test(differences_to_a_base_of_other_shares_are_read),
        cmocka_unit_test(runs_that_are_missing_or_there_twice_make_no_manifest),
        cmocka_unit_test(packed_runs_make_the_same_file),
        cmocka_unit_test(only_a_whole_state_has_a_digest),
        cmocka_unit_test(what_is_not_held_is_neither_read_nor_touched),
        cmocka_unit_test(only_damage_of_what_is_held_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
