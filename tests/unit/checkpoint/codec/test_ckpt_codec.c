/* The codec gives back every bit of every kind of number, and refuses what isn't its own. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/codec/chunk.h"
#include "checkpoint/codec/planes_choose.h"
#include "common/cleanup.h"
#include "common/rng.h"
#include "tests/test.h"

/* What numbers there are in a chunk. */
enum numbers {
    NUMBERS_ZEROS,
    NUMBERS_WEIGHTS,
    NUMBERS_SQUARES,
    NUMBERS_NOISE,
    NUMBERS_SPECIAL,
    NUMBERS_ONE_NEGATIVE,
    NUMBERS_RAMP,
    NUMBERS
};

static float number(enum numbers numbers, uint64_t i)
{
    static const float special[] = { 0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-45f, -3e38f };
    struct rng_counter words = rng_words(3, (uint32_t)i, 0, 0, 0);
    float value = 0, noise;
    memcpy(&noise, &words.word[1], sizeof(noise));
    for (int k = 0; k < 4; k++)
        value += rng_uniform(words.word[k]) - 0.5f;
    switch (numbers) {
    case NUMBERS_WEIGHTS:
        return value;
    case NUMBERS_SQUARES:
        return value * value;
    case NUMBERS_NOISE:
        return noise;
    case NUMBERS_SPECIAL:
        return special[words.word[0] % 7];
    case NUMBERS_ONE_NEGATIVE:
        return i == 11 ? -1.0f : value * value;
    case NUMBERS_RAMP:
        return (float)i;
    case NUMBERS_ZEROS:
    case NUMBERS:
        break;
    }
    return 0;
}

static void fill(uint8_t *raw, size_t size, enum numbers numbers)
{
    for (size_t i = 0; i < size; i += 4) {
        float value = number(numbers, i / 4);
        memcpy(raw + i, &value, size - i < 4 ? size - i : 4);
    }
}

static void every_kind_of_chunk_comes_back_bit_for_bit(void **unused)
{
    (void)unused;
    static const uint32_t sizes[] = { 8, 16, 24, 40, 1000, 4096, 65528, 1048568, 1048576 };
    struct ckpt_codec *codec = NULL;
    assert_int_equal(ckpt_codec_new(CKPT_DEFAULT, &codec), ST_OK);
    auto_free uint8_t *raw = malloc(DISK_CHUNK_BYTES), *back = malloc(DISK_CHUNK_BYTES);
    auto_free uint8_t *stored = malloc(DISK_CHUNK_MAX);
    assert_true(raw != NULL && back != NULL && stored != NULL);
    for (enum numbers numbers = NUMBERS_ZEROS; numbers < NUMBERS; numbers++) {
        for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            fill(raw, sizes[s], numbers);
            for (uint32_t dtype = CKPT_F32; dtype <= CKPT_U8; dtype++) {
                struct ckpt_chunk_place place = { 3, 7, dtype, sizes[s] };
                uint32_t size = 0;
                const char *what = NULL;
                assert_int_equal(ckpt_chunk_make(codec, &place, raw, NULL, 4104, stored, &size),
                                 ST_OK);
                assert_true(size <= sizes[s] + 104 + 64 + 32);
                memset(back, 0xa5, sizes[s]);
                assert_int_equal(ckpt_chunk_read(codec, &place, stored, size, NULL, back, &what),
                                 ST_OK);
                assert_memory_equal(raw, back, sizes[s]);
            }
        }
    }
    ckpt_codec_free(codec);
}

static void weights_get_smaller_and_noise_does_not_grow(void **unused)
{
    (void)unused;
    struct ckpt_codec *codec = NULL;
    assert_int_equal(ckpt_codec_new(CKPT_DEFAULT, &codec), ST_OK);
    auto_free uint8_t *raw = malloc(DISK_CHUNK_BYTES);
    auto_free uint8_t *stored = malloc(DISK_STORED_MAX);
    assert_true(raw != NULL && stored != NULL);
    static const struct {
        enum numbers numbers;
        uint32_t percent_max;
        enum disk_codec codec;
    } cases[] = {
        { NUMBERS_ZEROS, 1, DISK_ROTATED },
        { NUMBERS_WEIGHTS, 86, DISK_ROTATED },
        { NUMBERS_SQUARES, 86, DISK_ROTATED_PACKED },
        { NUMBERS_ONE_NEGATIVE, 88, DISK_ROTATED },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct disk_chunk chunk = { 0 };
        fill(raw, DISK_CHUNK_BYTES, cases[i].numbers);
        assert_int_equal(ckpt_encode(codec, CKPT_F32, raw, NULL, DISK_CHUNK_BYTES, &chunk, stored),
                         ST_OK);
        assert_true(chunk.stored_size <= DISK_CHUNK_BYTES / 100 * cases[i].percent_max);
        assert_int_equal(chunk.codec, cases[i].codec);
    }
    for (uint32_t i = 0; i < DISK_CHUNK_BYTES; i += 4) {
        struct rng_counter words = rng_words(9, i, 0, 0, 0);
        memcpy(raw + i, &words.word[0], 4);
    }
    struct disk_chunk chunk = { 0 };
    assert_int_equal(ckpt_encode(codec, CKPT_F32, raw, NULL, DISK_CHUNK_BYTES, &chunk, stored),
                     ST_OK);
    assert_int_equal(chunk.stored_size, DISK_CHUNK_BYTES + 4 * DISK_FRAME_BYTES);
    ckpt_codec_free(codec);
}

