/* Arithmetic of dtypes, pieces, chunks and shares: pure functions, the same on every rank. */
#include "checkpoint/checkpoint.h"
#include "checkpoint/format/disk.h"

uint64_t ckpt_dtype_size(enum ckpt_dtype dtype)
{
    switch (dtype) {
    case CKPT_F32:
    case CKPT_I32:
        return 4;
    case CKPT_BF16:
    case CKPT_F16:
        return 2;
    case CKPT_I64:
        return 8;
    case CKPT_U8:
        return 1;
    }
    return 0; /* a number from disk, which needn't be a dtype */
}

uint64_t ckpt_tensor_elements(const struct ckpt_tensor *tensor)
{
    uint64_t count = 1;
    for (int32_t i = 0; i < tensor->ndim; i++)
        count *= tensor->dims[i];
    return count;
}

uint64_t ckpt_chunk_elements(enum ckpt_dtype dtype)
{
    uint64_t size = ckpt_dtype_size(dtype);
    return size == 0 ? 0 : DISK_CHUNK_BYTES / size;
}

uint64_t ckpt_pieces(uint64_t elements)
{
    return elements / PIECE_ELEMENTS + (elements % PIECE_ELEMENTS != 0);
}

uint64_t ckpt_chunks(enum ckpt_dtype dtype, uint64_t elements)
{
    uint64_t chunk = ckpt_chunk_elements(dtype);
    return chunk == 0 ? 0 : elements / chunk + (elements % chunk != 0);
}

void ckpt_share(uint64_t chunks, uint32_t rank, uint32_t size, uint64_t *first, uint64_t *count)
{
    uint64_t each = chunks / size, more = chunks % size;
    *first = each * rank + (rank < more ? rank : more);
    *count = each + (rank < more);
}

void ckpt_share_elements(const struct ckpt_state *state, uint32_t buffer, uint32_t rank,
                         uint32_t size, uint64_t *first, uint64_t *count)
{
    uint64_t total = 0, begin = 0; /* chunks of all buffers; before this one's */
    for (uint32_t i = 0; i < state->buffer_count; i++) {
        if (i == buffer)
            begin = total;
        total += ckpt_chunks(state->buffers[i].dtype, state->buffers[i].count);
    }
    uint64_t share_first = 0, share_count = 0;
    ckpt_share(total, rank, size, &share_first, &share_count);
    const struct ckpt_buffer *it = &state->buffers[buffer];
    uint64_t end = begin + ckpt_chunks(it->dtype, it->count), share_end = share_first + share_count;
    uint64_t from = share_first > begin ? share_first : begin;
    uint64_t to = share_end < end ? share_end : end;
    *first = 0;
    *count = 0;
    if (from >= to)
        return;
    uint64_t chunk = ckpt_chunk_elements(it->dtype);
    uint64_t last = (to - begin) * chunk;
    *first = (from - begin) * chunk;
    *count = (last < it->count ? last : it->count) - *first;
}
