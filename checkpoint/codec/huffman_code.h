/*
 * Huffman codes as zstd has them: lengths of at most 11 bits, canonical, and their description
 * (RFC 8878, 4.2.1).
 *
 * Thread: any; pure.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "checkpoint/codec/planes.h"

#define HUFFMAN_TREE_MAX 160u /* bytes of a description */

/*
 * The code for bytes that were seen so often each. Returns the bytes of its description at tree,
 * 0: fewer than two values occur, they span more than HUFFMAN_SPAN, or no description fits.
 */
size_t huffman_code(const uint32_t seen[256], struct huffman_code *out,
                    uint8_t tree[HUFFMAN_TREE_MAX]);
