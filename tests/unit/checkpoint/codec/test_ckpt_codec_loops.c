/* Every version of the codec's loops that this machine runs gives the bits of the plain one. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/codec/planes_choose.h"
#include "common/cleanup.h"
#include "common/rng.h"
#include "tests/test.h"

#define COUNT_MAX 1100u
#define ROOM      (4 * COUNT_MAX + 256)

static const size_t counts[] = { 0,  1,  7,  8,   15,  16,  31,  32,  33,  63,  64,  65,   71,
                                 79, 80, 95, 127, 128, 129, 255, 256, 300, 511, 640, 1023, 1100 };
#define COUNTS (sizeof(counts) / sizeof(counts[0]))

/* Random bytes at an odd address; on the heap, so that a sanitizer sees the ends. */
struct bytes {
    uint8_t *whole, *at;
};

static struct bytes take(size_t size, uint32_t seed)
{
    struct bytes bytes = { .whole = malloc(size + 3) };
    assert_non_null(bytes.whole);
    bytes.at = bytes.whole + 3;
    for (size_t i = 0; i < size; i++)
        bytes.at[i] = (uint8_t)rng_words(seed, (uint32_t)i, 0, 0, 0).word[0];
    return bytes;
}

static void give(struct bytes bytes)
{
    free(bytes.whole);
}

static void names_differ_and_the_plain_version_is_the_first(void **unused)
{
    (void)unused;
    assert_string_equal(ckpt_loops_at(0)->name, "plain");
    size_t count = 1;
    for (; ckpt_loops_at(count) != NULL; count++)
        assert_string_not_equal(ckpt_loops_at(count)->name, ckpt_loops_at(count - 1)->name);
    assert_ptr_equal(ckpt_loops(), ckpt_loops_at(count - 1));
}

/* Splits and merges by version number v; the planes are compared with the plain version's. */
static void check_split(const struct plane_loops *loops, size_t width, size_t count, unsigned turn,
                        bool sign)
{
    const struct plane_loops *plain = ckpt_loops_at(0);
    struct bytes words = take(width * count, 1), back = take(width * count, 2);
    struct bytes planes = take(width * count, 3), wanted = take(width * count, 4);
    for (size_t i = 0; i < count && !sign; i++)
        words.at[width * i + width - 1] &= 0x7f;
    uint8_t *split[4], *want[4];
    const uint8_t *merge[4];
    for (size_t p = 0; p < width; p++) {
        split[p] = planes.at + p * count;
        want[p] = wanted.at + p * count;
        merge[p] = split[p];
    }
    bool seen, seen_plain;
    if (width == 4) {
        seen = loops->split4(words.at, count, turn, split);
        seen_plain = plain->split4(words.at, count, turn, want);
        loops->merge4(merge, count, turn, back.at);
    } else {
        seen = loops->split2(words.at, count, turn, split);
        seen_plain = plain->split2(words.at, count, turn, want);
        loops->merge2(merge, count, turn, back.at);
    }
    assert_int_equal(seen, seen_plain);
    assert_memory_equal(planes.at, wanted.at, width * count);
    assert_memory_equal(back.at, words.at, width * count);
    give(words), give(back), give(planes), give(wanted);
}

static void every_version_splits_and_merges_alike(void **unused)
{
    (void)unused;
    for (size_t v = 0; ckpt_loops_at(v) != NULL; v++) {
        for (size_t c = 0; c < COUNTS; c++) {
            for (unsigned turn = 0; turn < 6; turn++) {
                check_split(ckpt_loops_at(v), 4, counts[c], turn, true);
                check_split(ckpt_loops_at(v), 4, counts[c], turn, false);
                check_split(ckpt_loops_at(v), 2, counts[c], turn % 2, true);
                check_split(ckpt_loops_at(v), 2, counts[c], turn % 2, false);
            }
        }
    }
}

static void one_sign_anywhere_is_seen(void **unused)
{
    (void)unused;
    uint8_t words[4 * 200] = { 0 }, planes[4 * 200];
    uint8_t *const split[4] = { planes, planes + 200, planes + 400, planes + 600 };
    for (size_t v = 0; ckpt_loops_at(v) != NULL; v++) {
        assert_false(ckpt_loops_at(v)->split4(words, 200, 1, split));
        for (size_t i = 0; i < 200; i++) {
            words[4 * i + 3] = 0x80;
            assert_true(ckpt_loops_at(v)->split4(words, 200, 1, split));
            assert_true(ckpt_loops_at(v)->split2(words, 400, 1, split));
            words[4 * i + 3] = 0;
        }
    }
}

