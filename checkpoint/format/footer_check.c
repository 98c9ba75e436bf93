/*
 * Checking a footer: a parser of outside bytes. Counts are bounded before they are multiplied, and
 * the sum of the sections is compared with the size before any of them is read.
 */
#include <string.h>

#include "checkpoint/format/footer.h"
#include "checkpoint/format/hash.h"

#define ELEMENTS_MAX (UINT64_C(1) << 56) /* of a buffer: sums and products of bytes fit */

static bool name_is_good(const char name[DISK_NAME])
{
    size_t size = strnlen(name, DISK_NAME);
    if (size == 0 || size == DISK_NAME)
        return false;
    for (size_t i = size; i < DISK_NAME; i++) {
        if (name[i] != '\0')
            return false;
    }
    return true;
}

/* Head, sections and trailer are within size bytes; sets the pointers. */
static const char *lay_out(struct ckpt_footer *footer, uint64_t size)
{
    struct disk_footer head;
    memcpy(&head, footer->bytes, sizeof(head));
    if (head.frame_magic != DISK_FRAME_FOOTER ||
        memcmp(head.magic, DISK_MAGIC_FOOTER, sizeof(head.magic)) != 0 ||
        head.frame_size != size - DISK_FRAME_BYTES)
        return "this is no footer";
    if (head.buffer_count > CKPT_BUFFERS_MAX || head.tensor_count > LIMIT_TENSORS ||
        head.blob_count > DISK_BLOBS_MAX || head.skip_count > DISK_SKIPS_MAX ||
        head.gap_size > DISK_GAP_MAX)
        return "a count in the footer is over its limit";
    uint64_t at = sizeof(head);
    footer->head = (const void *)footer->bytes;
    footer->scalars = (const void *)(footer->bytes + at);
    at += sizeof(struct disk_scalars);
    footer->skips = (const void *)(footer->bytes + at);
    at += head.skip_count * sizeof(uint64_t);
    footer->buffers = (const void *)(footer->bytes + at);
    at += head.buffer_count * sizeof(struct disk_buffer);
    footer->references = (const void *)(footer->bytes + at);
    at += head.chunk_count * sizeof(struct disk_reference);
    footer->tensors = (const void *)(footer->bytes + at);
    at += head.tensor_count * sizeof(struct disk_tensor);
    footer->blobs = (const void *)(footer->bytes + at);
    at += head.blob_count * sizeof(struct disk_blob);
    if (at + head.gap_size + sizeof(struct disk_trailer) != size)
        return "the footer's counts contradict its length";
    for (uint64_t i = at; i < at + head.gap_size; i++) {
        if (footer->bytes[i] != 0)
            return "the gap in the footer isn't zero";
    }
    footer->size = size;
    return NULL;
}

static const char *check_trailer(const struct ckpt_footer *footer, uint64_t size, uint64_t offset)
{
    struct disk_trailer trailer;
    uint64_t at = size - sizeof(trailer);
    memcpy(&trailer, footer->bytes + at, sizeof(trailer));
    struct ckpt_hash hash =
        ckpt_hash_of(footer->bytes, (size_t)at + offsetof(struct disk_trailer, hash));
    if (memcmp(hash.byte, trailer.hash, sizeof(trailer.hash)) != 0)
        return "the footer doesn't match its hash";
    if (memcmp(trailer.magic, DISK_MAGIC_TRAILER, sizeof(trailer.magic)) != 0)
        return "the file doesn't end with a trailer";
    if (trailer.footer_offset != offset || trailer.footer_size != size || trailer.zero != 0 ||
        trailer.file_size != offset + size)
        return "the trailer's lengths are wrong";
    return trailer.version == DISK_VERSION ? NULL : "the trailer is of another version";
}

static enum status check_buffers(const struct ckpt_footer *footer, const char **what)
{
    for (uint32_t i = 0; i < footer->head->buffer_count; i++) {
        const struct disk_buffer *buffer = &footer->buffers[i];
        *what = "a buffer's entry is malformed";
        if (!name_is_good(buffer->name) || buffer->count > ELEMENTS_MAX)
            return ST_CORRUPT;
        for (uint32_t j = 0; j < i; j++) {
            if (strcmp(footer->buffers[j].name, buffer->name) == 0)
                return ST_CORRUPT;
        }
        *what = "a buffer is of a kind that this version doesn't know";
        if (ckpt_dtype_size(buffer->dtype) == 0 || buffer->in_digest != 1)
            return ST_VERSION;
    }
    return ST_OK;
}

static const char *check_blobs(const struct ckpt_footer *footer)
{
    for (uint32_t i = 0; i < footer->head->blob_count; i++) {
        if (!name_is_good(footer->blobs[i].name) || footer->blobs[i].size > DISK_BLOB_MAX)
            return "a blob's entry is malformed";
        for (uint32_t j = 0; j < i; j++) {
            if (strcmp(footer->blobs[j].name, footer->blobs[i].name) == 0)
                return "two blobs have one name";
        }
    }
    return NULL;
}

