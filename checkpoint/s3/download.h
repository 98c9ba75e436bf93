/*
 * Reading an object that doesn't change: of what is said to be read next, blocks are fetched ahead,
 * several at a time, and each byte once; anything else by one request each.
 *
 * Memory: blocks_max blocks of block_bytes, made when something is expected.
 * Thread: any.
 */
#pragma once

#include <stdint.h>

#include "checkpoint/s3/object.h"
#include "checkpoint/s3/pool.h"

#define S3_BLOCKS_MAX 8

struct s3_download;

struct s3_download_options {
    struct s3_client *client;
    struct s3_pool *pool;
    size_t block_bytes;
    uint32_t blocks_max; /* 1 to S3_BLOCKS_MAX */
};

/* ST_NOT_FOUND: there is no such object. */
MUST_CHECK enum status s3_download_new(const struct s3_download_options *options,
                                       const struct s3_place *place, struct s3_download **out);
/* [at, end) will be read, once and in order: common/io.h. */
void s3_download_expect(struct s3_download *download, uint64_t at, uint64_t end);
/* May read less; 0 at the end. */
MUST_CHECK enum status s3_download_read(struct s3_download *download, void *data, size_t size,
                                        uint64_t at, size_t *out_size);
void s3_download_free(struct s3_download *download);
