/*
 * Every level and every way to make planes gives back what it got, and what was stored by earlier
 * programs is read.
 *
 *     test_ckpt_codec_levels --write FOLDER      makes the golden chunks, as stored today
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "checkpoint/codec/chunk.h"
#include "common/cleanup.h"
#include "tests/test.h"
#include "tests/unit/checkpoint/codec/codec_content.h"

#define FOLDER SOURCE_DIR "/tests/golden/checkpoint/chunks"

static const enum ckpt_level all_levels[] = { CKPT_FAST, CKPT_DEFAULT, CKPT_MAX };
static const uint32_t sizes[] = { 8, 40, 1000, 65528, 300000, 1048568, 1048576 };

static uint32_t width_of(uint32_t dtype)
{
    return dtype == CKPT_BF16 || dtype == CKPT_F16 ? 2 : 4;
}

/* All frames, each to its end, as stock zstd walks them: skippable ones and its own. */
static void walk_frames(const uint8_t *stored, size_t size)
{
    auto_free uint8_t *plane = malloc(DISK_CHUNK_BYTES);
    assert_non_null(plane);
    while (size > 0) {
        size_t frame = ZSTD_findFrameCompressedSize(stored, size);
        assert_false(ZSTD_isError(frame));
        assert_true(frame > 0 && frame <= size);
        size_t done = ZSTD_decompress(plane, DISK_CHUNK_BYTES, stored, frame);
        assert_false(ZSTD_isError(done));
        stored += frame;
        size -= frame;
    }
}

struct buffers {
    uint8_t *raw, *base, *back, *stored;
};

static struct buffers take(void)
{
    struct buffers b = { malloc(DISK_CHUNK_BYTES), malloc(DISK_CHUNK_BYTES),
                         malloc(DISK_CHUNK_BYTES), malloc(DISK_STORED_MAX) };
    assert_true(b.raw != NULL && b.base != NULL && b.back != NULL && b.stored != NULL);
    return b;
}

static void give(struct buffers *b)
{
    free(b->raw);
    free(b->base);
    free(b->back);
    free(b->stored);
}

static void round_trip(struct ckpt_codec *codec, uint32_t dtype, const struct buffers *b,
                       const uint8_t *base, uint32_t size)
{
    struct disk_chunk chunk = { 0 };
    assert_int_equal(ckpt_encode(codec, dtype, b->raw, base, size, &chunk, b->stored), ST_OK);
    assert_true(chunk.stored_size <= size + 4 * DISK_FRAME_BYTES);
    walk_frames(b->stored, chunk.stored_size);
    memset(b->back, 0xa5, size);
    assert_int_equal(ckpt_decode(codec, &chunk, b->stored, base, b->back), ST_OK);
    assert_memory_equal(b->raw, b->back, size);
    if (chunk.codec == DISK_DELTA) { /* the base is needed, and may be what is overwritten */
        assert_int_equal(ckpt_decode(codec, &chunk, b->stored, NULL, b->back), ST_INVALID);
        memcpy(b->back, base, size);
        assert_int_equal(ckpt_decode(codec, &chunk, b->stored, b->back, b->back), ST_OK);
        assert_memory_equal(b->raw, b->back, size);
    }
}

static void every_level_gives_back_every_content(void **unused)
{
    (void)unused;
    struct buffers b = take();
    for (size_t l = 0; l < 3; l++) {
        struct ckpt_codec *codec = NULL;
        assert_int_equal(ckpt_codec_new(all_levels[l], &codec), ST_OK);
        for (enum content content = 0; content < CONTENTS; content++) {
            for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
                for (uint32_t dtype = CKPT_F32; dtype <= CKPT_U8; dtype++) {
                    content_fill(content, width_of(dtype), b.raw, sizes[s]);
                    round_trip(codec, dtype, &b, NULL, sizes[s]);
                    if (s % 3 == 0) {
                        content_fill(CONTENT_SIGNED, width_of(dtype), b.base, sizes[s]);
                        round_trip(codec, dtype, &b, b.base, sizes[s]);
                    }
                }
            }
        }
        ckpt_codec_free(codec);
    }
    give(&b);
}

