/*
 * What reports say of large states: hashes of branches where a share has whole ones, and the same
 * digest, however the state is divided.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/format/hash.h"
#include "common/buf.h"
#include "common/cleanup.h"
#include "tests/crash/memory_io.h"
#include "tests/test.h"

#define DIR     "/d"
#define BYTES   ((uint64_t)BRANCHES * CKPT_BRANCH_PIECES * PIECE_ELEMENTS + 12345)
#define FLOATS  ((uint64_t)3 * PIECE_ELEMENTS + 1)
#define BUFFERS 2
enum { BRANCHES = 3, RANKS_MAX = 7 };

struct fixture {
    uint8_t *bytes;
    float *floats;
    struct ckpt_buffer buffers[BUFFERS];
    struct ckpt_state state;
    struct ckpt_hash digest;
    struct memory_io *memory;
};

/* Nearly all zero, so that it costs little to store; no two pieces are alike. */
static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->bytes = calloc(BYTES, 1);
    f->floats = calloc(FLOATS, sizeof(float));
    assert_non_null(f->bytes);
    assert_non_null(f->floats);
    for (uint64_t i = 0; i < BYTES; i += PIECE_ELEMENTS / 2)
        memcpy(f->bytes + (i + 8 < BYTES ? i : BYTES - 8), &i, sizeof(i));
    for (uint64_t i = 0; i < FLOATS; i += 1000)
        f->floats[i] = (float)i;
    f->buffers[0] =
        (struct ckpt_buffer){ .name = "bytes", .dtype = CKPT_U8, .count = BYTES, .data = f->bytes };
    f->buffers[1] = (struct ckpt_buffer){
        .name = "floats", .dtype = CKPT_F32, .count = FLOATS, .data = f->floats
    };
    f->state = (struct ckpt_state){ .job = "j-0123456789",
                                    .generation = 2,
                                    .buffers = f->buffers,
                                    .buffer_count = BUFFERS,
                                    .scalars = { .seed = 1, .step = 40, .loss_scale = 1 } };
    assert_int_equal(ckpt_state_digest(&f->state, &f->digest), ST_OK);
    f->memory = memory_io_new();
    assert_non_null(f->memory);
    const struct io *io = memory_io_table(f->memory);
    assert_int_equal(io->mkdir(io->self, DIR), ST_OK);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    memory_io_free(f->memory);
    free(f->floats);
    free(f->bytes);
    free(f);
    return 0;
}

static void write_one(struct fixture *f, uint32_t rank, uint32_t ranks, struct ckpt_report *out)
{
    const struct io *io = memory_io_table(f->memory);
    char path[64];
    assert_int_equal(ckpt_shard_write(io, DIR, &f->state, rank, ranks, NULL, out), ST_OK);
    (void)snprintf(path, sizeof(path), DIR "/%.50s", out->file);
    assert_int_equal(io->unlink(io->self, path), ST_OK);
}

static void write_all(struct fixture *f, uint32_t ranks, struct ckpt_report *reports)
{
    for (uint32_t r = 0; r < ranks; r++)
        write_one(f, r, ranks, &reports[r]);
}

static enum status digest_of(const struct ckpt_report *reports, uint32_t ranks,
                             struct ckpt_hash *out)
{
    auto_buf struct buf manifest;
    buf_init(&manifest, LIMIT_MANIFEST_BYTES);
    return ckpt_manifest_make(reports, ranks, "j-0123456789", "now", &manifest, out);
}

static void release_all(struct ckpt_report *reports, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++)
        ckpt_report_release(&reports[r]);
}

static void however_a_state_is_divided_its_digest_is_the_same(void **state)
{
    struct fixture *f = *state;
    for (uint32_t ranks = 1; ranks <= RANKS_MAX; ranks++) {
        struct ckpt_report reports[RANKS_MAX];
        struct ckpt_hash digest;
        write_all(f, ranks, reports);
        assert_int_equal(digest_of(reports, ranks, &digest), ST_OK);
        assert_memory_equal(digest.byte, f->digest.byte, sizeof(digest.byte));
        release_all(reports, ranks);
    }
}

