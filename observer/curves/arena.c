#include "observer/curves/arena.h"

#include <stdalign.h>
#include <stdbool.h>
#include <stdlib.h>

/* The next block; false: no memory, or there are too many. */
static bool next_block(struct arena *arena)
{
    const size_t next = arena->count == 0 ? 0 : arena->block + 1;
    if (next == ARENA_MAX)
        return false;
    if (next == arena->count) {
        arena->blocks[next] = malloc(ARENA_BLOCK);
        if (arena->blocks[next] == NULL)
            return false;
        arena->count++;
    }
    arena->block = next;
    arena->used = 0;
    return true;
}

static void *take(void *data, size_t size)
{
    struct arena *arena = data;
    const size_t unit = alignof(max_align_t);
    if (size > ARENA_BLOCK)
        return NULL;
    size = (size + unit - 1) / unit * unit;
    if ((arena->count == 0 || size > ARENA_BLOCK - arena->used) && !next_block(arena))
        return NULL;
    void *out = arena->blocks[arena->block] + arena->used;
    arena->used += size;
    return out;
}

static void give_back(void *data, void *pointer)
{
    (void)data;
    (void)pointer;
}

void arena_init(struct arena *arena)
{
    *arena = (struct arena){ .allocator = { .alloc = take, .free = give_back } };
    arena->allocator.allocator_data = arena;
}

void arena_reset(struct arena *arena)
{
    arena->block = arena->used = 0;
}

void arena_release(struct arena *arena)
{
    for (size_t i = 0; i < arena->count; i++)
        free(arena->blocks[i]);
    arena_init(arena);
}
