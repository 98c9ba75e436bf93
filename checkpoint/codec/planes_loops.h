/*
 * The definition of every loop. Only planes_*.c include this, each for one instruction set; the
 * compiler's vectoriser makes of a loop what that set allows.
 *
 * PLANES_TARGET  is defined by the including file: the attribute of the functions that are entries
 *                of struct plane_loops as they are (ENTRY). The others (LOOP) are parts of entries
 *                that are written by hand, and take on the target of what they are inlined into.
 */
#pragma once

#include <string.h>

#include "checkpoint/codec/planes.h"

#define LOOP  static inline __attribute__((always_inline, unused))
#define ENTRY PLANES_TARGET static __attribute__((unused))

/* The entries of a table that no version writes by hand. */
#define PLANES_COMPILED                                                                            \
    .differ4 = differ4, .differ2 = differ2, .undiffer4 = undiffer4, .undiffer2 = undiffer2,        \
    .predict = predict, .unpredict = unpredict, .accumulate = accumulate, .correlate = correlate,  \
    .pack4 = pack4, .unpack4 = unpack4

/* Words of any alignment, in memory of any type. */
typedef uint32_t word32 __attribute__((may_alias, aligned(1)));
typedef uint16_t word16 __attribute__((may_alias, aligned(1)));

/* Fetches what will be read or written soon: the machine's own guesses end with a page, and five
 * streams come to the end of one all the time. Beyond the end of memory nothing happens. */
#define WORDS_AHEAD  2048u /* bytes */
#define PLANES_AHEAD 1024u

LOOP void will_read(const void *at, size_t ahead)
{
    __builtin_prefetch((const char *)at + ahead, 0);
}

LOOP void will_write(const void *at, size_t ahead)
{
    __builtin_prefetch((const char *)at + ahead, 1);
}

LOOP uint32_t turn_left(uint32_t word, unsigned turn)
{
    return word << (turn & 31) | word >> (-turn & 31);
}

/* Words [first, count): also the ends that the vectors of other versions leave. */
LOOP bool loop_split4(const void *words, size_t first, size_t count, unsigned turn,
                      uint8_t *const plane[4])
{
    const word32 *restrict in = words;
    uint8_t *restrict a = plane[0];
    uint8_t *restrict b = plane[1];
    uint8_t *restrict c = plane[2];
    uint8_t *restrict d = plane[3];
    uint32_t all = 0;
    for (size_t i = first; i < count; i++) {
        uint32_t word = turn_left(in[i], turn);
        all |= in[i];
        a[i] = (uint8_t)word;
        b[i] = (uint8_t)(word >> 8);
        c[i] = (uint8_t)(word >> 16);
        d[i] = (uint8_t)(word >> 24);
    }
    return all >> 31 != 0;
}

LOOP void loop_merge4(const uint8_t *const plane[4], size_t first, size_t count, unsigned turn,
                      void *words)
{
    const uint8_t *restrict a = plane[0];
    const uint8_t *restrict b = plane[1];
    const uint8_t *restrict c = plane[2];
    const uint8_t *restrict d = plane[3];
    word32 *restrict out = words;
    for (size_t i = first; i < count; i++) {
        uint32_t word =
            (uint32_t)a[i] | (uint32_t)b[i] << 8 | (uint32_t)c[i] << 16 | (uint32_t)d[i] << 24;
        out[i] = turn_left(word, -turn);
    }
}

LOOP bool loop_split2(const void *words, size_t first, size_t count, unsigned turn,
                      uint8_t *const plane[2])
{
    const word16 *restrict in = words;
    uint8_t *restrict a = plane[0];
    uint8_t *restrict b = plane[1];
    uint16_t all = 0;
    for (size_t i = first; i < count; i++) {
        uint32_t word = (uint32_t)in[i] << turn | (uint32_t)in[i] >> (16 - turn);
        all |= in[i];
        a[i] = (uint8_t)word;
        b[i] = (uint8_t)(word >> 8);
    }
    return all >> 15 != 0;
}

