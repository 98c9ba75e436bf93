/*
 * One shard file, opened for reading: its header and footer are checked, its chunks are not yet.
 */
#pragma once

#include <stdint.h>

#include "checkpoint/codec/chunk.h"
#include "checkpoint/format/findings.h"
#include "checkpoint/format/footer.h"

struct ckpt_shard {
    uint64_t size;
    struct disk_header header;
    struct ckpt_footer footer;
};
void ckpt_shard_release(struct ckpt_shard *shard);

/*
 * Reads the tables of file number rank of a manifest in dir, and closes it again.
 * until_ms: of io_find
 * Errors: damage, of which a line was reported then; others: the call failed
 */
MUST_CHECK enum status ckpt_shard_open(const struct io *io, const char *dir,
                                       const struct ckpt_manifest *manifest, uint32_t rank,
                                       int64_t until_ms, struct ckpt_findings *findings,
                                       struct ckpt_shard *out);

/* Returns what the chunk of a reference must hold. */
struct ckpt_chunk_place ckpt_shard_place(const struct ckpt_footer *footer,
                                         const struct disk_reference *reference);
/* Writes a description, like "chunk 3 of momentum". */
void ckpt_shard_describe(const struct ckpt_footer *footer, const struct disk_reference *reference,
                         char out[256]);