/* Chunks of the bytes by turns, `each` in a row; the floats evenly. */
static void deal(const struct ckpt_state *state, uint32_t rank, uint32_t ranks, uint64_t each,
                 struct ckpt_share *out)
{
    const uint64_t stretch = each << 20;
    assert_int_equal(ckpt_share_even(state, 2, rank, ranks, out), ST_OK);
    for (uint64_t k = rank; k * stretch < BYTES; k += ranks) {
        const uint64_t left = BYTES - k * stretch;
        assert_int_equal(
            ckpt_share_add(state, 0, k * stretch, left < stretch ? left : stretch, out), ST_OK);
    }
}

/* 1: every branch is in pieces of all ranks; 16: whole ones; 20: both in one extent. */
static void runs_of_many_ranks_meet_within_a_branch(void **state)
{
    struct fixture *f = *state;
    static const struct {
        uint64_t each, hashes;
    } cases[] = {
        { 1, BRANCHES * CKPT_BRANCH_PIECES + 1 + 4 },
        { 16, BRANCHES + 1 + 4 },
        { 20, 1 + 64 + (256 - 64) + 128 + (256 - 128) + 1 + 4 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ckpt_report reports[3];
        struct ckpt_hash digest;
        uint64_t hashes = 0;
        for (uint32_t r = 0; r < 3; r++) {
            struct ckpt_share share = { .count = 0 };
            deal(&f->state, r, 3, cases[i].each, &share);
            f->state.share = &share;
            write_one(f, r, 3, &reports[r]);
            for (uint32_t k = 0; k < reports[r].extent_count; k++)
                hashes += reports[r].extents[k].count;
        }
        assert_int_equal(hashes, cases[i].hashes);
        assert_int_equal(digest_of(reports, 3, &digest), ST_OK);
        assert_memory_equal(digest.byte, f->digest.byte, sizeof(digest.byte));
        release_all(reports, 3);
    }
}

static void a_whole_branch_is_one_hash(void **state)
{
    struct fixture *f = *state;
    struct ckpt_report report;
    write_all(f, 1, &report);
    /* bytes: branches, the piece that is left, its end; floats: pieces, end */
    uint64_t hashes = 0, branches = 0;
    for (uint32_t i = 0; i < report.extent_count; i++) {
        hashes += report.extents[i].count;
        if (report.extents[i].count > 0 && report.extents[i].each == CKPT_BRANCH_PIECES)
            branches += report.extents[i].count;
    }
    assert_int_equal(branches, BRANCHES);
    assert_int_equal(hashes, BRANCHES + 1 + 4);
    release_all(&report, 1);
    struct ckpt_report two[2];
    write_all(f, 2, two);
    hashes = 0;
    for (uint32_t r = 0; r < 2; r++) {
        for (uint32_t i = 0; i < two[r].extent_count; i++)
            hashes += two[r].extents[i].count;
    }
    assert_true(hashes <= BRANCHES - 1 + CKPT_BRANCH_PIECES + 1 + 4); /* one branch is shared */
    release_all(two, 2);
}

/* Each way in which an extent of branches may be wrong. */
static void branches_that_cannot_be_make_no_manifest(void **state)
{
    struct fixture *f = *state;
    for (int kind = 0; kind < 5; kind++) {
        struct ckpt_report report;
        struct ckpt_hash digest;
        write_all(f, 1, &report);
        struct ckpt_piece_extent *extent = &report.extents[0];
        assert_int_equal(extent->each, CKPT_BRANCH_PIECES);
        extent->each = kind == 0 ? 1 : kind == 1 ? 2 : kind == 2 ? 0 : extent->each;
        extent->count -= kind == 3;
        extent->first += kind == 4 ? CKPT_BRANCH_PIECES : 0;
        assert_int_equal(digest_of(&report, 1, &digest), ST_INVALID);
        release_all(&report, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(however_a_state_is_divided_its_digest_is_the_same, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(runs_of_many_ranks_meet_within_a_branch, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_whole_branch_is_one_hash, set_up, tear_down),
        cmocka_unit_test_setup_teardown(branches_that_cannot_be_make_no_manifest, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