LOOP void loop_merge2(const uint8_t *const plane[2], size_t first, size_t count, unsigned turn,
                      void *words)
{
    const uint8_t *restrict a = plane[0];
    const uint8_t *restrict b = plane[1];
    word16 *restrict out = words;
    for (size_t i = first; i < count; i++) {
        uint32_t word = (uint32_t)a[i] | (uint32_t)b[i] << 8;
        out[i] = (uint16_t)(word >> turn | word << (16 - turn));
    }
}

ENTRY void differ4(const void *words, const void *base, size_t count, void *out)
{
    const word32 *in = words, *from = base;
    word32 *to = out;
    for (size_t i = 0; i < count; i++) {
        uint32_t d = in[i] - from[i];
        to[i] = d << 1 ^ (0 - (d >> 31));
    }
}

ENTRY void undiffer4(const void *words, const void *base, size_t count, void *out)
{
    const word32 *in = words, *from = base;
    word32 *to = out;
    for (size_t i = 0; i < count; i++)
        to[i] = (in[i] >> 1 ^ (0 - (in[i] & 1))) + from[i];
}

ENTRY void differ2(const void *words, const void *base, size_t count, void *out)
{
    const word16 *in = words, *from = base;
    word16 *to = out;
    for (size_t i = 0; i < count; i++) {
        uint16_t d = (uint16_t)(in[i] - from[i]);
        to[i] = (uint16_t)((uint32_t)d << 1 ^ (0u - (d >> 15)));
    }
}

ENTRY void undiffer2(const void *words, const void *base, size_t count, void *out)
{
    const word16 *in = words, *from = base;
    word16 *to = out;
    for (size_t i = 0; i < count; i++)
        to[i] = (uint16_t)(((uint32_t)in[i] >> 1 ^ (0u - (in[i] & 1u))) + from[i]);
}

ENTRY void predict(const void *words, const int16_t *terms, uint32_t constant, size_t count,
                   void *out)
{
    const word32 *in = words;
    word32 *to = out;
    for (size_t i = 0; i < count; i++)
        to[i] = in[i] - constant - ((uint32_t)(int32_t)terms[i] << CKPT_TERM_SHIFT);
}

ENTRY void unpredict(const void *words, const int16_t *terms, uint32_t constant, size_t count,
                     void *out)
{
    const word32 *in = words;
    word32 *to = out;
    for (size_t i = 0; i < count; i++)
        to[i] = in[i] + constant + ((uint32_t)(int32_t)terms[i] << CKPT_TERM_SHIFT);
}

ENTRY uint64_t accumulate(const void *words, size_t count, uint32_t *restrict sums)
{
    const word32 *restrict in = words;
    uint64_t all = 0;
    for (size_t at = 0; at < count; at += 4096) { /* 2^19 each: 32 bits are enough */
        size_t end = count - at < 4096 ? count : at + 4096;
        uint32_t part = 0;
        for (size_t i = at; i < end; i++) {
            sums[i] += in[i] >> 13;
            part += in[i] >> 13;
        }
        all += part;
    }
    return all;
}

ENTRY void correlate(const int16_t *probe, size_t size, const int16_t *range, size_t lags,
                     int32_t *out)
{
    for (size_t k = 0; k < lags; k++) {
        int32_t sum = 0;
        for (size_t i = 0; i < size; i++)
            sum += probe[i] * range[k + i];
        out[k] = sum;
    }
}

ENTRY bool pack4(const uint8_t *plane, size_t count, uint8_t *restrict out)
{
    size_t half = (count + 1) / 2;
    uint8_t all = 0;
    for (size_t i = 0; i < count / 2; i++) {
        all |= plane[i] | plane[half + i];
        out[i] = (uint8_t)(plane[i] >> 4 | (plane[half + i] & 0xf0));
    }
    if (count % 2 != 0) {
        all |= plane[half - 1];
        out[half - 1] = plane[half - 1] >> 4;
    }
    return (all & 15) == 0;
}

