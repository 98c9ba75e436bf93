/*
 * Memory for a message of many small parts, which are all freed at once. The parts are taken from
 * blocks, one behind the other; a single part is never given back.
 *
 * Not locked: the caller sees to that.
 */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>

#define ARENA_BLOCK ((size_t)1 << 20)
#define ARENA_MAX   64 /* blocks: a page of rows takes some 3 */

struct arena {
    ProtobufCAllocator allocator; /* for whoever unpacks */
    unsigned char *blocks[ARENA_MAX];
    size_t count; /* number of blocks */
    size_t block; /* index of the block that is taken from */
    size_t used;  /* bytes used of that block */
};

/* Initialises an arena. The struct must not be moved afterwards: its allocator points to it. */
void arena_init(struct arena *arena);
/* Gives back all that was taken; the blocks stay. */
void arena_reset(struct arena *arena);
void arena_release(struct arena *arena);
