/*
 * The shard files of one checkpoint, seen together: every chunk of every buffer exactly once.
 */
#pragma once

#include <stdint.h>

#include "checkpoint/read/shard.h"

/* Place of a chunk in the files of a checkpoint. */
struct ckpt_place {
    struct disk_reference reference; /* buffer: a blob's number is that in its file */
    uint32_t file;
    uint32_t blob; /* of a blob's chunk: its number in the set's list */
};

struct ckpt_set_blob {
    char name[DISK_NAME];
    uint64_t size;
    uint64_t first; /* of its places */
};

struct ckpt_set {
    struct ckpt_shard *shards; /* of manifest->file_count; size 0: not opened */
    uint32_t shard_count;
    struct ckpt_place *places; /* buffers' chunks in order, then blobs' */
    uint64_t place_count;
    uint64_t buffer_first[CKPT_BUFFERS_MAX]; /* of its places */
    struct ckpt_set_blob *blobs;
    uint32_t blob_count;
};
void ckpt_set_release(struct ckpt_set *set);

/*
 * Reads the tables of all shard files, one after the other. Damage is reported, and the next file
 * is read: findings->worst says whether there was any.
 * Errors: those of calls; nothing is owned then
 */
MUST_CHECK enum status ckpt_set_open(const struct io *io, const char *dir,
                                     const struct ckpt_manifest *manifest,
                                     struct ckpt_findings *findings, struct ckpt_set *out);

/* Checks of an undamaged set that its files agree with each other, and together hold everything,
 * and fills in the places. Damage is reported and returned. */
MUST_CHECK enum status ckpt_set_join(struct ckpt_set *set, const struct ckpt_manifest *manifest,
                                     struct ckpt_findings *findings);

/* The tensors of all files, by buffer, place and name, each once; *out: free(). */
MUST_CHECK enum status ckpt_set_tensors(const struct ckpt_set *set,
                                        const struct ckpt_manifest *manifest,
                                        struct ckpt_findings *findings, struct ckpt_tensor **out,
                                        uint32_t *out_count);
