/*
 * The footer of a shard file: its tables (disk.h), made by the writer and checked by readers, which
 * don't trust its bytes.
 */
#pragma once

#include <stdint.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/format/disk.h"
#include "common/buf.h"
#include "common/status.h"

struct ckpt_footer_parts {
    const struct ckpt_state *state;
    const struct ckpt_share *share; /* that the file holds */
    uint32_t rank;
    const struct disk_reference *references; /* of the file's chunks, in order */
    uint32_t reference_count;
    uint64_t raw_size; /* bytes of the buffers' chunks in the file */
    uint64_t offset;   /* of the footer in the file */
};
/* Appends the footer: the tables of the state, with those tensors of which the rank's file holds a
 * part, and the references. ST_FULL: it is larger than a reader accepts. */
MUST_CHECK enum status ckpt_footer_make(const struct ckpt_footer_parts *parts, struct buf *out);

/* A checked footer. All pointers lie in bytes. */
struct ckpt_footer {
    char *bytes; /* owned */
    uint64_t size;
    const struct disk_footer *head;
    const struct disk_scalars *scalars;
    const uint64_t *skips;
    const struct disk_buffer *buffers;
    const struct disk_reference *references;
    const struct disk_tensor *tensors;
    const struct disk_blob *blobs;
};

/* Raw bytes of the chunk that a reference names; 0: the footer has no such chunk. */
uint64_t ckpt_footer_raw_size(const struct ckpt_footer *footer,
                              const struct disk_reference *reference);

/*
 * Checks the size bytes at footer->bytes, which lie at offset in a file, and sets the rest of
 * *footer. The table of chunks is then known to be gapless, ascending and within the footer's
 * buffers and blobs, every name to be terminated, every tensor to lie in its buffer.
 * Errors: ST_CORRUPT, ST_VERSION; *what is then static text.
 */
MUST_CHECK enum status ckpt_footer_check(struct ckpt_footer *footer, uint64_t size, uint64_t offset,
                                         const char **what);
