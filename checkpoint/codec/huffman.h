/*
 * An entropy coder for planes that writes stock zstd frames (RFC 8878): blocks of 32 KiB, each
 * nothing but Huffman-coded literals in four streams. Any libzstd reads them.
 *
 * Its inner loops, which count and which put codes, exist per instruction set
 * (struct plane_loops); all give the same bytes. It is for planes whose values lie within
 * HUFFMAN_SPAN of each other, as exponents do; the caller has another coder for the rest.
 *
 * Thread: one at a time per coder. Memory: 50 KiB.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct huffman;

struct huffman *huffman_new(void); /* NULL: no memory */
void huffman_free(struct huffman *huffman);

/* A whole frame of count bytes; returns its size, 0: it would have more than room bytes, or the
 * bytes are not for this coder. */
size_t huffman_frame(struct huffman *huffman, const uint8_t *bytes, size_t count, uint8_t *out,
                     size_t room);
