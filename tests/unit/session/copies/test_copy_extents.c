/* Copy files of shares of many extents. */
#include <string.h>

#include "common/cleanup.h"
#include "tests/test.h"
#include "tests/unit/session/copies/copies_fixture.h"

#define CHUNK ((size_t)1 << 18) /* floats */
#define LARGE (7 * CHUNK + 777)

/* Deals every third chunk of the values, and an even part of the rest. */
static void deal_by_turns(const struct ckpt_state *state, uint32_t rank, struct ckpt_share *out)
{
    out->count = 0;
    assert_int_equal(ckpt_share_even(state, 2, rank, 3, out), ST_OK);
    for (size_t at = rank * CHUNK; at < LARGE; at += 3 * CHUNK) {
        const size_t left = LARGE - at;
        assert_int_equal(ckpt_share_add(state, 0, at, left < CHUNK ? left : CHUNK, out), ST_OK);
    }
}

static void a_share_of_many_runs_is_read_as_it_was_taken(void **state)
{
    (void)state;
    struct copies *s = copies_new(LARGE);
    struct ckpt_share share;
    s->state.share = &share;
    for (uint32_t rank = 0; rank < 3; rank++) {
        char path[COPIES_PATH];
        struct copy_view view;
        size_t last[4]; /* byte of each extent */
        deal_by_turns(&s->state, rank, &share);
        copies_path(s, 4, rank, 0, path);
        copies_write(s, path, rank, 3);
        assert_int_equal(copy_view_map(path, &view), ST_OK);
        copies_check(s, &view);
        assert_in_range(share.count, 2, 4);
        assert_int_equal(view.head->extent_count, share.count);
        for (uint32_t i = 0; i < share.count; i++) {
            const struct copy_extent *extent = &copy_view_extents(&view)[i];
            assert_int_equal(extent->buffer, share.extent[i].buffer);
            assert_int_equal(extent->first, share.extent[i].first);
            assert_int_equal(extent->count, share.extent[i].count);
            last[i] = extent->data + extent->count * sizeof(float) - 1;
        }
        copy_view_unmap(&view);
        for (uint32_t i = 0; i < share.count; i++) {
            copies_flip(path, last[i], 2);
            assert_true(copies_damaged(path));
            copies_flip(path, last[i], 2);
        }
        assert_false(copies_damaged(path));
    }
    copies_free(s);
}

/* The copies of three ranks, whose memory has nothing but their extents. */
static void copies_of_many_runs_are_saved_as_the_whole_state(void **state)
{
    (void)state;
    struct copies *s = copies_new(LARGE);
    struct ckpt_report reports[3] = { 0 };
    struct ckpt_hash wanted, made;
    assert_int_equal(ckpt_state_digest(&s->state, &wanted), ST_OK);
    for (uint32_t rank = 0; rank < 3; rank++) {
        struct ckpt_share share;
        struct ckpt_state part = s->state;
        struct copy_file file;
        deal_by_turns(&s->state, rank, &share);
        part.share = &share;
        const size_t bytes = (size_t)ckpt_share_bytes(&part, &share);
        assert_int_equal(copy_file_open(NULL, bytes, &file), ST_OK);
        assert_int_equal(copy_file_begin(&file, &part, rank, 3), ST_OK);
        copy_file_fill(&file);
        share.count = 0; /* it has one of its own */
        const struct ckpt_state *copy = copy_file_state(&file);
        assert_non_null(copy->buffers[0].pieces);
        assert_true(copy->buffers[0].packed);
        assert_int_equal(ckpt_shard_write(io_system(), s->dir, copy, rank, 3, NULL, &reports[rank]),
                         ST_OK);
        assert_int_equal(reports[rank].raw_bytes, bytes);
        copy_file_close(&file);
    }
    auto_buf struct buf manifest;
    buf_init(&manifest, LIMIT_MANIFEST_BYTES);
    assert_int_equal(ckpt_manifest_make(reports, 3, COPIES_JOB, "now", &manifest, &made), ST_OK);
    assert_memory_equal(&made, &wanted, sizeof(made));
    for (uint32_t rank = 0; rank < 3; rank++)
        ckpt_report_release(&reports[rank]);
    copies_free(s);
}

/* Tables of extents that no writer makes, under a seal that is right. */
static void runs_that_are_no_share_are_refused(void **state)
{
    (void)state;
    struct copies *s = copies_new(LARGE);
    struct ckpt_share share;
    struct copy_file file;
    struct copy_view view;
    s->state.share = &share;
    deal_by_turns(&s->state, 0, &share);
    assert_int_equal(copy_file_open(NULL, copies_share_bytes(s, 0, 3), &file), ST_OK);
    assert_int_equal(copy_file_begin(&file, &s->state, 0, 3), ST_OK);
    copy_file_fill(&file);
    copy_file_seal(&file);
    struct copy_head *head = (struct copy_head *)(void *)(file.memory + sizeof(struct copy_seal));
    struct copy_extent *extents = (struct copy_extent *)(void *)(file.memory + head->extents);
    for (int kind = 0; kind < 8; kind++) {
        const struct copy_extent before = extents[1];
        const struct copy_head whole = *head;
        extents[1].first -= kind == 0 ? 3 * CHUNK : 0; /* twice the same */
        extents[1].first -= kind == 1 ? 2 * CHUNK : 0; /* where the one before ends */
        extents[1].count -= kind == 2;
        extents[1].count += kind == 3 ? UINT64_MAX / 4 : 0;
        extents[1].buffer += kind == 4 ? 2 : 0;
        extents[1].data += kind == 5 ? file.size : 0;
        extents[1].hashes += kind == 6 ? file.size : 0;
        head->extent_count += kind == 7 ? CKPT_EXTENTS_MAX : 0;
        copy_file_seal(&file);
        assert_int_equal(copy_view_parse(file.memory, file.size, file.size, &view), ST_CORRUPT);
        extents[1] = before;
        *head = whole;
    }
    copy_file_seal(&file);
    assert_int_equal(copy_view_parse(file.memory, file.size, file.size, &view), ST_OK);
    copy_file_close(&file);
    copies_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_share_of_many_runs_is_read_as_it_was_taken),
        cmocka_unit_test(copies_of_many_runs_are_saved_as_the_whole_state),
        cmocka_unit_test(runs_that_are_no_share_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
