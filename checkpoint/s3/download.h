/*
 * Reading an object that doesn't change: what is read from front to back is fetched ahead in
 * blocks, several at a time; anything else by one request each.
 *
 * Memory: blocks_max blocks of block_bytes, made when reading in order begins.
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
/* May read less; 0 at the end. */
MUST_CHECK enum status s3_download_read(struct s3_download *download, void *data, size_t size,
                                        uint64_t at, size_t *out_size);
void s3_download_free(struct s3_download *download);