ENTRY void unpack4(const uint8_t *packed, size_t count, uint8_t *restrict out)
{
    size_t half = (count + 1) / 2;
    for (size_t i = 0; i < half; i++)
        out[i] = (uint8_t)(packed[i] << 4);
    for (size_t i = half; i < count; i++)
        out[i] = packed[i - half] & 0xf0;
}

/* Seven bits of each of the eight bytes of x, side by side in 56. */
LOOP uint64_t squeeze(uint64_t x)
{
    x = (x >> 1) & 0x7f7f7f7f7f7f7f7fu;
    x = (x & 0x007f007f007f007fu) | (x & 0x7f007f007f007f00u) >> 1;
    x = (x & 0x00003fff00003fffu) | (x & 0x3fff00003fff0000u) >> 2;
    return (x & 0x000000000fffffffu) | (x & 0x0fffffff00000000u) >> 4;
}

LOOP uint64_t stretch(uint64_t x)
{
    x = (x & 0x000000000fffffffu) | (x & 0x00fffffff0000000u) << 4;
    x = (x & 0x00003fff00003fffu) | (x & 0x0fffc0000fffc000u) << 2;
    x = (x & 0x007f007f007f007fu) | (x & 0x3f803f803f803f80u) << 1;
    return x << 1;
}

/* Packs from byte first on, a multiple of 8. Every group but the last writes 8 bytes at once: the
 * eighth belongs to the next group, which writes it again. */
LOOP void loop_pack7(const uint8_t *plane, size_t first, size_t count, uint8_t *out)
{
    size_t groups = count / 8;
    for (size_t i = first / 8; i < groups; i++) {
        uint64_t word;
        memcpy(&word, plane + 8 * i, 8);
        word = squeeze(word);
        memcpy(out + 7 * i, &word, i + 1 < groups ? 8 : 7);
    }
    if (count % 8 != 0)
        memcpy(out + 7 * groups, plane + 8 * groups, count % 8);
}

LOOP void loop_unpack7(const uint8_t *packed, size_t first, size_t count, uint8_t *out)
{
    size_t groups = count / 8;
    for (size_t i = first / 8; i < groups; i++) {
        uint64_t word = 0;
        memcpy(&word, packed + 7 * i, i + 1 < groups ? 8 : 7);
        word = stretch(word);
        memcpy(out + 8 * i, &word, 8);
    }
    if (count % 8 != 0)
        memcpy(out + 8 * groups, packed + 7 * groups, count % 8);
}

/* A stream of bits; at most 7 are held between two calls. */
struct code_stream {
    uint64_t held;
    unsigned count;
    uint8_t *at;
};

/* length: at most 56. Writes 8 bytes. */
LOOP void put_code(struct code_stream *stream, uint64_t code, unsigned length)
{
    stream->held |= code << stream->count;
    stream->count += length;
    memcpy(stream->at, &stream->held, 8);
    stream->at += stream->count >> 3;
    stream->held >>= stream->count & 56;
    stream->count &= 7;
}

/* Bytes [first, end), the last first. */
LOOP void put_codes_of(struct code_stream *stream, const struct huffman_code *code,
                       const uint8_t *bytes, size_t first, size_t end)
{
    for (size_t i = end; i-- > first;) {
        uint32_t entry = code->entry[(uint8_t)(bytes[i] - code->first)];
        put_code(stream, entry & ((1u << HUFFMAN_LENGTH_SHIFT) - 1), entry >> HUFFMAN_LENGTH_SHIFT);
    }
}

LOOP size_t end_codes(struct code_stream *stream, const uint8_t *begin)
{
    put_code(stream, 1, 1);
    return (size_t)(stream->at - begin) + (stream->count > 0);
}

