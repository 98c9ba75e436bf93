/* Arithmetic of dtypes, pieces, chunks and shares: pure functions, the same on every rank. */
#include <string.h>

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

void ckpt_share_chunks(uint64_t chunks, uint32_t rank, uint32_t size, uint64_t *first,
                       uint64_t *count)
{
    uint64_t each = chunks / size, more = chunks % size;
    *first = each * rank + (rank < more ? rank : more);
    *count = each + (rank < more);
}

/* ---- shares ---- */

static uint64_t end_of(const struct ckpt_extent *extent)
{
    return extent->first + extent->count;
}

/* Elements that the buffer has, from one chunk's border to another or to its end. */
static bool extent_is_sound(const struct ckpt_state *state, const struct ckpt_extent *extent)
{
    if (extent->buffer >= state->buffer_count || extent->count == 0)
        return false;
    const struct ckpt_buffer *buffer = &state->buffers[extent->buffer];
    const uint64_t chunk = ckpt_chunk_elements(buffer->dtype);
    return chunk > 0 && extent->first <= buffer->count &&
           extent->count <= buffer->count - extent->first && extent->first % chunk == 0 &&
           (extent->count % chunk == 0 || end_of(extent) == buffer->count);
}

/* True if the extent is of a later buffer than `before`, or elements lie between the two. */
static bool is_behind(const struct ckpt_extent *extent, const struct ckpt_extent *before)
{
    return extent->buffer != before->buffer ? extent->buffer > before->buffer
                                            : extent->first > end_of(before);
}

enum status ckpt_share_check(const struct ckpt_state *state, const struct ckpt_share *share)
{
    if (share->count > CKPT_EXTENTS_MAX)
        return ST_INVALID;
    for (uint32_t i = 0; i < share->count; i++) {
        if (!extent_is_sound(state, &share->extent[i]))
            return ST_INVALID;
        if (i > 0 && !is_behind(&share->extent[i], &share->extent[i - 1]))
            return ST_INVALID;
    }
    return ST_OK;
}

