/* Writing: temporary name, bytes, fsync, then the name, as in common/io's io_publish. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/format/names.h"
#include "checkpoint/weights/safetensors.h"
#include "common/check.h"
#include "common/cleanup.h"

#define STAGE_BYTES ((size_t)1 << 20) /* small tensors go out together */

struct safetensors_writer {
    const struct io *io;
    char path[LIMIT_PATH], temporary[LIMIT_PATH];
    bool replace;
    int fd;
    uint64_t written, size; /* of the file */
    size_t staged;
    uint8_t *stage;
};

static json_t *json_of_tensor(const struct safetensors_tensor *tensor)
{
    json_t *shape = json_array();
    for (int32_t i = 0; shape != NULL && i < tensor->ndim; i++)
        (void)json_array_append_new(shape, json_integer((json_int_t)tensor->dims[i]));
    uint64_t end = tensor->offset + tensor->size;
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", safetensors_dtype_name(tensor->dtype),
                     "shape", shape, "data_offsets", (json_int_t)tensor->offset, (json_int_t)end);
}

/* Each tensor follows the one before. ST_INVALID: too many bytes. */
static enum status place_tensors(const struct safetensors_content *content, uint64_t *out_size)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < content->tensor_count; i++) {
        struct safetensors_tensor *tensor = &content->tensors[i];
        uint64_t bits = safetensors_dtype_bits(tensor->dtype);
        for (int32_t d = 0; d < tensor->ndim; d++) {
            if (__builtin_mul_overflow(bits, tensor->dims[d], &bits))
                return ST_INVALID;
        }
        tensor->offset = end;
        tensor->size = bits / 8;
        if (bits % 8 != 0 || tensor->size > (uint64_t)INT64_MAX - end)
            return ST_INVALID;
        end += tensor->size;
    }
    *out_size = end;
    return ST_OK;
}

static json_t *json_of_content(const struct safetensors_content *content)
{
    json_t *header = json_object(), *metadata = json_object();
    bool good = header != NULL && metadata != NULL;
    for (uint32_t i = 0; good && i < content->metadata_count; i++) {
        good = json_object_set_new(metadata, content->metadata[i].key,
                                   json_string(content->metadata[i].value)) == 0;
    }
    good = good &&
           (content->metadata_count == 0 || json_object_set(header, "__metadata__", metadata) == 0);
    json_decref(metadata);
    for (uint32_t i = 0; good && i < content->tensor_count; i++) {
        const char *name = content->tensors[i].name;
        good = json_object_get(header, name) == NULL &&
               json_object_set_new(header, name, json_of_tensor(&content->tensors[i])) == 0;
    }
    if (good)
        return header;
    json_decref(header);
    return NULL;
}

/* The length and the header, padded so that the data begins at a multiple of 8; owned. */
static enum status make_header(const struct safetensors_content *content, char **out,
                               size_t *out_size)
{
    json_t *header = json_of_content(content);
    if (header == NULL)
        return ST_INVALID;
    auto_free char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    if (text == NULL)
        return ST_NO_MEMORY;
    size_t size = strlen(text), padded = (size + 7) / 8 * 8;
    if (padded > SAFETENSORS_HEADER_MAX)
        return ST_FULL;
    char *bytes = malloc(8 + padded);
    if (bytes == NULL)
        return ST_NO_MEMORY;
    for (int i = 0; i < 8; i++)
        bytes[i] = (char)(uint8_t)(padded >> 8 * i);
    memset(bytes + 8, ' ', padded);
    for (size_t i = 0; i < size; i++)
        bytes[8 + i] = text[i];
    *out = bytes;
    *out_size = 8 + padded;
    return ST_OK;
}

static void writer_free(struct safetensors_writer *writer)
{
    free(writer->stage);
    free(writer);
}

static enum status open_temporary(struct safetensors_writer *writer)
{
    const struct io *io = writer->io;
    struct io_stat info;
    /* A rename would take a device's place as readily as a file's. */
    if (io->stat(io->self, writer->path, &info) == ST_OK &&
        (!writer->replace || info.is_dir || info.is_special))
        return ST_EXISTS;
    enum status st = io->unlink(io->self, writer->temporary); /* of a process that died */
    if (st != ST_OK && st != ST_NOT_FOUND)
        return st;
    return io->open(io->self, writer->temporary, IO_CREATE_NEW, &writer->fd);
}

