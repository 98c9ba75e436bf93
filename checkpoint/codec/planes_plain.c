#include "checkpoint/codec/planes.h"
#include "checkpoint/codec/planes_isa.h"
#define PLANES_TARGET
#include "checkpoint/codec/planes_loops.h"

static bool split4(const void *words, size_t count, unsigned turn, uint8_t *const plane[4])
{
    return loop_split4(words, 0, count, turn, plane);
}

static bool split2(const void *words, size_t count, unsigned turn, uint8_t *const plane[2])
{
    return loop_split2(words, 0, count, turn, plane);
}

static void merge4(const uint8_t *const plane[4], size_t count, unsigned turn, void *words)
{
    loop_merge4(plane, 0, count, turn, words);
}

static void merge2(const uint8_t *const plane[2], size_t count, unsigned turn, void *words)
{
    loop_merge2(plane, 0, count, turn, words);
}

static void pack7(const uint8_t *plane, size_t count, uint8_t *out)
{
    loop_pack7(plane, 0, count, out);
}

static void unpack7(const uint8_t *packed, size_t count, uint8_t *out)
{
    loop_unpack7(packed, 0, count, out);
}

static size_t nibbles(const uint8_t *bytes, size_t count, uint8_t top, uint8_t *codes,
                      uint8_t *escapes)
{
    uint8_t *escape = escapes;
    for (size_t at = 0; at < count; at += CKPT_NIBBLE_GROUP) {
        size_t size = count - at < CKPT_NIBBLE_GROUP ? count - at : CKPT_NIBBLE_GROUP;
        nibble_group(bytes + at, size, top, codes + at / 2, &escape);
    }
    return (size_t)(escape - escapes);
}

static bool unnibbles(const uint8_t *codes, const uint8_t *escapes, size_t escape_count,
                      size_t count, uint8_t top, uint8_t *bytes)
{
    const uint8_t *escape = escapes, *end = escapes + escape_count;
    for (size_t at = 0; at < count; at += CKPT_NIBBLE_GROUP) {
        size_t size = count - at < CKPT_NIBBLE_GROUP ? count - at : CKPT_NIBBLE_GROUP;
        if (!unnibble_group(codes + at / 2, size, top, &escape, end, bytes + at))
            return false;
    }
    return escape == end;
}

static const struct plane_loops loops = {
    .name = "plain",
    .split4 = split4,
    .split2 = split2,
    .merge4 = merge4,
    .merge2 = merge2,
    PLANES_COMPILED,
    .pack7 = pack7,
    .unpack7 = unpack7,
    .nibbles = nibbles,
    .unnibbles = unnibbles,
    .count = count_values,
    .put_codes = put_codes,
};

const struct plane_loops *ckpt_loops_plain(void)
{
    return &loops;
}
