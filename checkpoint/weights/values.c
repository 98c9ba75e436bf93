#include "checkpoint/weights/values.h"

#include <stdlib.h>

#include "checkpoint/weights/floats.h"
#include "common/check.h"

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

bool ckpt_values_next(const struct ckpt_values *values, const struct ckpt_tensor *tensor,
                      struct ckpt_values_part *part)
{
    const uint64_t chunk = ckpt_chunk_elements(values->buffers[tensor->buffer].dtype);
    const uint64_t most = chunk < CKPT_VALUES_ELEMENTS ? chunk : CKPT_VALUES_ELEMENTS;
    part->first += part->count;
    const uint64_t left = ckpt_tensor_elements(tensor) - part->first;
    const uint64_t to_border = most - (tensor->offset + part->first) % most;
    part->count = (size_t)(left < to_border ? left : to_border);
    return part->count > 0;
}

enum status ckpt_values_read(struct ckpt_values *values, const struct ckpt_tensor *tensor,
                             const struct ckpt_values_part *part)
{
    CHECK(part->count <= CKPT_VALUES_ELEMENTS);
    return ckpt_read_buffer(values->reader, values->buffers[tensor->buffer].name,
                            tensor->offset + part->first, part->count, values->stored, NULL);
}

void ckpt_values_widen(struct ckpt_values *values, const struct ckpt_tensor *tensor, size_t count)
{
    floats_widen(values->buffers[tensor->buffer].dtype, values->stored, count, values->wide);
}