enum status safetensors_create(const struct io *io, const char *path, bool replace,
                               const struct safetensors_content *content,
                               struct safetensors_writer **out)
{
    struct safetensors_writer *writer = calloc(1, sizeof(*writer));
    if (writer == NULL)
        return ST_NO_MEMORY;
    *writer = (struct safetensors_writer){ .io = io, .replace = replace, .fd = -1 };
    int size = snprintf(writer->path, sizeof(writer->path), "%s", path);
    int longer =
        snprintf(writer->temporary, sizeof(writer->temporary), "%s.%ld.tmp", path, (long)getpid());
    auto_free char *header = NULL;
    size_t header_size = 0;
    enum status st = size > 0 && (size_t)longer < sizeof(writer->temporary) ? ST_OK : ST_INVALID;
    if (st == ST_OK)
        st = place_tensors(content, &writer->size);
    if (st == ST_OK)
        st = make_header(content, &header, &header_size);
    writer->size += header_size;
    writer->stage = malloc(STAGE_BYTES);
    if (st == ST_OK && writer->stage == NULL)
        st = ST_NO_MEMORY;
    if (st == ST_OK)
        st = open_temporary(writer);
    if (st != ST_OK) {
        writer_free(writer);
        return st;
    }
    st = safetensors_write(writer, header, header_size);
    if (st != ST_OK) {
        safetensors_abandon(writer);
        return st;
    }
    *out = writer;
    return ST_OK;
}

static enum status flush_stage(struct safetensors_writer *writer)
{
    CHECK(writer->staged <= STAGE_BYTES);
    enum status st =
        io_write_all(writer->io, writer->fd, writer->stage, writer->staged, writer->written);
    if (st == ST_OK) {
        writer->written += writer->staged;
        writer->staged = 0;
    }
    return st;
}

enum status safetensors_write(struct safetensors_writer *writer, const void *data, size_t size)
{
    const uint8_t *from = data;
    if (size > writer->size - writer->written - writer->staged)
        return ST_INVALID;
    while (size > 0) {
        size_t room = STAGE_BYTES - writer->staged, part = size < room ? size : room;
        memcpy(writer->stage + writer->staged, from, part);
        writer->staged += part;
        from += part;
        size -= part;
        enum status st = writer->staged == STAGE_BYTES ? flush_stage(writer) : ST_OK;
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

static enum status give_name(const struct safetensors_writer *writer)
{
    const struct io *io = writer->io;
    char parent[LIMIT_PATH];
    enum status st = writer->replace ? io->rename(io->self, writer->temporary, writer->path)
                                     : io->link(io->self, writer->temporary, writer->path);
    if (st == ST_OK && !writer->replace)
        st = io->unlink(io->self, writer->temporary);
    if (st == ST_OK)
        st = ckpt_dirname(writer->path, parent);
    return st == ST_OK ? io->fsync_dir(io->self, parent) : st;
}

enum status safetensors_publish(struct safetensors_writer *writer)
{
    const struct io *io = writer->io;
    enum status st = flush_stage(writer);
    if (st == ST_OK && writer->written != writer->size)
        st = ST_INVALID;
    if (st == ST_OK)
        st = io->fsync(io->self, writer->fd);
    enum status closed = io->close(io->self, writer->fd);
    writer->fd = -1;
    if (st == ST_OK)
        st = closed;
    if (st == ST_OK)
        st = give_name(writer);
    if (st != ST_OK)
        (void)io->unlink(io->self, writer->temporary);
    writer_free(writer);
    return st;
}

void safetensors_abandon(struct safetensors_writer *writer)
{
    if (writer == NULL)
        return;
    (void)writer->io->close(writer->io->self, writer->fd);
    (void)writer->io->unlink(writer->io->self, writer->temporary);
    writer_free(writer);
}
