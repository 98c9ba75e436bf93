/*
 * Hashes, the record of scalars, and the digest of a state (docs/format.md).
 *
 *     digest = XXH3-128 of the list  branch 0, branch 1, …, scalars
 *     branch   XXH3-128 of the list of CKPT_BRANCH_PIECES pieces of a buffer (of its last: of
 *              those that are left); buffer after buffer
 *     piece    XXH3-128 of PIECE_ELEMENTS elements of a buffer (of its last piece: of the rest)
 *     scalars  XXH3-128 of struct disk_scalars with its skip list
 *
 * All hashes are in their canonical form of 16 bytes, so that a digest reads the same everywhere.
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

/* Hashes of the pieces of size bytes, which begin at the border of a piece. out has room for all of
 * them: ckpt_pieces(size / ckpt_dtype_size(dtype)). */
void ckpt_piece_hashes(enum ckpt_dtype dtype, const void *data, size_t size, struct ckpt_hash *out);

/* Appends the record of scalars. ST_INVALID: its skip list is too long. */
MUST_CHECK enum status ckpt_scalars_record(const struct ckpt_scalars *scalars, struct buf *out);
/* The record's hash. Errors: likewise */
MUST_CHECK enum status ckpt_scalars_hash(const struct ckpt_scalars *scalars, struct ckpt_hash *out);

/* Returns the hash of a branch of count pieces. */
struct ckpt_hash ckpt_branch_of(const struct ckpt_hash *pieces, uint64_t count);
uint64_t ckpt_branches(uint64_t pieces);

/*
 * The digest, from the hashes of pieces and branches in order: per buffer _pieces and _branches
 * (those at the border of a branch), then _end; _finish. list: borrowed, room for the branches of
 * all buffers and one hash more.
 */
struct ckpt_digester {
    struct ckpt_hash *list;
    uint64_t count;
    struct ckpt_hash open[CKPT_BRANCH_PIECES]; /* pieces of a branch that isn't whole */
    uint32_t open_count;
};
void ckpt_digester_begin(struct ckpt_digester *digest, struct ckpt_hash *list);
void ckpt_digester_pieces(struct ckpt_digester *digest, const struct ckpt_hash *hashes,
                          uint64_t count);
void ckpt_digester_branches(struct ckpt_digester *digest, const struct ckpt_hash *hashes,
                            uint64_t count);
void ckpt_digester_end(struct ckpt_digester *digest);
struct ckpt_hash ckpt_digester_finish(struct ckpt_digester *digest,
                                      const struct ckpt_hash *scalars);

/* Computes the digest from the hashes of all pieces, buffer after buffer, pieces[b] of each. The
 * list is overwritten; it needs room for one more hash. */
struct ckpt_hash ckpt_digest_of(struct ckpt_hash *list, const uint64_t *pieces, uint32_t buffers,
                                const struct ckpt_hash *scalars);
