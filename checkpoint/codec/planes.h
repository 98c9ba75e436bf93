/*
 * The inner loops of the codec, as a table: words to byte planes and back, and what planes need.
 *
 *     planes_loops.h   every loop in plain C: the definition
 *     planes_plain.c   the table of it as it is
 *     planes_avx2.c, planes_avx512.c, planes_huffman_avx512.c
 *                      tables for x86's instruction sets: some loops by hand, the others compiled
 *     planes_choose.h  which of the tables this machine runs
 *
 * All give the same bits: they work on integers.
 *
 * Memory: nothing needs alignment; nothing overlaps, unless a comment says so.
 * Thread: any; pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CKPT_NIBBLE_GROUP 128u /* bytes whose codes lie together */
#define CKPT_NIBBLE_SLACK 64   /* bytes that nibbles may write behind what it returns */

/* A Huffman code of values first to first + HUFFMAN_SPAN - 1; see huffman_code.h. An entry is the
 * length above the code, which has at most 11 bits; 0: the value has none. */
#define HUFFMAN_SPAN         128u
#define HUFFMAN_LENGTH_SHIFT 12
#define HUFFMAN_BLOCK        32768u /* bytes that are coded at once, at most */
/* Room for one of the four streams of a block. */
#define HUFFMAN_STREAM_ROOM ((size_t)HUFFMAN_BLOCK / 4 * 11 / 8 + 64)

struct huffman_code {
    uint8_t first;
    uint16_t entry[HUFFMAN_SPAN];
};

struct plane_loops {
    const char *name;

    /* Each word is rotated left by turn bits (0 to 31, of 16-bit words 0 or 1), then plane k gets
     * its byte k, lowest first. Returns whether a word, as it came, has its highest bit set. */
    bool (*split4)(const void *words, size_t count, unsigned turn, uint8_t *const plane[4]);
    bool (*split2)(const void *words, size_t count, unsigned turn, uint8_t *const plane[2]);
    /* The inverse. */
    void (*merge4)(const uint8_t *const plane[4], size_t count, unsigned turn, void *words);
    void (*merge2)(const uint8_t *const plane[2], size_t count, unsigned turn, void *words);

    /* zigzag(word - base), and back; base may be out, or words. */
    void (*differ4)(const void *words, const void *base, size_t count, void *out);
    void (*differ2)(const void *words, const void *base, size_t count, void *out);
    void (*undiffer4)(const void *words, const void *base, size_t count, void *out);
    void (*undiffer2)(const void *words, const void *base, size_t count, void *out);
    /* word - (terms[i] << CKPT_TERM_SHIFT) - constant, and back; out may be words. */
    void (*predict)(const void *words, const int16_t *terms, uint32_t constant, size_t count,
                    void *out);
    void (*unpredict)(const void *words, const int16_t *terms, uint32_t constant, size_t count,
                      void *out);

    /* Adds word >> 13 of each word to sums[i]; returns the sum of all. */
    uint64_t (*accumulate)(const void *words, size_t count, uint32_t *sums);
    /* out[k]: the sum of probe[i] * range[k + i]; range has size + lags numbers. */
    void (*correlate)(const int16_t *probe, size_t size, const int16_t *range, size_t lags,
                      int32_t *out);

    /* The upper halves of bytes, those of the second half of the plane above those of the first;
     * returns whether all lower halves are 0, and back. */
    bool (*pack4)(const uint8_t *plane, size_t count, uint8_t *out);
    void (*unpack4)(const uint8_t *packed, size_t count, uint8_t *out);
    /* Bytes whose lowest bit is 0, 8 in 7; a rest of less than 8 stays as it is. */
    void (*pack7)(const uint8_t *plane, size_t count, uint8_t *out);
    void (*unpack7)(const uint8_t *packed, size_t count, uint8_t *out);

    /*
     * A byte b from top - 14 to top becomes the code top - b, any other one the code 15 and itself,
     * appended to escapes. Of each group of CKPT_NIBBLE_GROUP bytes (the last may be shorter: of
     * g), byte j of codes has code j in its lower and code j + (g + 1) / 2 in its upper half.
     * Returns the number of escapes; CKPT_NIBBLE_SLACK bytes behind them may be written.
     */
    size_t (*nibbles)(const uint8_t *bytes, size_t count, uint8_t top, uint8_t *codes,
                      uint8_t *escapes);
    /* The inverse; false: there aren't just as many escapes. */
    bool (*unnibbles)(const uint8_t *codes, const uint8_t *escapes, size_t escape_count,
                      size_t count, uint8_t top, uint8_t *bytes);

    /* Counts how often each value occurs; count: at most HUFFMAN_BLOCK. */
    void (*count)(const uint8_t *bytes, size_t count, uint32_t seen[256]);
    /*
     * Codes of at most HUFFMAN_BLOCK bytes, which all have one, as the four streams of a block of
     * zstd's literals: a quarter each (rounded up, the last has the rest), from the last byte to
     * the first, ended by a set bit. Stream k lies at out + k * HUFFMAN_STREAM_ROOM.
     */
    void (*put_codes)(const struct huffman_code *code, const uint8_t *bytes, size_t count,
                      uint8_t *out, size_t size[4]);
};

#define CKPT_TERM_SHIFT 19 /* terms count sixteenths of a binary order of a float32 */

/* Bytes that count bytes have once they are packed. */
static inline size_t ckpt_packed7_size(size_t count)
{
    return count / 8 * 7 + count % 8;
}

static inline size_t ckpt_packed4_size(size_t count)
{
    return (count + 1) / 2;
}

/* Bytes of the codes of count bytes. */
static inline size_t ckpt_nibble_size(size_t count)
{
    return count / CKPT_NIBBLE_GROUP * (CKPT_NIBBLE_GROUP / 2) +
           (count % CKPT_NIBBLE_GROUP + 1) / 2;
}