/* Bytes [first, first + 4): at most 44 bits. */
LOOP void put_four(struct code_stream *stream, const struct huffman_code *code,
                   const uint8_t *bytes)
{
    uint64_t codes = 0;
    unsigned length = 0;
    for (size_t i = 4; i-- > 0;) {
        uint32_t entry = code->entry[(uint8_t)(bytes[i] - code->first)];
        codes |= (uint64_t)(entry & ((1u << HUFFMAN_LENGTH_SHIFT) - 1)) << length;
        length += entry >> HUFFMAN_LENGTH_SHIFT;
    }
    put_code(stream, codes, length);
}

ENTRY void put_codes(const struct huffman_code *code, const uint8_t *bytes, size_t count,
                     uint8_t *out, size_t size[4])
{
    size_t quarter = (count + 3) / 4, last = count > 3 * quarter ? count - 3 * quarter : 0;
    size_t whole = last & ~(size_t)3;
    struct code_stream stream[4];
    for (size_t k = 0; k < 4; k++) { /* the ends that not all four have */
        stream[k] = (struct code_stream){ .at = out + k * HUFFMAN_STREAM_ROOM };
        put_codes_of(&stream[k], code, bytes + k * quarter, whole, k < 3 ? quarter : last);
    }
    struct code_stream s0 = stream[0], s1 = stream[1], s2 = stream[2], s3 = stream[3];
    for (size_t at = whole; at > 0;) { /* side by side, so that none waits for itself */
        at -= 4;
        put_four(&s0, code, bytes + at);
        put_four(&s1, code, bytes + quarter + at);
        put_four(&s2, code, bytes + 2 * quarter + at);
        put_four(&s3, code, bytes + 3 * quarter + at);
    }
    size[0] = end_codes(&s0, out);
    size[1] = end_codes(&s1, out + HUFFMAN_STREAM_ROOM);
    size[2] = end_codes(&s2, out + 2 * HUFFMAN_STREAM_ROOM);
    size[3] = end_codes(&s3, out + 3 * HUFFMAN_STREAM_ROOM);
}

ENTRY void count_values(const uint8_t *bytes, size_t count, uint32_t seen[256])
{
    uint32_t part[4][256]; /* so that equal neighbours don't wait for each other */
    memset(part, 0, sizeof(part));
    size_t i = 0;
    for (; i + 4 <= count; i += 4) {
        for (size_t k = 0; k < 4; k++)
            part[k][bytes[i + k]]++;
    }
    for (; i < count; i++)
        part[0][bytes[i]]++;
    for (size_t v = 0; v < 256; v++)
        seen[v] = part[0][v] + part[1][v] + part[2][v] + part[3][v];
}

LOOP uint8_t nibble_of(uint8_t byte, uint8_t top, uint8_t **escape)
{
    uint8_t code = (uint8_t)(top - byte);
    if (code < 15)
        return code;
    *(*escape)++ = byte;
    return 15;
}

/* A group of size bytes. */
LOOP void nibble_group(const uint8_t *bytes, size_t size, uint8_t top, uint8_t *codes,
                       uint8_t **escape)
{
    size_t half = (size + 1) / 2;
    for (size_t j = 0; j < half; j++)
        codes[j] = nibble_of(bytes[j], top, escape);
    for (size_t j = half; j < size; j++)
        codes[j - half] = (uint8_t)(codes[j - half] | nibble_of(bytes[j], top, escape) << 4);
}

LOOP bool unnibble_group(const uint8_t *codes, size_t size, uint8_t top, const uint8_t **escape,
                         const uint8_t *escape_end, uint8_t *bytes)
{
    size_t half = (size + 1) / 2;
    for (size_t j = 0; j < size; j++) {
        unsigned code = j < half ? codes[j] & 15u : codes[j - half] >> 4;
        if (code < 15) {
            bytes[j] = (uint8_t)(top - code);
        } else {
            if (*escape == escape_end)
                return false;
            bytes[j] = *(*escape)++;
        }
    }
    return true;
}
