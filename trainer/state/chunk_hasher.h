/*
 * A thread that hashes what lies in memory while its caller does something else.
 *
 * Thread: one caller. What is hashed must not change until chunk_hasher_wait has returned.
 */
#pragma once

#include <stddef.h>

#include "checkpoint/checkpoint.h"
#include "common/status.h"

struct chunk_hasher;

struct chunk_hash {
    const void *data; /* NULL: none; its hash is not looked at */
    size_t size;
    struct ckpt_hash hash; /* out */
};

/* ST_NO_MEMORY */
MUST_CHECK enum status chunk_hasher_new(struct chunk_hasher **out);
/* Waits for what is being hashed. NULL is fine. */
void chunk_hasher_free(struct chunk_hasher *hasher);
/* chunks is borrowed until chunk_hasher_wait; one start, one wait. */
void chunk_hasher_start(struct chunk_hasher *hasher, struct chunk_hash *chunks, size_t count);
/* The hashes are there. Returns at once where nothing was started. */
void chunk_hasher_wait(struct chunk_hasher *hasher);