uint32_t ckpt_share_find(const struct ckpt_share *share, uint32_t buffer, uint64_t element)
{
    uint32_t low = 0, high = share->count;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        const struct ckpt_extent *extent = &share->extent[middle];
        if (extent->buffer < buffer || (extent->buffer == buffer && end_of(extent) <= element)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool ckpt_share_part(const struct ckpt_share *share, uint32_t buffer, uint64_t first,
                     uint64_t count, uint64_t *out_first, uint64_t *out_count)
{
    const uint32_t i = ckpt_share_find(share, buffer, first);
    if (i == share->count)
        return false;
    const struct ckpt_extent *extent = &share->extent[i];
    if (extent->buffer != buffer || extent->first >= first + count)
        return false;
    const uint64_t end = first + count < end_of(extent) ? first + count : end_of(extent);
    *out_first = extent->first > first ? extent->first : first;
    *out_count = end - *out_first;
    return *out_count > 0;
}

/* Whether a is of the same buffer as extent b and ends where that begins. */
static bool meets(const struct ckpt_extent *a, const struct ckpt_extent *b)
{
    return a->buffer == b->buffer && end_of(a) == b->first;
}

enum status ckpt_share_add(const struct ckpt_state *state, uint32_t buffer, uint64_t first,
                           uint64_t count, struct ckpt_share *share)
{
    struct ckpt_extent extent = { buffer, first, count };
    uint64_t there[2];
    if (count == 0)
        return ST_OK;
    if (!extent_is_sound(state, &extent) ||
        ckpt_share_part(share, buffer, first, count, &there[0], &there[1]))
        return ST_INVALID;
    uint32_t begin = ckpt_share_find(share, buffer, first), end = begin; /* those it replaces */
    if (begin > 0 && meets(&share->extent[begin - 1], &extent)) {
        begin--;
        extent.first = share->extent[begin].first;
        extent.count += share->extent[begin].count;
    }
    if (end < share->count && meets(&extent, &share->extent[end]))
        extent.count += share->extent[end++].count;
    if (begin == end && share->count == CKPT_EXTENTS_MAX)
        return ST_FULL;
    memmove(&share->extent[begin + 1], &share->extent[end], (share->count - end) * sizeof(extent));
    share->extent[begin] = extent;
    share->count = share->count - end + begin + 1;
    return ST_OK;
}

enum status ckpt_share_even(const struct ckpt_state *state, uint32_t buffers, uint32_t rank,
                            uint32_t size, struct ckpt_share *share)
{
    uint64_t total = 0, first = 0, count = 0, at = 0;
    if (rank >= size || state->buffer_count > CKPT_BUFFERS_MAX)
        return ST_INVALID;
    for (uint32_t i = 0; i < state->buffer_count; i++) {
        if ((buffers >> i & 1) != 0)
            total += ckpt_chunks(state->buffers[i].dtype, state->buffers[i].count);
    }
    ckpt_share_chunks(total, rank, size, &first, &count);
    enum status st = ST_OK;
    for (uint32_t i = 0; i < state->buffer_count && st == ST_OK; i++) {
        const struct ckpt_buffer *it = &state->buffers[i];
        if ((buffers >> i & 1) == 0)
            continue;
        /* Chunks [at, end) of the list are this buffer's. */
        const uint64_t chunk = ckpt_chunk_elements(it->dtype);
        const uint64_t end = at + ckpt_chunks(it->dtype, it->count);
        const uint64_t from = first > at ? first : at;
        const uint64_t to = first + count < end ? first + count : end;
        if (from < to) {
            const uint64_t begin = (from - at) * chunk, last = (to - at) * chunk;
            st = ckpt_share_add(state, i, begin, (last < it->count ? last : it->count) - begin,
                                share);
        }
        at = end;
    }
    return st;
}

/* Counts the hashes that a report has of an extent: whole branches, and pieces before and after
 * them. */
static uint64_t hashes_of(const struct ckpt_extent *extent)
{
    const uint64_t piece = extent->first / PIECE_ELEMENTS, pieces = ckpt_pieces(extent->count);
    const uint64_t end = (piece + pieces) / CKPT_BRANCH_PIECES;
    const uint64_t begin = (piece + CKPT_BRANCH_PIECES - 1) / CKPT_BRANCH_PIECES;
    return begin < end ? pieces - (end - begin) * (CKPT_BRANCH_PIECES - 1) : pieces;
}

static bool has_all(const struct ckpt_share *share, const struct ckpt_extent *extent)
{
    uint64_t first = 0, count = 0;
    return ckpt_share_part(share, extent->buffer, extent->first, extent->count, &first, &count) &&
           count == extent->count;
}

enum status ckpt_share_of(const struct ckpt_state *state, uint32_t rank, uint32_t size,
                          struct ckpt_share *out)
{
    enum status st = ST_OK;
    if (state->share != NULL) {
        st = ckpt_share_check(state, state->share);
        *out = *state->share;
    } else {
        out->count = 0;
        st = ckpt_share_even(state, CKPT_ALL_BUFFERS, rank, size, out);
    }
    uint64_t hashes = 0;
    for (uint32_t i = 0; st == ST_OK && i < out->count; i++) {
        hashes += hashes_of(&out->extent[i]);
        if (state->held != NULL && !has_all(state->held, &out->extent[i]))
            st = ST_INVALID;
    }
    return st == ST_OK && hashes > CKPT_REPORT_HASHES_MAX ? ST_FULL : st;
}

enum status ckpt_share_held(const struct ckpt_state *state, struct ckpt_share *out)
{
    out->count = 0;
    if (state->held == NULL)
        return ckpt_share_even(state, CKPT_ALL_BUFFERS, 0, 1, out);
    *out = *state->held;
    return ckpt_share_check(state, out);
}

uint64_t ckpt_share_bytes(const struct ckpt_state *state, const struct ckpt_share *share)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < share->count; i++) {
        const struct ckpt_extent *extent = &share->extent[i];
        bytes += extent->count * ckpt_dtype_size(state->buffers[extent->buffer].dtype);
    }
    return bytes;
}

uint64_t ckpt_share_offset(const struct ckpt_state *state, const struct ckpt_share *share,
                           uint32_t extent)
{
    const uint32_t buffer = share->extent[extent].buffer;
    uint64_t before = 0;
    if (!state->buffers[buffer].packed)
        return share->extent[extent].first;
    for (uint32_t i = ckpt_share_find(share, buffer, 0); i < extent; i++)
        before += share->extent[i].count;
    return before;
}
