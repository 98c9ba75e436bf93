/*
 * A new object, written from front to back: in parts once it is longer than one, at once otherwise.
 *
 * Memory: parts_max parts are on their way while one more is filled; buffers are made when they are
 * first needed. A part is part_bytes long, doubled after each 2,000 parts (S3 takes 10,000), so
 * that a file may have 62,000 times part_bytes.
 *
 * Thread: one at a time.
 */
#pragma once

#include <stdint.h>

#include "checkpoint/s3/object.h"
#include "checkpoint/s3/pool.h"

#define S3_PARTS_IN_FLIGHT_MAX 8

struct s3_upload;

struct s3_upload_options {
    struct s3_client *client;
    struct s3_pool *pool;
    size_t part_bytes;  /* at least S3_PART_BYTES_MIN */
    uint32_t parts_max; /* 1 to S3_PARTS_IN_FLIGHT_MAX */
};

/* Of the largest part of a file. */
size_t s3_upload_part_bytes(size_t part_bytes, uint64_t file_bytes);

MUST_CHECK enum status s3_upload_new(const struct s3_upload_options *options,
                                     const struct s3_place *place, struct s3_upload **out);
/* Copies; waits while all buffers are on their way. An error stays. */
MUST_CHECK enum status s3_upload_write(struct s3_upload *upload, const void *data, size_t size);
uint64_t s3_upload_size(const struct s3_upload *upload);
/* The object is there, whole. Durable: on ST_OK. ST_EXISTS: its key is taken. Nothing can be
 * written afterwards. */
MUST_CHECK enum status s3_upload_finish(struct s3_upload *upload);
/* Unfinished: what was sent is given up. */
void s3_upload_free(struct s3_upload *upload);
