/*
 * Hashes, the record of scalars and the digest (design 8).
 *
 * digest = XXH3-128 over the list of 16-byte canonical XXH3-128 hashes: of every piece
 * (PIECE_ELEMENTS elements, the last of a buffer short) of every buffer in order, then of the
 * record of scalars (struct disk_scalars with its skip list).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "checkpoint/checkpoint.h"
#include "common/buf.h"
#include "common/status.h"

struct ckpt_hash ckpt_hash_of(const void *data, size_t size);
bool ckpt_hash_equal(const struct ckpt_hash *a, const struct ckpt_hash *b);
uint64_t ckpt_check_of(const void *data, size_t size); /* XXH3-64 */

/* A hash that is fed in parts. */
struct ckpt_hasher;
MUST_CHECK enum status ckpt_hasher_new(struct ckpt_hasher **out);
void ckpt_hasher_free(struct ckpt_hasher *hasher);
void ckpt_hasher_reset(struct ckpt_hasher *hasher);
void ckpt_hasher_add(struct ckpt_hasher *hasher, const void *data, size_t size);
struct ckpt_hash ckpt_hasher_result(const struct ckpt_hasher *hasher);

/* Hashes of the pieces of size bytes, which start at a piece's border. out has room for all of
 * them: ckpt_pieces(size / ckpt_dtype_size(dtype)). */
void ckpt_piece_hashes(enum ckpt_dtype dtype, const void *data, size_t size, struct ckpt_hash *out);

/* Appends the record of scalars. */
MUST_CHECK enum status ckpt_scalars_record(const struct ckpt_scalars *scalars, struct buf *out);