uint64_t ckpt_footer_raw_size(const struct ckpt_footer *footer,
                              const struct disk_reference *reference)
{
    uint64_t number = reference->buffer & ~DISK_BLOB, bytes = 0;
    if ((reference->buffer & DISK_BLOB) != 0) {
        if (number < footer->head->blob_count)
            bytes = footer->blobs[number].size;
    } else if (number < footer->head->buffer_count) {
        const struct disk_buffer *buffer = &footer->buffers[number];
        bytes = buffer->count * ckpt_dtype_size(buffer->dtype);
    }
    if (reference->index >= ckpt_chunks(CKPT_U8, bytes))
        return 0;
    uint64_t left = bytes - reference->index * DISK_CHUNK_BYTES;
    return left < DISK_CHUNK_BYTES ? left : DISK_CHUNK_BYTES;
}

static const char *check_references(const struct ckpt_footer *footer, uint64_t offset)
{
    uint64_t at = DISK_HEADER_SIZE, raw = 0, blob_raw = 0, blob_want = 0;
    for (uint32_t i = 0; i < footer->head->chunk_count; i++) {
        const struct disk_reference *it = &footer->references[i];
        if (it->offset != at || it->size <= sizeof(struct disk_chunk) || it->size > DISK_CHUNK_MAX)
            return "the table of chunks has a hole or an overlap";
        at += it->size;
        uint64_t size = ckpt_footer_raw_size(footer, it);
        if (size == 0)
            return "the table of chunks names a chunk that can't be";
        if ((it->buffer & DISK_BLOB) != 0) {
            blob_raw += size;
        } else {
            raw += size;
        }
        const struct disk_reference *before = it - 1;
        if (i > 0 && (before->buffer > it->buffer ||
                      (before->buffer == it->buffer && before->index >= it->index)))
            return "the table of chunks isn't in order";
    }
    if (at != offset)
        return "the chunks don't end where the footer begins";
    if (raw != footer->head->raw_size)
        return "the chunks don't add up to the footer's sum";
    for (uint32_t i = 0; i < footer->head->blob_count; i++)
        blob_want += footer->blobs[i].size;
    return blob_raw == blob_want ? NULL : "a blob's chunk is missing";
}

/* The elements of a slice that is within its tensor, or UINT64_MAX. */
static uint64_t slice_elements(const struct disk_tensor *tensor)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < DISK_DIMS; i++) {
        uint64_t shape = tensor->shape[i], start = tensor->start[i], extent = tensor->extent[i];
        if (i >= tensor->ndim) {
            if (shape != 0 || start != 0 || extent != 0)
                return UINT64_MAX;
            continue;
        }
        if (extent == 0 || extent > shape || start > shape - extent ||
            extent > ELEMENTS_MAX / count)
            return UINT64_MAX;
        count *= extent;
    }
    return count;
}

static enum status check_tensors(const struct ckpt_footer *footer, const char **what)
{
    for (uint32_t i = 0; i < footer->head->tensor_count; i++) {
        const struct disk_tensor *tensor = &footer->tensors[i];
        *what = "a tensor's entry is malformed";
        if (!name_is_good(tensor->name) || tensor->buffer >= footer->head->buffer_count ||
            tensor->alias > footer->head->tensor_count || tensor->zero[0] != 0 ||
            tensor->zero[1] != 0 || tensor->zero_too != 0)
            return ST_CORRUPT;
        uint64_t count = slice_elements(tensor);
        uint64_t room = footer->buffers[tensor->buffer].count;
        if (count > room || tensor->offset > room - count)
            return ST_CORRUPT;
        *what = "a tensor is of a kind that this version doesn't know";
        if (tensor->dtype != footer->buffers[tensor->buffer].dtype || tensor->in_digest != 1 ||
            tensor->kind != DISK_REPLICATED || tensor->ndim > 4 ||
            memcmp(tensor->extent, tensor->shape, sizeof(tensor->shape)) != 0)
            return ST_VERSION; /* the last: a part of it */
    }
    return ST_OK;
}

enum status ckpt_footer_check(struct ckpt_footer *footer, uint64_t size, uint64_t offset,
                              const char **what)
{
    *what = "the footer is too short";
    if (size < sizeof(struct disk_footer) + sizeof(struct disk_scalars) +
                   sizeof(struct disk_trailer) ||
        size > DISK_FOOTER_MAX)
        return ST_CORRUPT;
    *what = check_trailer(footer, size, offset);
    if (*what == NULL)
        *what = lay_out(footer, size);
    if (*what != NULL)
        return ST_CORRUPT;
    *what = "the skip list's length is given twice, differently";
    if (footer->scalars->skip_count != footer->head->skip_count)
        return ST_CORRUPT;
    enum status st = check_buffers(footer, what);
    if (st != ST_OK)
        return st;
    *what = check_blobs(footer);
    if (*what == NULL)
        *what = check_references(footer, offset);
    return *what == NULL ? check_tensors(footer, what) : ST_CORRUPT;
}
