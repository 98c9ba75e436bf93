#include "checkpoint/weights/values.h"

#include <stdlib.h>

enum status ckpt_values_open(struct ckpt_values *values, struct ckpt_reader *reader)
{
    *values = (struct ckpt_values){ .reader = reader };
    (void)ckpt_reader_buffers(reader, &values->buffers);
    values->tensor_count = ckpt_reader_tensors(reader, &values->tensors);
    values->stored = malloc(CKPT_VALUES_ELEMENTS * sizeof(uint64_t));
    values->wide = malloc(CKPT_VALUES_ELEMENTS * sizeof(float));
    return values->stored == NULL || values->wide == NULL ? ST_NO_MEMORY : ST_OK;
}

void ckpt_values_release(struct ckpt_values *values)
{
    free(values->stored);
    free(values->wide);
}

size_t ckpt_values_size(const struct ckpt_values *values, const struct ckpt_tensor *tensor,
                        uint64_t first, uint64_t end)
{
    uint64_t chunk = ckpt_chunk_elements(values->buffers[tensor->buffer].dtype);
    uint64_t step = chunk < CKPT_VALUES_ELEMENTS ? chunk : CKPT_VALUES_ELEMENTS;
    uint64_t stop = ((tensor->offset + first) / step + 1) * step - tensor->offset;
    return (size_t)((stop < end ? stop : end) - first);
}

enum status ckpt_values_read(struct ckpt_values *values, const struct ckpt_tensor *tensor,
                             uint64_t first, size_t count)
{
    return ckpt_read_buffer(values->reader, values->buffers[tensor->buffer].name,
                            tensor->offset + first, count, values->stored, NULL);
}
