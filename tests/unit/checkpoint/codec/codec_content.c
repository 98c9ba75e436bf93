#include "tests/unit/checkpoint/codec/codec_content.h"

#include <string.h>

#include "common/rng.h"

#define COLUMNS 200u
#define BEGIN   120u

static uint32_t float_bits(uint32_t random, uint32_t more)
{
    uint32_t exponent = 124 - (uint32_t)__builtin_ctz(more | 1u << 20);
    return exponent << 23 | (random & 0x7fffffu);
}

static uint32_t word_of(enum content content, uint32_t i)
{
    struct rng_counter r = rng_words(4, i, 0, 0, 0);
    uint32_t column = (i + COLUMNS - BEGIN) % COLUMNS, row = (i + COLUMNS - BEGIN) / COLUMNS;
    switch (content) {
    case CONTENT_SIGNED:
        return float_bits(r.word[0], r.word[1]) | (r.word[2] & 1) << 31;
    case CONTENT_NEXT:
        return (float_bits(r.word[0], r.word[1]) | (r.word[2] & 1) << 31) + (r.word[3] & 63);
    case CONTENT_UNSIGNED:
        return float_bits(r.word[0], r.word[1]);
    case CONTENT_TABLE:
    case CONTENT_TABLE_ODD:
        if (content == CONTENT_TABLE_ODD && i % 100 == 0)
            return r.word[0] >> 2;
        return (90u << 23) + ((column * 37 % 64 + row * 29 % 64) << 20) + (r.word[0] >> 10);
    case CONTENT_TEXT:
        return (uint32_t) "abcdefgh"[r.word[0] % 8] * 0x01010101u;
    case CONTENT_NOISE:
        return r.word[3];
    case CONTENT_ZEROS:
    case CONTENTS:
        break;
    }
    return 0;
}

void content_fill(enum content content, size_t width, uint8_t *out, size_t size)
{
    for (size_t i = 0; i * width < size; i++) {
        uint32_t word = word_of(content, (uint32_t)i) >> (32 - 8 * width);
        size_t left = size - i * width;
        memcpy(out + i * width, &word, left < width ? left : width);
    }
}
