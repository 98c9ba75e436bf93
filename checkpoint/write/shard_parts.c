#include "checkpoint/write/shard_parts.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/hash.h"
#include "checkpoint/format/names.h"
#include "common/check.h"
#include "common/cleanup.h"

static bool name_fits(const char *name)
{
    size_t size = strnlen(name, LIMIT_NAME);
    return size > 0 && size < LIMIT_NAME;
}

static bool tensor_fits(const struct ckpt_state *state, const struct ckpt_tensor *tensor)
{
    if (!name_fits(tensor->name) || tensor->buffer >= state->buffer_count || tensor->ndim < 0 ||
        tensor->ndim > 4)
        return false;
    uint64_t count = 1, room = state->buffers[tensor->buffer].count;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        if (tensor->dims[i] == 0 || tensor->dims[i] > room / count)
            return false;
        count *= tensor->dims[i];
    }
    return count <= room && tensor->offset <= room - count;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* True if count entries, stride bytes each, begin with different names. False also without
 * memory. */
static bool names_differ(const void *entries, size_t stride, uint32_t count)
{
    if (count < 2)
        return true;
    auto_free const char **names = calloc(count, sizeof(*names));
    for (uint32_t i = 0; i < count && names != NULL; i++)
        names[i] = (const char *)entries + i * stride;
    if (names == NULL)
        return false;
    qsort(names, count, sizeof(*names), compare_names);
    for (uint32_t i = 1; i < count; i++) {
        if (strcmp(names[i - 1], names[i]) == 0)
            return false;
    }
    return true;
}

/* Everything that a reader would refuse is refused before a file is made. */
static bool state_fits(const struct ckpt_state *state)
{
    if (!ckpt_name_is_good(state->job) || state->buffer_count > CKPT_BUFFERS_MAX ||
        state->tensor_count > LIMIT_TENSORS || state->blob_count > DISK_BLOBS_MAX ||
        state->scalars.skip_count > DISK_SKIPS_MAX)
        return false;
    for (uint32_t i = 0; i < state->buffer_count; i++) {
        if (!name_fits(state->buffers[i].name) || ckpt_dtype_size(state->buffers[i].dtype) == 0)
            return false;
    }
    for (uint32_t i = 0; i < state->blob_count; i++) {
        if (!name_fits(state->blobs[i].name) || state->blobs[i].size > DISK_BLOB_MAX)
            return false;
    }
    for (uint32_t i = 0; i < state->tensor_count; i++) {
        if (!tensor_fits(state, &state->tensors[i]))
            return false;
    }
    return names_differ(state->buffers, sizeof(*state->buffers), state->buffer_count) &&
           names_differ(state->blobs, sizeof(*state->blobs), state->blob_count) &&
           names_differ(state->tensors, sizeof(*state->tensors), state->tensor_count);
}

static void add_part(struct ckpt_parts *parts, const struct ckpt_part *part)
{
    CHECK(parts->count < CKPT_PARTS_MAX);
    struct ckpt_part *to = &parts->part[parts->count++];
    *to = *part;
    to->number = parts->chunks;
    parts->chunks += ckpt_chunks(CKPT_U8, part->bytes);
}

static enum status add_extent(struct ckpt_parts *parts, const struct ckpt_state *state, uint32_t i)
{
    const struct ckpt_extent *extent = &parts->share.extent[i];
    const struct ckpt_buffer *buffer = &state->buffers[extent->buffer];
    const uint64_t element = ckpt_dtype_size(buffer->dtype);
    if (buffer->data == NULL)
        return ST_INVALID;
    const uint64_t at = ckpt_share_offset(state, &parts->share, i);
    const struct ckpt_part part = {
        .buffer = extent->buffer,
        .dtype = buffer->dtype,
        .index = extent->first / ckpt_chunk_elements(buffer->dtype),
        .data = (const uint8_t *)buffer->data + at * element,
        .bytes = extent->count * element,
        .expected = buffer->pieces == NULL ? NULL : buffer->pieces + at / PIECE_ELEMENTS,
    };
    add_part(parts, &part);
    parts->raw_bytes += part.bytes;
    return ST_OK;
}

enum status ckpt_parts_of(const struct ckpt_state *state, uint32_t rank, uint32_t size,
                          struct ckpt_parts *out)
{
    out->count = 0;
    out->chunks = out->raw_bytes = 0;
    if (rank >= size || size > LIMIT_RANKS || !state_fits(state))
        return ST_INVALID;
    enum status st = ckpt_share_of(state, rank, size, &out->share);
    for (uint32_t i = 0; st == ST_OK && i < out->share.count; i++)
        st = add_extent(out, state, i);
    for (uint32_t i = 0; i < state->blob_count && rank == 0; i++) {
        const struct ckpt_part part = {
            .buffer = DISK_BLOB | i,
            .dtype = CKPT_U8,
            .data = state->blobs[i].data,
            .bytes = state->blobs[i].size,
        };
        if (st == ST_OK && part.bytes > 0)
            add_part(out, &part);
    }
    return st;
}

const struct ckpt_part *ckpt_parts_find(const struct ckpt_parts *parts, uint64_t number,
                                        struct ckpt_chunk_place *out_place, const uint8_t **out_raw)
{
    CHECK(number < parts->chunks);
    uint32_t low = 0, high = parts->count; /* the part is in [low, high) */
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (parts->part[middle].number > number) {
            high = middle;
        } else {
            low = middle;
        }
    }
    const struct ckpt_part *part = &parts->part[low];
    const uint64_t at = (number - part->number) * DISK_CHUNK_BYTES, left = part->bytes - at;
    *out_place = (struct ckpt_chunk_place){
        .buffer = part->buffer,
        .index = part->index + (number - part->number),
        .dtype = part->dtype,
        .raw_size = (uint32_t)(left < DISK_CHUNK_BYTES ? left : DISK_CHUNK_BYTES),
    };
    *out_raw = part->data + at;
    return part;
}
