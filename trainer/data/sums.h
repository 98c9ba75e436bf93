/*
 * What a mapped file of the data is known by: its identity, and a hash of each of its blocks, so
 * that what is read of it can be checked without the rest. They are kept in a folder of the node:
 * a file that nobody touched since isn't read as a whole at each start.
 *
 *     made or found ──▶ check, before a block is used ──▶ doubt, when the file was touched: each
 *                                                         block is checked once more
 *
 * What is kept of a file is one file, HASH.sums; HASH is the XXH3-128 of the data file's path.
 * Numbers are little-endian, hashes XXH3-128 in canonical form:
 *
 *      0  "CAIRNSUM"
 *      8  u32  version 1
 *     12  u32  bytes of a block, SUMS_BLOCK
 *     16  u64  size of the data file
 *     24  u64  its inode
 *     32  i64  when it was touched last (struct io_stat, changed_ns)
 *     40  16   hash of its content
 *     56  u64  bytes of its path
 *     64  the path; 16 bytes for each block: its hash; 16 bytes: the hash of all before
 *
 * It counts if all of it fits, else there is none: the file is hashed then. So the folder may be
 * removed at any time, and of several workers that keep the same at once any may win.
 *
 * Memory: the caller owns *out; 24 bytes for each block.
 * Thread: make, find, keep, free: one at a time. check, doubt, turn: any number, without waiting.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/io.h"
#include "common/status.h"
#include "trainer/data/identity.h"

#define SUMS_BLOCK    ((size_t)256 * 1024)
#define SUMS_KEEP_MIN ((size_t)4 * 1024 * 1024) /* a smaller file is hashed sooner than looked up */

struct sums;

/* Hashes the content: all of it counts as checked. progress: per MiB; may be NULL. ST_NO_MEMORY */
MUST_CHECK enum status sums_make(const void *data, size_t size, void (*progress)(void *arg),
                                 void *progress_arg, struct sums **out);
void sums_free(struct sums *sums); /* NULL is fine */
const struct data_identity *sums_identity(const struct sums *sums);

/* A file of the data, and the node's folder of sums. */
struct sums_place {
    const struct io *io;
    const char *folder; /* NULL: nothing is kept */
    const char *path;   /* of the data file */
    struct io_stat seen;
};

/* What was kept of the file as it was seen; nothing counts as checked.
 * Errors: ST_NOT_FOUND  there is none
 *         ST_CORRUPT    it is of another file, or of other content, or damaged
 *         ST_NO_MEMORY, and others of io: all mean that the file is to be hashed */
MUST_CHECK enum status sums_find(const struct sums_place *place, struct sums **out);
/* Keeps them, if it is worth it. An error costs the next start. */
enum status sums_keep(const struct sums_place *place, const struct sums *sums);
void sums_forget(const struct sums_place *place);

/* Whether bytes [from, to) of the content at `data` are what was hashed. The blocks that they lie
 * in are hashed, but those that were since `turn` began. false: *out_bad is where the block begins
 * that isn't. */
bool sums_check(struct sums *sums, uint64_t turn, const void *data, uint64_t from, uint64_t to,
                uint64_t *out_bad);
/* Begins another turn. */
void sums_doubt(struct sums *sums);
uint64_t sums_turn(const struct sums *sums);