static struct disk_chunk encode(enum ckpt_level level, enum content content, bool base,
                                const struct buffers *b)
{
    struct ckpt_codec *codec = NULL;
    struct disk_chunk chunk = { 0 };
    assert_int_equal(ckpt_codec_new(level, &codec), ST_OK);
    content_fill(content, 4, b->raw, DISK_CHUNK_BYTES);
    content_fill(CONTENT_SIGNED, 4, b->base, DISK_CHUNK_BYTES);
    assert_int_equal(ckpt_encode(codec, CKPT_F32, b->raw, base ? b->base : NULL, DISK_CHUNK_BYTES,
                                 &chunk, b->stored),
                     ST_OK);
    ckpt_codec_free(codec);
    return chunk;
}

static void each_content_gets_the_codec_that_is_smallest(void **unused)
{
    (void)unused;
    static const struct {
        enum ckpt_level level;
        enum content content;
        bool base;
        uint32_t percent_max;
        enum disk_codec codec;
        enum disk_mode highest; /* of the highest plane */
    } cases[] = {
        { CKPT_FAST, CONTENT_SIGNED, false, 88, DISK_ROTATED, DISK_NIBBLES },
        { CKPT_FAST, CONTENT_UNSIGNED, false, 85, DISK_ROTATED_PACKED, DISK_NIBBLES },
        { CKPT_DEFAULT, CONTENT_SIGNED, false, 82, DISK_ROTATED, DISK_ZSTD },
        { CKPT_DEFAULT, CONTENT_UNSIGNED, false, 79, DISK_ROTATED_PACKED, DISK_ZSTD },
        { CKPT_MAX, CONTENT_SIGNED, false, 82, DISK_ROTATED, DISK_ZSTD },
        { CKPT_MAX, CONTENT_UNSIGNED, false, 79, DISK_ROTATED_PACKED, DISK_ZSTD },
        { CKPT_MAX, CONTENT_TABLE, false, 72, DISK_TABLE_PACKED, DISK_ZSTD },
        { CKPT_MAX, CONTENT_TABLE_ODD, false, 75, DISK_TABLE, DISK_ZSTD },
        { CKPT_DEFAULT, CONTENT_NEXT, true, 21, DISK_DELTA, DISK_ZSTD },
        { CKPT_DEFAULT, CONTENT_NOISE, true, 101, DISK_ROTATED, DISK_RAW },
        { CKPT_DEFAULT, CONTENT_ZEROS, true, 1, DISK_ROTATED, DISK_ZSTD },
    };
    struct buffers b = take();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct disk_chunk chunk = encode(cases[i].level, cases[i].content, cases[i].base, &b);
        if (chunk.stored_size > DISK_CHUNK_BYTES / 100 * cases[i].percent_max ||
            chunk.codec != cases[i].codec || chunk.plane_mode[3] != cases[i].highest)
            fail_msg("case %zu: codec %u, mode %u, %u bytes", i, chunk.codec, chunk.plane_mode[3],
                     chunk.stored_size);
    }
    give(&b);
}

static void the_same_bytes_are_stored_every_time(void **unused)
{
    (void)unused;
    struct buffers b = take();
    auto_free uint8_t *first = malloc(DISK_STORED_MAX);
    assert_non_null(first);
    for (size_t l = 0; l < 3; l++) {
        struct disk_chunk one = encode(all_levels[l], CONTENT_TABLE, false, &b);
        memcpy(first, b.stored, one.stored_size);
        struct disk_chunk two = encode(all_levels[l], CONTENT_TABLE, false, &b);
        assert_memory_equal(&one, &two, sizeof(one));
        assert_memory_equal(first, b.stored, one.stored_size);
    }
    give(&b);
}

/* Chunks on disk, of every codec and plane mode. */
static const struct golden {
    const char *name;
    enum ckpt_level level;
    enum content content;
    enum ckpt_dtype dtype;
    uint32_t raw_size;
    bool base;
} goldens[] = {
    { "bytes", CKPT_DEFAULT, CONTENT_TEXT, CKPT_I32, 4000, false },
    { "rotated", CKPT_DEFAULT, CONTENT_SIGNED, CKPT_F32, 8004, false },
    { "rotated-coded", CKPT_DEFAULT, CONTENT_SIGNED, CKPT_F32, 8004, false }, /* by our coder */
    { "rotated-bf16", CKPT_DEFAULT, CONTENT_SIGNED, CKPT_BF16, 8002, false },
    { "rotated-packed", CKPT_DEFAULT, CONTENT_UNSIGNED, CKPT_F32, 8004, false },
    { "nibbles", CKPT_FAST, CONTENT_SIGNED, CKPT_F32, 8004, false },
    { "delta", CKPT_DEFAULT, CONTENT_NEXT, CKPT_F32, 8004, true },
    { "delta-f16", CKPT_DEFAULT, CONTENT_NEXT, CKPT_F16, 8002, true },
    { "table", CKPT_MAX, CONTENT_TABLE_ODD, CKPT_F32, 66000, false },
    { "table-packed", CKPT_MAX, CONTENT_TABLE, CKPT_F32, 66000, false },
};
#define GOLDENS (sizeof(goldens) / sizeof(goldens[0]))

