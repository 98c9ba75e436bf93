#include "checkpoint/parts.h"

#include <stdlib.h>

enum status ckpt_parts_open(struct ckpt_parts *parts, struct ckpt_reader *reader)
{
    *parts = (struct ckpt_parts){ .reader = reader };
    (void)ckpt_reader_buffers(reader, &parts->buffers);
    parts->tensor_count = ckpt_reader_tensors(reader, &parts->tensors);
    parts->stored = malloc(CKPT_PART_ELEMENTS * sizeof(uint64_t));
    parts->wide = malloc(CKPT_PART_ELEMENTS * sizeof(float));
    return parts->stored == NULL || parts->wide == NULL ? ST_NO_MEMORY : ST_OK;
}

void ckpt_parts_release(struct ckpt_parts *parts)
{
    free(parts->stored);
    free(parts->wide);
}

size_t ckpt_parts_size(const struct ckpt_parts *parts, const struct ckpt_tensor *tensor,
                       uint64_t first, uint64_t end)
{
    uint64_t chunk = ckpt_chunk_elements(parts->buffers[tensor->buffer].dtype);
    uint64_t step = chunk < CKPT_PART_ELEMENTS ? chunk : CKPT_PART_ELEMENTS;
    uint64_t stop = ((tensor->offset + first) / step + 1) * step - tensor->offset;
    return (size_t)((stop < end ? stop : end) - first);
}

enum status ckpt_parts_read(struct ckpt_parts *parts, const struct ckpt_tensor *tensor,
                            uint64_t first, size_t count)
{
    return ckpt_read_buffer(parts->reader, parts->buffers[tensor->buffer].name,
                            tensor->offset + first, count, parts->stored, NULL);
}
