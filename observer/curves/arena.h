/*
 * Memory for a message of many small parts, which all go at once: taken from blocks, one behind the
 * other. Given back is nothing but all of it.
 *
 * Not locked: whoever has it sees to that.
 */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>

#define ARENA_BLOCK ((size_t)1 << 20)
#define ARENA_MAX   64 /* blocks: a page of rows takes some 3 */

struct arena {
    ProtobufCAllocator allocator; /* for whoever unpacks */
    unsigned char *blocks[ARENA_MAX];
    size_t count; /* of blocks that there are */
    size_t block; /* that is taken from */
    size_t used;  /* of it */
};

/* It must stay where it is. */
void arena_init(struct arena *arena);
/* All that was taken is given back; the blocks stay. */
void arena_reset(struct arena *arena);
void arena_release(struct arena *arena);
