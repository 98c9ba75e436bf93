#include "checkpoint/read/reader.h"

#include "checkpoint/format/hash.h"
#include "checkpoint/format/names.h"
#include "common/check.h"

const struct ckpt_manifest *ckpt_reader_manifest(const struct ckpt_reader *reader)
{
    return &reader->manifest;
}

const struct ckpt_scalars *ckpt_reader_scalars(const struct ckpt_reader *reader)
{
    return &reader->scalars;
}

uint32_t ckpt_reader_buffers(const struct ckpt_reader *reader, const struct ckpt_buffer **out)
{
    *out = reader->buffers;
    return reader->buffer_count;
}

uint32_t ckpt_reader_tensors(const struct ckpt_reader *reader, const struct ckpt_tensor **out)
{
    *out = reader->tensors;
    return reader->tensor_count;
}

bool ckpt_reader_blob(const struct ckpt_reader *reader, uint32_t i, const char **out_name,
                      uint64_t *out_size)
{
    if (i >= reader->set.blob_count)
        return false;
    *out_name = reader->set.blobs[i].name;
    *out_size = reader->set.blobs[i].size;
    return true;
}

const struct ckpt_place *ckpt_reader_place(const struct ckpt_reader *reader, uint32_t buffer,
                                           uint64_t index)
{
    CHECK(buffer < reader->buffer_count);
    const uint64_t at = reader->set.buffer_first[buffer] + index;
    CHECK(at < reader->set.place_count);
    return &reader->set.places[at];
}

enum status ckpt_reader_compare(struct ckpt_reader *reader, const struct ckpt_hash *digest)
{
    if (ckpt_hash_equal(digest, &reader->manifest.digest))
        return ST_OK;
    char text[33];
    ckpt_hash_text(digest, text);
    return ckpt_finding(&reader->findings, ST_CORRUPT, CKPT_MANIFEST,
                        "its digest isn't that of the stored bytes, which is %s", text);
}
