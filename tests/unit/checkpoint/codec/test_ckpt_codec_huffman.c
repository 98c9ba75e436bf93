/* Frames of the codec's own entropy coder are read by stock libzstd, whatever is in them. */
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "checkpoint/codec/huffman.h"
#include "checkpoint/codec/huffman_code.h"
#include "checkpoint/codec/planes_choose.h"
#include "common/cleanup.h"
#include "common/rng.h"
#include "tests/test.h"

#define SIZE_MAX_TESTED 70001u

/* Kinds of planes, of values first and more; the last ones span too much or can't be smaller. */
enum plane {
    PLANE_HALVING,
    PLANE_TWO,
    PLANE_FLAT,
    PLANE_RARE,
    PLANE_FIBONACCI,
    PLANE_RUNS,
    PLANE_ALONE,
    PLANES
};

static uint8_t value_of(enum plane plane, uint32_t i)
{
    struct rng_counter r = rng_words(31, i, plane, 0, 0);
    uint32_t zeros = (uint32_t)__builtin_ctz(r.word[0] | 1u << 30);
    switch (plane) {
    case PLANE_HALVING:
        return (uint8_t)zeros;
    case PLANE_TWO:
        return r.word[0] % 5 == 0 ? 127 : 0;
    case PLANE_FLAT:
        return (uint8_t)(r.word[0] % 100);
    case PLANE_RARE: /* most values once or twice in a block: long codes */
        return r.word[1] % 256 == 0 ? (uint8_t)(r.word[0] % 128) : 3;
    case PLANE_FIBONACCI: /* deeper than 11 without a limit */
        return (uint8_t)(zeros + (uint32_t)__builtin_ctz(r.word[1] | 1u << 30) / 2);
    case PLANE_RUNS:
        return (uint8_t)(i / 1000 % 7);
    case PLANE_ALONE:
    case PLANES:
        break;
    }
    return 9;
}

static void fill(enum plane plane, uint8_t first, uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)(value_of(plane, (uint32_t)i) + first);
}

static void frames_are_read_by_zstd(void **unused)
{
    (void)unused;
    static const size_t counts[] = { 1024, 1027, 5000, 32768, 33000, 65537, SIZE_MAX_TESTED };
    static const uint8_t firsts[] = { 0, 1, 90, 127, 128 };
    auto_free uint8_t *bytes = malloc(SIZE_MAX_TESTED), *back = malloc(SIZE_MAX_TESTED);
    auto_free uint8_t *frame = malloc(SIZE_MAX_TESTED);
    struct huffman *huffman = huffman_new();
    assert_true(bytes != NULL && back != NULL && frame != NULL && huffman != NULL);
    for (enum plane plane = 0; plane < PLANES; plane++) {
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
            for (size_t f = 0; f < sizeof(firsts); f++) {
                size_t count = counts[c];
                fill(plane, firsts[f], bytes, count);
                size_t size = huffman_frame(huffman, bytes, count, frame, count);
                assert_true(size > 0 && size <= count);
                memset(back, 0xa5, count);
                assert_int_equal(ZSTD_getFrameContentSize(frame, size), count);
                assert_int_equal(ZSTD_decompress(back, count, frame, size), count);
                assert_memory_equal(bytes, back, count);
                assert_int_equal(huffman_frame(huffman, bytes, count, frame, size - 1), 0);
            }
        }
    }
    huffman_free(huffman);
}

static void what_it_is_not_for_is_left_to_others(void **unused)
{
    (void)unused;
    uint8_t bytes[4096], frame[4096];
    struct huffman *huffman = huffman_new();
    assert_non_null(huffman);
    fill(PLANE_HALVING, 0, bytes, sizeof(bytes));
    assert_int_equal(huffman_frame(huffman, bytes, 1023, frame, sizeof(frame)), 0);
    bytes[7] = 200;
    assert_int_equal(huffman_frame(huffman, bytes, sizeof(bytes), frame, sizeof(frame)), 0);
    huffman_free(huffman);
}

static void codes_are_complete_and_short_enough(void **unused)
{
    (void)unused;
    for (uint32_t round = 0; round < 300; round++) {
        uint32_t seen[256] = { 0 }, share = 0;
        struct huffman_code code;
        uint8_t tree[HUFFMAN_TREE_MAX];
        uint32_t values = 2 + rng_words(5, round, 0, 0, 0).word[0] % 127;
        for (uint32_t v = 0; v < values; v++) {
            uint32_t r = rng_words(5, round, 1, v, 0).word[0];
            seen[20 + v] = r % 3 == 0 && v > 1 ? 0 : 1 + (r >> 8) % (1u << r % 20);
        }
        size_t size = huffman_code(seen, &code, tree);
        assert_true(size > 1 && size <= HUFFMAN_TREE_MAX);
        for (uint32_t v = 0; v < HUFFMAN_SPAN; v++) {
            uint32_t length = code.entry[v] >> HUFFMAN_LENGTH_SHIFT;
            uint32_t here = (uint32_t)code.first + v < 256 ? seen[code.first + v] : 0;
            assert_int_equal(length != 0, here != 0);
            assert_true(length <= 11);
            share += length == 0 ? 0 : 2048u >> length;
        }
        assert_int_equal(share, 2048);
    }
}

static void every_version_counts_and_codes_alike(void **unused)
{
    (void)unused;
    static const size_t counts[] = { 256, 257, 258, 300, 511, 1024, 4099, 32767, 32768 };
    auto_free uint8_t *out = malloc(4 * HUFFMAN_STREAM_ROOM);
    auto_free uint8_t *want = malloc(4 * HUFFMAN_STREAM_ROOM);
    assert_true(out != NULL && want != NULL);
    for (size_t v = 0; ckpt_loops_at(v) != NULL; v++) {
        for (enum plane plane = 0; plane < PLANE_ALONE; plane++) {
            for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
                auto_free uint8_t *bytes = malloc(counts[c]); /* a sanitizer sees its end */
                assert_non_null(bytes);
                fill(plane, 100, bytes, counts[c]);
                uint32_t seen[256], seen_want[256];
                size_t size[4], size_want[4];
                struct huffman_code code;
                uint8_t tree[HUFFMAN_TREE_MAX];
                ckpt_loops_at(v)->count(bytes, counts[c], seen);
                ckpt_loops_at(0)->count(bytes, counts[c], seen_want);
                assert_memory_equal(seen, seen_want, sizeof(seen));
                if (huffman_code(seen, &code, tree) == 0)
                    continue; /* one value in so few */
                ckpt_loops_at(v)->put_codes(&code, bytes, counts[c], out, size);
                ckpt_loops_at(0)->put_codes(&code, bytes, counts[c], want, size_want);
                assert_memory_equal(size, size_want, sizeof(size));
                for (size_t k = 0; k < 4; k++)
                    assert_memory_equal(out + k * HUFFMAN_STREAM_ROOM,
                                        want + k * HUFFMAN_STREAM_ROOM, size[k]);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_are_read_by_zstd),
        cmocka_unit_test(what_it_is_not_for_is_left_to_others),
        cmocka_unit_test(codes_are_complete_and_short_enough),
        cmocka_unit_test(every_version_counts_and_codes_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