static void differences_and_predictions_are_alike_and_reversible(void **unused)
{
    (void)unused;
    for (size_t v = 0; ckpt_loops_at(v) != NULL; v++) {
        const struct plane_loops *loops = ckpt_loops_at(v), *plain = ckpt_loops_at(0);
        for (size_t c = 0; c < COUNTS; c++) {
            size_t count = counts[c];
            struct bytes words = take(4 * count, 5), base = take(4 * count, 6);
            struct bytes out = take(4 * count, 7), want = take(4 * count, 8);
            auto_free int16_t *terms = malloc(2 * count + 1);
            assert_non_null(terms);
            memcpy(terms, base.at, 2 * count);
            loops->differ4(words.at, base.at, count, out.at);
            plain->differ4(words.at, base.at, count, want.at);
            assert_memory_equal(out.at, want.at, 4 * count);
            loops->undiffer4(out.at, base.at, count, out.at);
            assert_memory_equal(out.at, words.at, 4 * count);
            loops->differ2(words.at, base.at, 2 * count, out.at);
            plain->differ2(words.at, base.at, 2 * count, want.at);
            assert_memory_equal(out.at, want.at, 4 * count);
            loops->undiffer2(out.at, base.at, 2 * count, out.at);
            assert_memory_equal(out.at, words.at, 4 * count);
            loops->predict(words.at, terms, 0xc0ffee11, count, out.at);
            plain->predict(words.at, terms, 0xc0ffee11, count, want.at);
            assert_memory_equal(out.at, want.at, 4 * count);
            loops->unpredict(out.at, terms, 0xc0ffee11, count, out.at);
            assert_memory_equal(out.at, words.at, 4 * count);
            plain->undiffer4(words.at, base.at, count, out.at);
            loops->undiffer4(words.at, base.at, count, base.at); /* the result may be the base */
            assert_memory_equal(base.at, out.at, 4 * count);
            give(words), give(base), give(out), give(want);
        }
    }
}

static void seven_of_eight_bits_are_packed_alike(void **unused)
{
    (void)unused;
    for (size_t v = 0; ckpt_loops_at(v) != NULL; v++) {
        for (size_t c = 0; c < COUNTS; c++) {
            size_t count = counts[c], size = ckpt_packed7_size(count);
            struct bytes plane = take(count, 9), back = take(count, 10);
            struct bytes out = take(size, 11), want = take(size, 12);
            for (size_t i = 0; i < count; i++)
                plane.at[i] &= 0xfe;
            ckpt_loops_at(v)->pack7(plane.at, count, out.at);
            ckpt_loops_at(0)->pack7(plane.at, count, want.at);
            assert_memory_equal(out.at, want.at, size);
            ckpt_loops_at(v)->unpack7(out.at, count, back.at);
            assert_memory_equal(back.at, plane.at, count);
            give(plane), give(back), give(out), give(want);
        }
    }
}

/* rarely: of how many bytes one is far from the others. */
static void check_nibbles(const struct plane_loops *loops, size_t count, unsigned rarely)
{
    const struct plane_loops *plain = ckpt_loops_at(0);
    size_t size = ckpt_nibble_size(count);
    struct bytes bytes = take(count, 13), back = take(count, 14);
    struct bytes codes = take(size, 15), want = take(size, 16);
    struct bytes escapes = take(count + CKPT_NIBBLE_SLACK, 17);
    struct bytes escapes_want = take(count + CKPT_NIBBLE_SLACK, 18);
    for (size_t i = 0; i < count; i++) {
        if (bytes.at[i] % rarely != 0)
            bytes.at[i] = (uint8_t)(3 - bytes.at[i] % 15);
    }
    size_t n = loops->nibbles(bytes.at, count, 3, codes.at, escapes.at);
    assert_int_equal(n, plain->nibbles(bytes.at, count, 3, want.at, escapes_want.at));
    assert_memory_equal(codes.at, want.at, size);
    assert_memory_equal(escapes.at, escapes_want.at, n);
    struct bytes exact = take(n, 19); /* not a byte behind the escapes is read */
    memcpy(exact.at, escapes.at, n);
    assert_true(loops->unnibbles(codes.at, exact.at, n, count, 3, back.at));
    assert_memory_equal(back.at, bytes.at, count);
    if (n > 0)
        assert_false(loops->unnibbles(codes.at, exact.at, n - 1, count, 3, back.at));
    assert_false(loops->unnibbles(codes.at, escapes.at, n + 1, count, 3, back.at));
    give(bytes), give(back), give(codes), give(want);
    give(escapes), give(escapes_want), give(exact);
}

static void nibbles_with_few_and_with_many_escapes_are_alike(void **unused)
{
    (void)unused;
    for (size_t v = 0; ckpt_loops_at(v) != NULL; v++) {
        for (size_t c = 0; c < COUNTS; c++) {
            check_nibbles(ckpt_loops_at(v), counts[c], 1);
            check_nibbles(ckpt_loops_at(v), counts[c], 2);
            check_nibbles(ckpt_loops_at(v), counts[c], 97);
            check_nibbles(ckpt_loops_at(v), counts[c], 256);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_differ_and_the_plain_version_is_the_first),
        cmocka_unit_test(every_version_splits_and_merges_alike),
        cmocka_unit_test(one_sign_anywhere_is_seen),
        cmocka_unit_test(differences_and_predictions_are_alike_and_reversible),
        cmocka_unit_test(seven_of_eight_bits_are_packed_alike),
        cmocka_unit_test(nibbles_with_few_and_with_many_escapes_are_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
