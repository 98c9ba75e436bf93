/* Building a footer. */
#include <string.h>

#include "checkpoint/format/footer.h"
#include "checkpoint/format/hash.h"
#include "common/check.h"

static void set_name(char out[DISK_NAME], const char *name)
{
    size_t size = strnlen(name, DISK_NAME);
    CHECK(size < DISK_NAME); /* the writer has checked its state */
    memset(out, 0, DISK_NAME);
    memcpy(out, name, size);
}

static enum status put_buffers(const struct ckpt_state *state, struct buf *out)
{
    for (uint32_t i = 0; i < state->buffer_count; i++) {
        const struct ckpt_buffer *buffer = &state->buffers[i];
        struct disk_buffer entry = {
            .dtype = (uint32_t)buffer->dtype,
            .in_digest = 1,
            .count = buffer->count,
        };
        set_name(entry.name, buffer->name);
        enum status st = buf_append(out, &entry, sizeof(entry));
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

static enum status put_tensor(const struct ckpt_state *state, const struct ckpt_tensor *tensor,
                              struct buf *out)
{
    struct disk_tensor entry = {
        .dtype = (uint32_t)state->buffers[tensor->buffer].dtype,
        .buffer = tensor->buffer,
        .offset = tensor->offset,
        .ndim = (uint32_t)tensor->ndim,
        .kind = DISK_REPLICATED,
        .in_digest = 1,
    };
    set_name(entry.name, tensor->name);
    for (int32_t i = 0; i < tensor->ndim; i++) {
        entry.shape[i] = tensor->dims[i];
        entry.extent[i] = tensor->dims[i];
    }
    return buf_append(out, &entry, sizeof(entry));
}

/* The tensors of which this rank holds a part. */
static enum status put_tensors(const struct ckpt_footer_parts *parts, struct buf *out,
                               uint32_t *out_count)
{
    const struct ckpt_state *state = parts->state;
    uint32_t held = 0;
    for (uint32_t i = 0; i < state->tensor_count; i++) {
        const struct ckpt_tensor *tensor = &state->tensors[i];
        uint64_t first = 0, count = ckpt_tensor_elements(tensor);
        if (!ckpt_share_part(parts->share, tensor->buffer, tensor->offset, count, &first, &count))
            continue;
        enum status st = put_tensor(state, tensor, out);
        if (st != ST_OK)
            return st;
        held++;
    }
    *out_count = held;
    return ST_OK;
}

static enum status put_blobs(const struct ckpt_state *state, struct buf *out)
{
    for (uint32_t i = 0; i < state->blob_count; i++) {
        struct disk_blob entry = { .size = state->blobs[i].size };
        set_name(entry.name, state->blobs[i].name);
        enum status st = buf_append(out, &entry, sizeof(entry));
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

/* Gap and trailer; head's sizes are known now. */
static enum status put_end(const struct ckpt_footer_parts *parts, struct disk_footer *head,
                           size_t start, struct buf *out)
{
    static const uint8_t zero[DISK_FILE_ALIGN];
    struct disk_trailer trailer = { .version = DISK_VERSION };
    uint64_t end = parts->offset + (out->size - start) + sizeof(trailer);
    head->gap_size = (uint32_t)((DISK_FILE_ALIGN - end % DISK_FILE_ALIGN) % DISK_FILE_ALIGN);
    uint64_t size = out->size - start + head->gap_size + sizeof(trailer);
    if (size > DISK_FOOTER_MAX)
        return ST_FULL;
    head->frame_size = (uint32_t)size - DISK_FRAME_BYTES;
    trailer.footer_offset = parts->offset;
    trailer.footer_size = size;
    trailer.file_size = parts->offset + size;
    memcpy(trailer.magic, DISK_MAGIC_TRAILER, sizeof(trailer.magic));
    enum status st = buf_append(out, zero, head->gap_size);
    if (st == ST_OK)
        st = buf_append(out, &trailer, sizeof(trailer));
    if (st != ST_OK)
        return st;
    memcpy(out->data + start, head, sizeof(*head));
    size_t hashed = (size_t)size - sizeof(trailer) + offsetof(struct disk_trailer, hash);
    struct ckpt_hash hash = ckpt_hash_of(out->data + start, hashed);
    memcpy(out->data + start + hashed, hash.byte, sizeof(hash.byte));
    return ST_OK;
}

enum status ckpt_footer_make(const struct ckpt_footer_parts *parts, struct buf *out)
{
    const struct ckpt_state *state = parts->state;
    size_t start = out->size;
    struct disk_footer head = {
        .frame_magic = DISK_FRAME_FOOTER,
        .buffer_count = state->buffer_count,
        .chunk_count = parts->reference_count,
        .blob_count = parts->rank == 0 ? state->blob_count : 0,
        .skip_count = (uint32_t)state->scalars.skip_count,
        .raw_size = parts->raw_size,
    };
    memcpy(head.magic, DISK_MAGIC_FOOTER, sizeof(head.magic));
    enum status st = buf_append(out, &head, sizeof(head));
    if (st == ST_OK)
        st = ckpt_scalars_record(&state->scalars, out);
    if (st == ST_OK)
        st = put_buffers(state, out);
    if (st == ST_OK && parts->reference_count > 0) {
        st =
            buf_append(out, parts->references, parts->reference_count * sizeof(*parts->references));
    }
    if (st == ST_OK)
        st = put_tensors(parts, out, &head.tensor_count);
    if (st == ST_OK && parts->rank == 0)
        st = put_blobs(state, out);
    return st == ST_OK ? put_end(parts, &head, start, out) : st;
}