static void seven_of_eight_bits_are_packed_and_unpacked(void **unused)
{
    (void)unused;
    uint8_t plane[100], packed[100], back[100];
    for (size_t count = 0; count <= sizeof(plane); count++) {
        for (size_t i = 0; i < count; i++)
            plane[i] = (uint8_t)(i * 2 * 37);
        ckpt_loops()->pack7(plane, count, packed);
        memset(back, 1, sizeof(back));
        ckpt_loops()->unpack7(packed, count, back);
        assert_memory_equal(plane, back, count);
    }
    const uint8_t ends[8] = { 0xfe, 0, 0, 0, 0, 0, 0, 0xfe };
    ckpt_loops()->pack7(ends, 8, packed);
    assert_int_equal(packed[0], 0x7f); /* the first byte's seven bits lie lowest */
    assert_int_equal(packed[6], 0xfe);
}

static void planes_hold_rotated_words_lowest_byte_first(void **unused)
{
    (void)unused;
    const uint32_t word = 0x80c1a2b3u; /* rotated left: 0x01834567 */
    uint8_t bytes[4][1];
    uint8_t *const planes[4] = { bytes[0], bytes[1], bytes[2], bytes[3] };
    assert_true(ckpt_loops()->split4(&word, 1, 1, planes));
    assert_int_equal(bytes[0][0], 0x67);
    assert_int_equal(bytes[1][0], 0x45);
    assert_int_equal(bytes[2][0], 0x83);
    assert_int_equal(bytes[3][0], 0x01);
    const uint16_t half = 0x80c1; /* 0x0183 */
    assert_true(ckpt_loops()->split2(&half, 1, 1, planes));
    assert_int_equal(bytes[0][0], 0x83);
    assert_int_equal(bytes[1][0], 0x01);
}

static void headers_that_lie_are_refused(void **unused)
{
    (void)unused;
    struct ckpt_codec *codec = NULL;
    assert_int_equal(ckpt_codec_new(CKPT_DEFAULT, &codec), ST_OK);
    uint8_t raw[4000], stored[8000], back[4000];
    fill(raw, sizeof(raw), NUMBERS_WEIGHTS);
    struct disk_chunk good = { 0 };
    assert_int_equal(ckpt_encode(codec, CKPT_F32, raw, NULL, sizeof(raw), &good, stored), ST_OK);
    assert_int_equal(ckpt_decode(codec, &good, stored, NULL, back), ST_OK);
    for (int kind = 0; kind < 12; kind++) {
        struct disk_chunk chunk = good;
        chunk.dtype = kind == 0 ? 99 : chunk.dtype;
        chunk.codec = kind == 1 ? 9 : chunk.codec;
        chunk.plane_count = kind == 2 ? 3 : chunk.plane_count;
        chunk.plane_size[0] += kind == 3;
        chunk.plane_size[1] -= kind == 4 ? 8 : 0;
        chunk.plane_size[2] += kind == 4 ? 8 : 0;
        chunk.plane_mode[3] ^= kind == 5;
        chunk.plane_mode[5] = kind == 6;
        chunk.raw_size -= kind == 7 ? 4 : 0;
        chunk.raw_size += kind == 8 ? 1 : 0;
        chunk.raw_size = kind == 9 ? 0 : chunk.raw_size;
        chunk.codec = kind == 10 ? DISK_BYTES : chunk.codec;
        chunk.plane_mode[0] = kind == 11 ? 7 : chunk.plane_mode[0];
        enum status st = ckpt_decode(codec, &chunk, stored, NULL, back);
        assert_true(st == ST_CORRUPT || st == ST_VERSION);
    }
    ckpt_codec_free(codec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_chunk_comes_back_bit_for_bit),
        cmocka_unit_test(weights_get_smaller_and_noise_does_not_grow),
        cmocka_unit_test(seven_of_eight_bits_are_packed_and_unpacked),
        cmocka_unit_test(planes_hold_rotated_words_lowest_byte_first),
        cmocka_unit_test(headers_that_lie_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
