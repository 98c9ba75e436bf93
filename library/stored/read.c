/* Bytes of a buffer, of which the source gives whole blocks: the block that was read last in part
 * is kept, since many tensors are small and lie one after the other. */
#include <stdlib.h>
#include <string.h>

#include "library/stored/stored.h"

/* Reads the block into state->block, unless it is there. */
static enum status keep_block(struct cairn_state *state, uint32_t buffer, uint64_t number)
{
    const struct stored_buffer *it = &state->buffers[buffer];
    if (state->block_buffer == buffer && state->block_number == number)
        return ST_OK;
    state->block_buffer = CKPT_BUFFERS_MAX;
    if (state->block_size < it->block) {
        free(state->block);
        state->block = malloc(it->block);
        state->block_size = state->block != NULL ? it->block : 0;
        if (state->block == NULL)
            return ST_NO_MEMORY;
    }
    const uint64_t first = number * it->block;
    const uint64_t size = it->bytes - first < it->block ? it->bytes - first : it->block;
    const enum status st =
        state->source.read(state->source.self, buffer, first, size, state->block, &state->why);
    if (st == ST_OK) {
        state->block_buffer = buffer;
        state->block_number = number;
    }
    return st;
}

enum status stored_read(struct cairn_state *state, uint32_t buffer, uint64_t first, uint64_t size,
                        void *out)
{
    if (buffer >= state->buffer_count)
        return ST_CORRUPT;
    const struct stored_buffer *it = &state->buffers[buffer];
    uint8_t *to = out;
    enum status st = first <= it->bytes && size <= it->bytes - first ? ST_OK : ST_CORRUPT;
    state->why.text[0] = '\0';
    while (size > 0 && st == ST_OK) {
        const uint64_t before = first % it->block, number = first / it->block;
        uint64_t part = first + size == it->bytes ? size : size / it->block * it->block;
        if (before == 0 && part > 0) {
            st = state->source.read(state->source.self, buffer, first, part, to, &state->why);
        } else {
            part = it->block - before < size ? it->block - before : size;
            st = keep_block(state, buffer, number);
            if (st == ST_OK)
                memcpy(to, state->block + before, (size_t)part);
        }
        first += part;
        size -= part;
        to += part;
    }
    if (st != ST_OK && state->why.text[0] == '\0')
        reason_set(&state->why, "%s", status_string(st));
    return st;
}