static const uint8_t *golden_base(const struct golden *golden, const struct buffers *b)
{
    if (!golden->base)
        return NULL;
    content_fill(CONTENT_SIGNED, width_of(golden->dtype), b->base, golden->raw_size);
    return b->base;
}

static struct ckpt_chunk_place golden_place(const struct golden *golden)
{
    return (struct ckpt_chunk_place){ 2, 5, golden->dtype, golden->raw_size };
}

static void stored_chunks_of_every_codec_are_read(void **unused)
{
    (void)unused;
    struct buffers b = take();
    struct ckpt_codec *codec = NULL;
    assert_int_equal(ckpt_codec_new(CKPT_DEFAULT, &codec), ST_OK);
    unsigned codecs = 0, modes = 0;
    for (size_t i = 0; i < GOLDENS; i++) {
        const struct golden *golden = &goldens[i];
        char path[512];
        (void)snprintf(path, sizeof(path), "%s/%s.chunk", FOLDER, golden->name);
        FILE *in = fopen(path, "rb");
        assert_non_null(in);
        size_t size = fread(b.stored, 1, DISK_STORED_MAX, in);
        (void)fclose(in);
        struct disk_chunk head;
        memcpy(&head, b.stored, sizeof(head));
        codecs |= 1u << head.codec;
        for (size_t p = 0; p < head.plane_count; p++)
            modes |= 1u << head.plane_mode[p];
        struct ckpt_chunk_place place = golden_place(golden);
        const char *what = NULL;
        const uint8_t *base = golden_base(golden, &b);
        assert_int_equal(ckpt_chunk_needs_base(b.stored, (uint32_t)size), golden->base);
        assert_int_equal(
            ckpt_chunk_read(codec, &place, b.stored, (uint32_t)size, base, b.back, &what), ST_OK);
        content_fill(golden->content, width_of(golden->dtype), b.raw, golden->raw_size);
        assert_memory_equal(b.raw, b.back, golden->raw_size);
        if (golden->base)
            assert_int_equal(
                ckpt_chunk_read(codec, &place, b.stored, (uint32_t)size, NULL, b.back, &what),
                ST_INVALID);
    }
    assert_int_equal(codecs, 0x7e); /* 1 to 6 */
    assert_int_equal(modes, 7);     /* 0 to 2 */
    ckpt_codec_free(codec);
    give(&b);
}

static int write_goldens(const char *folder)
{
    struct buffers b = take();
    auto_free uint8_t *bytes = malloc(DISK_CHUNK_MAX);
    for (size_t i = 0; i < GOLDENS && bytes != NULL; i++) {
        const struct golden *golden = &goldens[i];
        struct ckpt_codec *codec = NULL;
        struct ckpt_chunk_place place = golden_place(golden);
        uint32_t size = 0;
        content_fill(golden->content, width_of(golden->dtype), b.raw, golden->raw_size);
        if (ckpt_codec_new(golden->level, &codec) != ST_OK ||
            ckpt_chunk_make(codec, &place, b.raw, golden_base(golden, &b), 4096, bytes, &size) !=
                ST_OK)
            return 1;
        ckpt_codec_free(codec);
        char path[512];
        (void)snprintf(path, sizeof(path), "%s/%s.chunk", folder, golden->name);
        FILE *out = fopen(path, "wbx");
        if (out == NULL || fwrite(bytes, 1, size, out) != size || fclose(out) != 0)
            return 1;
    }
    give(&b);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--write") == 0)
        return write_goldens(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_level_gives_back_every_content),
        cmocka_unit_test(each_content_gets_the_codec_that_is_smallest),
        cmocka_unit_test(the_same_bytes_are_stored_every_time),
        cmocka_unit_test(stored_chunks_of_every_codec_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
