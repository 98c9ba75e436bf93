/*
 * Files in S3 behind struct io. Paths are "s3://bucket/key".
 *
 *  - A file is written from front to back. It appears with its fsync, as a whole, and never over
 *    one that is there; closed without an fsync, it was never there.
 *  - Folders are prefixes: making and removing them does nothing, listing any is fine. Making a
 *    checkpoint's folder gives up uploads of the job's earlier generations.
 *  - rename sets a checkpoint aside (quarantine.h), and nothing else. link is refused, nothing
 *    mapped.
 *  - All calls try again by themselves (client.h); what they fail with is final, and explained.
 *
 * Thread: any; a file that is written is one thread's at a time.
 */
#pragma once

#include "checkpoint/s3/client.h"
#include "common/io.h"

/* Open at once: of three checkpoints that are read at a time by 65 threads, each through a chain of
 * 9, a file by every thread. One more is ST_IO. */
#define S3_FILES_MAX 2048
/* The first descriptor of a file in S3; the system's own don't come that far. */
#define S3_FD_FIRST 0x40000000

struct s3;

struct s3_options {
    struct s3_client_options client;
    size_t part_bytes; /* of uploads, at least 5 MiB */
    uint32_t parts_max;
    size_t block_bytes; /* of reading ahead */
    uint32_t blocks_max;
    uint32_t page; /* names per list request */
};
struct s3_options s3_defaults(void);
/* Host memory of one file, with these defaults: while it is written, file_bytes long; while it is
 * read. */
size_t s3_write_bytes(uint64_t file_bytes);
size_t s3_read_bytes(void);

/* ST_CONFIG: the reason says what to change. Nothing is sent. */
MUST_CHECK enum status s3_new(const struct s3_options *options, struct s3 **out,
                              struct reason *reason);
/* Calls in progress fail soon with ST_CLOSED. */
void s3_close(struct s3 *s3);
/* Frees s3. No call may be in progress. */
void s3_free(struct s3 *s3);
const struct io *s3_io(struct s3 *s3);
/* Like s3_client_ready. */
MUST_CHECK enum status s3_ready(struct s3 *s3);
