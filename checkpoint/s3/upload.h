/*
 * A new object, written from front to back: in parts once it is longer than one, at once otherwise.
 *
 * All parts but the last are equally long, since some stores want that: part_bytes, or more where a
 * file that may get longer than 10,000 of them was announced.
 *
 * Memory: parts_max parts are on their way while one more is filled; buffers are made when they are
 * first needed.
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

/* Returns the size of a part of a file of at most file_bytes; not less than part_bytes. */
size_t s3_upload_part_bytes(size_t part_bytes, uint64_t file_bytes);

MUST_CHECK enum status s3_upload_new(const struct s3_upload_options *options,
                                     const struct s3_place *place, struct s3_upload **out);
/* Announces before the first write that the file gets no longer than size. */
void s3_upload_expect(struct s3_upload *upload, uint64_t size);
/* Copies; waits while all buffers are on their way. An error stays. */
MUST_CHECK enum status s3_upload_write(struct s3_upload *upload, const void *data, size_t size);
uint64_t s3_upload_size(const struct s3_upload *upload);
/* Completes the object. Durable: on ST_OK. ST_EXISTS: its key is taken. ST_AGAIN: the store wants
 * all of it sent anew. Nothing can be written afterwards. */
MUST_CHECK enum status s3_upload_finish(struct s3_upload *upload);
/* Frees the upload; an unfinished one is given up. */
void s3_upload_free(struct s3_upload *upload);
