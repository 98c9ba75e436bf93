/*
 * Byte planes of words, and words of byte planes: the inner loops of the codec.
 *
 * Each word is rotated left by one first: the exponent then fills the highest byte, the sign goes
 * to the lowest bit. Plane 0 holds the lowest bytes.
 *
 * The loops are plain C that compilers vectorise; versions for one instruction set would go behind
 * these same functions.
 *
 * Memory: words may be unaligned; nothing overlaps.
 * Thread: any; pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void ckpt_split4(const void *words, size_t count, uint8_t *const plane[4]);
void ckpt_merge4(const uint8_t *const plane[4], size_t count, void *words);
void ckpt_split2(const void *words, size_t count, uint8_t *const plane[2]);
void ckpt_merge2(const uint8_t *const plane[2], size_t count, void *words);

/* Whether any word has its highest bit set. */
bool ckpt_any_sign4(const void *words, size_t count);
bool ckpt_any_sign2(const void *words, size_t count);

/* Bytes whose lowest bit is 0, 8 in 7; a rest of less than 8 stays as it is. */
size_t ckpt_packed_size(size_t count);
void ckpt_pack(const uint8_t *plane, size_t count, uint8_t *out);
void ckpt_unpack(const uint8_t *packed, size_t count, uint8_t *out);
