/*
 * A shard file while it is written: bytes are appended, hashed, and leave in large aligned blocks.
 *
 * Memory: one block, for one file after the other.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/format/hash.h"
#include "common/io.h"

struct ckpt_shard_file {
    const struct io *io;
    int fd;
    uint64_t at; /* bytes appended */
    uint8_t *block;
    size_t capacity, used; /* of block */
    struct ckpt_hasher *hasher;
    int64_t write_ns, sync_ns;
};

/* capacity: a multiple of IO_DIRECT_ALIGN. */
MUST_CHECK enum status ckpt_shard_file_init(struct ckpt_shard_file *file, size_t capacity);
void ckpt_shard_file_release(struct ckpt_shard_file *file);
size_t ckpt_shard_file_bytes(size_t capacity);

/* Makes a file that gets no longer than size_max. ST_EXISTS: its name is taken. */
MUST_CHECK enum status ckpt_shard_file_create(struct ckpt_shard_file *file, const struct io *io,
                                              const char *path, uint64_t size_max);
MUST_CHECK enum status ckpt_shard_file_put(struct ckpt_shard_file *file, const void *data,
                                           size_t size);
/* Writes the rest of the block and calls fsync. The file's size must be a multiple of
 * IO_DIRECT_ALIGN. ST_AGAIN: the file is to be written anew. */
MUST_CHECK enum status ckpt_shard_file_sync(struct ckpt_shard_file *file);
MUST_CHECK enum status ckpt_shard_file_close(struct ckpt_shard_file *file);
