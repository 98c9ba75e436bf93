/* Whatever bytes the decoder gets, it says so or gives numbers; it never leaves its memory. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/codec/codec.h"
#include "common/cleanup.h"
#include "common/rng.h"
#include "tests/test.h"
#include "tests/unit/checkpoint/codec/codec_content.h"

#define SIZE   66000u /* of the raw bytes: more than a block of nibbles, enough for tables */
#define ROUNDS 400u

static const struct {
    enum ckpt_level level;
    enum content content;
    bool base;
    enum disk_codec codec;
} kinds[] = {
    { CKPT_DEFAULT, CONTENT_SIGNED, false, DISK_ROTATED },
    { CKPT_DEFAULT, CONTENT_UNSIGNED, false, DISK_ROTATED_PACKED },
    { CKPT_FAST, CONTENT_SIGNED, false, DISK_ROTATED },
    { CKPT_DEFAULT, CONTENT_NEXT, true, DISK_DELTA },
    { CKPT_MAX, CONTENT_TABLE, false, DISK_TABLE_PACKED },
    { CKPT_MAX, CONTENT_TABLE_ODD, false, DISK_TABLE },
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

struct encoded {
    struct ckpt_codec *codec;
    struct disk_chunk chunk;
    uint8_t *base, *back, *stored;
};

static struct encoded encode(size_t kind)
{
    struct encoded e = { .base = malloc(SIZE), .back = malloc(SIZE) };
    auto_free uint8_t *raw = malloc(SIZE), *stored = malloc(DISK_STORED_MAX);
    assert_true(e.base != NULL && e.back != NULL && raw != NULL && stored != NULL);
    assert_int_equal(ckpt_codec_new(kinds[kind].level, &e.codec), ST_OK);
    content_fill(kinds[kind].content, 4, raw, SIZE);
    content_fill(CONTENT_SIGNED, 4, e.base, SIZE);
    assert_int_equal(ckpt_encode(e.codec, CKPT_F32, raw, kinds[kind].base ? e.base : NULL, SIZE,
                                 &e.chunk, stored),
                     ST_OK);
    assert_int_equal(e.chunk.codec, kinds[kind].codec);
    e.stored = malloc(e.chunk.stored_size); /* just as long, so that a sanitizer sees its end */
    assert_non_null(e.stored);
    memcpy(e.stored, stored, e.chunk.stored_size);
    return e;
}

static void release(struct encoded *e)
{
    ckpt_codec_free(e->codec);
    free(e->base);
    free(e->back);
    free(e->stored);
}

static bool decode(struct encoded *e, const struct disk_chunk *chunk, const uint8_t *stored)
{
    enum status st = ckpt_decode(e->codec, chunk, stored, e->base, e->back);
    assert_true(st == ST_OK || st == ST_CORRUPT || st == ST_VERSION);
    return st == ST_OK;
}

static void changed_stored_bytes_are_survived(void **unused)
{
    (void)unused;
    for (size_t kind = 0; kind < KINDS; kind++) {
        struct encoded e = encode(kind);
        unsigned refused = 0;
        for (uint32_t round = 0; round < ROUNDS; round++) {
            struct rng_counter r = rng_words(20 + kind, round, 0, 0, 0);
            uint32_t at = r.word[0] % e.chunk.stored_size;
            if (round % 2 == 0) { /* a frame's head, where most checks are */
                at = 0;
                for (uint32_t p = 0; p < r.word[2] % e.chunk.plane_count; p++)
                    at += e.chunk.plane_size[p];
                at += r.word[0] % 16;
            }
            uint8_t old = e.stored[at];
            e.stored[at] ^= (uint8_t)(1u << r.word[1] % 8);
            refused += !decode(&e, &e.chunk, e.stored);
            e.stored[at] = old;
        }
        assert_true(refused > 0);
        assert_true(decode(&e, &e.chunk, e.stored));
        release(&e);
    }
}

static void changed_heads_are_survived(void **unused)
{
    (void)unused;
    for (size_t kind = 0; kind < KINDS; kind++) {
        struct encoded e = encode(kind);
        for (uint32_t round = 0; round < 4 * ROUNDS; round++) {
            struct rng_counter r = rng_words(40 + kind, round, 0, 0, 0);
            struct disk_chunk chunk = e.chunk;
            size_t first = offsetof(struct disk_chunk, raw_size);
            size_t span = offsetof(struct disk_chunk, raw_hash) - first;
            ((uint8_t *)&chunk)[first + r.word[0] % span] ^= (uint8_t)(1u << r.word[1] % 8);
            if (round % 3 == 0) { /* sizes that still add up */
                chunk = e.chunk;
                uint32_t moved = r.word[2] % 200;
                chunk.plane_size[r.word[0] % chunk.plane_count] += moved;
                chunk.plane_size[r.word[1] % chunk.plane_count] -= moved;
            }
            uint64_t sum = 0;
            for (size_t p = 0; p < DISK_PLANES; p++)
                sum += chunk.plane_size[p];
            bool inside =
                chunk.stored_size == e.chunk.stored_size; /* as the chunk's reader wants */
            if (inside && chunk.raw_size <= SIZE)
                (void)decode(&e, &chunk, e.stored);
            if (inside && sum != chunk.stored_size)
                assert_false(chunk.raw_size <= SIZE && decode(&e, &chunk, e.stored));
        }
        release(&e);
    }
}

static void random_bytes_are_survived(void **unused)
{
    (void)unused;
    for (size_t kind = 0; kind < KINDS; kind++) {
        struct encoded e = encode(kind);
        for (uint32_t round = 0; round < ROUNDS / 10; round++) {
            uint32_t at = 0;
            for (size_t p = 0; p < e.chunk.plane_count; p++) { /* all but the frames' heads */
                uint32_t skip = round % 4 == 0 ? 0 : round % 4 == 1 ? 8 : 14;
                for (uint32_t i = skip; i < e.chunk.plane_size[p]; i++)
                    e.stored[at + i] = (uint8_t)rng_words(60, round, i, at, 0).word[0];
                at += e.chunk.plane_size[p];
            }
            (void)decode(&e, &e.chunk, e.stored);
        }
        release(&e);
    }
}

/* Puts a raw plane of terms in the place of the stored ones. */
static bool decode_terms(struct encoded *e, const uint8_t *terms, uint32_t size)
{
    struct disk_chunk chunk = e->chunk;
    uint32_t at = chunk.stored_size - chunk.plane_size[4];
    chunk.stored_size = at + DISK_FRAME_BYTES + size;
    chunk.plane_size[4] = DISK_FRAME_BYTES + size;
    chunk.plane_mode[4] = DISK_RAW;
    auto_free uint8_t *stored = malloc(chunk.stored_size);
    assert_non_null(stored);
    memcpy(stored, e->stored, at);
    const uint32_t head[2] = { DISK_FRAME_PLANE, size };
    memcpy(stored + at, head, sizeof(head));
    if (size > 0)
        memcpy(stored + at + sizeof(head), terms, size);
    return decode(e, &chunk, stored);
}

static void terms_that_lie_are_refused(void **unused)
{
    (void)unused;
    struct encoded e = encode(4);
    uint32_t words = SIZE / 4, columns = 100;
    uint32_t whole = 8 + 2 * (columns + words / columns);
    auto_free uint8_t *terms = calloc(1, whole + 1);
    assert_non_null(terms);
    const uint16_t shape[2] = { (uint16_t)columns, 0 };
    memcpy(terms + 4, shape, sizeof(shape));
    assert_true(decode_terms(&e, terms, whole));
    assert_false(decode_terms(&e, terms, whole + 1));
    for (uint32_t size = 0; size < whole; size++)
        assert_false(decode_terms(&e, terms, size));
    const uint16_t bad[][2] = { { 0, 0 }, { 100, 100 }, { 100, 65535 }, { 99, 0 }, { 65535, 0 } };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        memcpy(terms + 4, bad[i], sizeof(bad[i]));
        assert_false(decode_terms(&e, terms, whole));
    }
    release(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(changed_stored_bytes_are_survived),
        cmocka_unit_test(changed_heads_are_survived),
        cmocka_unit_test(random_bytes_are_survived),
        cmocka_unit_test(terms_that_lie_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
