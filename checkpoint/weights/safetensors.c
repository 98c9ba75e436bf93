/* Reading: the header is parsed and checked whole before anything of it is used. */
#include "checkpoint/weights/safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"

#define METADATA "__metadata__"

struct safetensors {
    const struct io *io; /* NULL: only a header */
    int fd;
    uint64_t data_at;
    json_t *header; /* owns the names */
    struct safetensors_tensor *tensors;
    uint32_t count;
};

static const struct {
    const char *name;
    uint32_t bits;
} dtypes[SAFETENSORS_DTYPES] = {
    [SAFETENSORS_F32] = { "F32", 32 },
    [SAFETENSORS_BF16] = { "BF16", 16 },
    [SAFETENSORS_F16] = { "F16", 16 },
    [SAFETENSORS_F64] = { "F64", 64 },
    [SAFETENSORS_I64] = { "I64", 64 },
    [SAFETENSORS_I32] = { "I32", 32 },
    [SAFETENSORS_I16] = { "I16", 16 },
    [SAFETENSORS_I8] = { "I8", 8 },
    [SAFETENSORS_U64] = { "U64", 64 },
    [SAFETENSORS_U32] = { "U32", 32 },
    [SAFETENSORS_U16] = { "U16", 16 },
    [SAFETENSORS_U8] = { "U8", 8 },
    [SAFETENSORS_BOOL] = { "BOOL", 8 },
    [SAFETENSORS_C64] = { "C64", 64 },
    [SAFETENSORS_F8_E4M3] = { "F8_E4M3", 8 },
    [SAFETENSORS_F8_E5M2] = { "F8_E5M2", 8 },
    [SAFETENSORS_F8_E8M0] = { "F8_E8M0", 8 },
    [SAFETENSORS_F8_E4M3FNUZ] = { "F8_E4M3FNUZ", 8 },
    [SAFETENSORS_F8_E5M2FNUZ] = { "F8_E5M2FNUZ", 8 },
    [SAFETENSORS_F6_E2M3] = { "F6_E2M3", 6 },
    [SAFETENSORS_F6_E3M2] = { "F6_E3M2", 6 },
    [SAFETENSORS_F4] = { "F4", 4 },
};

const char *safetensors_dtype_name(enum safetensors_dtype dtype)
{
    return dtypes[dtype].name;
}

uint32_t safetensors_dtype_bits(enum safetensors_dtype dtype)
{
    return dtypes[dtype].bits;
}

static enum status complain(struct reason *reason, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static enum status complain(struct reason *reason, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    reason_set_list(reason, format, list);
    va_end(list);
    return ST_CORRUPT;
}

/* ---- one tensor ---- */

static enum status take_dtype(const json_t *value, struct safetensors_tensor *out,
                              struct reason *reason)
{
    const char *text = json_string_value(value);
    for (int i = 0; text != NULL && i < SAFETENSORS_DTYPES; i++) {
        if (strcmp(dtypes[i].name, text) == 0) {
            out->dtype = (enum safetensors_dtype)i;
            return ST_OK;
        }
    }
    return complain(reason, "tensor %.100s: dtype %.32s is none that this version knows", out->name,
                    text == NULL ? "(missing)" : text);
}

/* A list of whole numbers >= 0. */
static bool take_numbers(const json_t *list, size_t count, uint64_t *out)
{
    for (size_t i = 0; i < count; i++) {
        const json_t *number = json_array_get(list, i);
        if (!json_is_integer(number) || json_integer_value(number) < 0)
            return false;
        out[i] = (uint64_t)json_integer_value(number);
    }
    return true;
}

static enum status take_shape(const json_t *value, struct safetensors_tensor *out,
                              struct reason *reason)
{
    size_t count = json_array_size(value);
    if (!json_is_array(value) || count > SAFETENSORS_DIMS ||
        !take_numbers(value, count, out->dims)) {
        return complain(reason, "tensor %.100s: its shape isn't a list of at most %d sizes",
                        out->name, SAFETENSORS_DIMS);
    }
    out->ndim = (int32_t)count;
    return ST_OK;
}

/* Bytes of a shape; false: they don't fit into 64 bits, or end within one. */
static bool bytes_of(const struct safetensors_tensor *tensor, uint64_t *out)
{
    uint64_t bits = dtypes[tensor->dtype].bits;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        if (__builtin_mul_overflow(bits, tensor->dims[i], &bits))
            return false;
    }
    *out = bits / 8;
    return bits % 8 == 0;
}

static enum status take_offsets(const json_t *value, uint64_t data_size,
                                struct safetensors_tensor *out, struct reason *reason)
{
    uint64_t offsets[2], bytes = 0;
    if (!json_is_array(value) || json_array_size(value) != 2 || !take_numbers(value, 2, offsets))
        return complain(reason, "tensor %.100s: its data_offsets aren't two numbers", out->name);
    if (offsets[0] > offsets[1] || offsets[1] > data_size) {
        return complain(reason,
                        "tensor %.100s: its data_offsets [%" PRIu64 ", %" PRIu64
                        "] lie outside the file's %" PRIu64 " bytes of data",
                        out->name, offsets[0], offsets[1], data_size);
    }
    out->offset = offsets[0];
    out->size = offsets[1] - offsets[0];
    if (!bytes_of(out, &bytes) || bytes != out->size) {
        return complain(reason, "tensor %.100s: its shape and dtype don't take %" PRIu64 " bytes",
                        out->name, out->size);
    }
    return ST_OK;
}

static enum status take_tensor(const json_t *value, uint64_t data_size,
                               struct safetensors_tensor *out, struct reason *reason)
{
    if (json_object_size(value) != 3) {
        return complain(reason, "tensor %.100s: it isn't {dtype, shape, data_offsets}", out->name);
    }
    enum status st = take_dtype(json_object_get(value, "dtype"), out, reason);
    if (st == ST_OK)
        st = take_shape(json_object_get(value, "shape"), out, reason);
    if (st == ST_OK)
        st = take_offsets(json_object_get(value, "data_offsets"), data_size, out, reason);
    return st;
}

/* ---- the header ---- */

static enum status check_metadata(const json_t *metadata, struct reason *reason)
{
    if (metadata == NULL)
        return ST_OK;
    if (!json_is_object(metadata))
        return complain(reason, METADATA " isn't an object");
    void *at = json_object_iter((json_t *)metadata);
    for (; at != NULL; at = json_object_iter_next((json_t *)metadata, at)) {
        if (!json_is_string(json_object_iter_value(at)))
            return complain(reason, METADATA ": %.100s isn't a text", json_object_iter_key(at));
    }
    return ST_OK;
}

static int compare_offsets(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->size > y->size) - (x->size < y->size);
}

static int compare_names(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Checks that the tensors, in the order of their offsets, fill the data; leaves them ordered by
 * name. */
static enum status check_places(struct safetensors *file, uint64_t data_size, struct reason *reason)
{
    uint64_t end = 0;
    if (file->count > 0)
        qsort(file->tensors, file->count, sizeof(*file->tensors), compare_offsets);
    for (uint32_t i = 0; i < file->count; i++) {
        const struct safetensors_tensor *tensor = &file->tensors[i];
        if (tensor->offset != end) {
            return complain(reason,
                            "tensor %.100s: it begins at byte %" PRIu64 " where %" PRIu64
                            " was due: %s",
                            tensor->name, tensor->offset, end,
                            tensor->offset > end ? "there is a hole" : "it overlaps another");
        }
        end += tensor->size;
    }
    if (end != data_size) {
        return complain(reason, "%" PRIu64 " bytes behind the last tensor belong to none",
                        data_size - end);
    }
    if (file->count > 0)
        qsort(file->tensors, file->count, sizeof(*file->tensors), compare_names);
    return ST_OK;
}

static enum status take_tensors(struct safetensors *file, uint64_t data_size, struct reason *reason)
{
    size_t size = json_object_size(file->header);
    file->tensors = calloc(size + 1, sizeof(*file->tensors));
    if (file->tensors == NULL)
        return ST_NO_MEMORY;
    enum status st = check_metadata(json_object_get(file->header, METADATA), reason);
    void *at = json_object_iter(file->header);
    for (; st == ST_OK && at != NULL; at = json_object_iter_next(file->header, at)) {
        const char *name = json_object_iter_key(at);
        if (strcmp(name, METADATA) == 0)
            continue;
        struct safetensors_tensor *tensor = &file->tensors[file->count++];
        tensor->name = name;
        st = take_tensor(json_object_iter_value(at), data_size, tensor, reason);
    }
    return st == ST_OK ? check_places(file, data_size, reason) : st;
}

enum status safetensors_parse(const char *header, size_t size, uint64_t data_size,
                              struct safetensors **out, struct reason *reason)
{
    json_error_t error;
    if (size > SAFETENSORS_HEADER_MAX) {
        return complain(reason, "a header of %zu bytes is over the limit of %u", size,
                        SAFETENSORS_HEADER_MAX);
    }
    if (size == 0 || header[0] != '{')
        return complain(reason, "the header doesn't begin with {");
    struct safetensors *file = calloc(1, sizeof(*file));
    if (file == NULL)
        return ST_NO_MEMORY;
    file->fd = -1;
    file->header = json_loadb(header, size, JSON_REJECT_DUPLICATES, &error);
    enum status st = ST_OK;
    if (file->header == NULL && json_error_code(&error) == json_error_out_of_memory) {
        st = ST_NO_MEMORY;
    } else if (file->header == NULL) {
        st =
            complain(reason, "the header is no JSON: %.120s (byte %d)", error.text, error.position);
    }
    if (st == ST_OK)
        st = take_tensors(file, data_size, reason);
    if (st != ST_OK) {
        safetensors_close(file);
        return st;
    }
    *out = file;
    return ST_OK;
}

/* ---- a file ---- */

static uint64_t little_endian(const uint8_t bytes[8])
{
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--)
        value = value << 8 | bytes[i];
    return value;
}

static enum status read_header(const struct io *io, int fd, uint64_t file_size,
                               struct safetensors **out, struct reason *reason)
{
    uint8_t length[8];
    if (file_size < sizeof(length))
        return complain(reason, "%" PRIu64 " bytes are no safetensors file", file_size);
    enum status st = io_read_all(io, fd, length, sizeof(length), 0);
    if (st != ST_OK)
        return st;
    if (memcmp(length, "version ", 8) == 0)
        return complain(reason, "a pointer of git-lfs, not the file: fetch it with 'git lfs pull'");
    if (memcmp(length, "PK\x03\x04", 4) == 0) {
        return complain(reason, "a zip archive, as torch.save writes: no safetensors file; write "
                                "one with safetensors.torch.save_file");
    }
    uint64_t size = little_endian(length), rest = file_size - sizeof(length);
    if (size > SAFETENSORS_HEADER_MAX) {
        return complain(reason,
                        "its first 8 bytes ask for a header of %" PRIu64
                        " bytes, over the limit of %u: this is no safetensors file",
                        size, SAFETENSORS_HEADER_MAX);
    }
    if (size > rest)
        return complain(reason, "it ends within its header of %" PRIu64 " bytes", size);
    auto_free char *header = malloc((size_t)size + 1);
    if (header == NULL)
        return ST_NO_MEMORY;
    st = io_read_all(io, fd, header, (size_t)size, sizeof(length));
    if (st != ST_OK)
        return st;
    st = safetensors_parse(header, (size_t)size, rest - size, out, reason);
    if (st != ST_OK)
        return st;
    CHECK(*out != NULL);
    (*out)->data_at = sizeof(length) + size;
    return ST_OK;
}

enum status safetensors_open(const struct io *io, const char *path, struct safetensors **out,
                             struct reason *reason)
{
    struct io_stat info;
    int fd = -1;
    enum status st = io->stat(io->self, path, &info);
    if (st == ST_OK && info.is_dir)
        return complain(reason, "this is a folder");
    if (st == ST_OK)
        st = io->open(io->self, path, IO_READ, &fd);
    struct safetensors *file = NULL;
    if (st == ST_OK) {
        st = read_header(io, fd, info.size, &file, reason);
        if (st != ST_OK)
            (void)io->close(io->self, fd);
    }
    if (st != ST_OK) {
        if (st != ST_CORRUPT)
            reason_set(reason, "%s", status_string(st));
        return st;
    }
    CHECK(file != NULL);
    file->io = io;
    file->fd = fd;
    *out = file;
    return ST_OK;
}

void safetensors_close(struct safetensors *file)
{
    if (file == NULL)
        return;
    if (file->io != NULL)
        (void)file->io->close(file->io->self, file->fd);
    free(file->tensors);
    json_decref(file->header);
    free(file);
}

uint32_t safetensors_tensors(const struct safetensors *file, const struct safetensors_tensor **out)
{
    *out = file->tensors;
    return file->count;
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name)
{
    struct safetensors_tensor key = { .name = name };
    if (file->count == 0)
        return NULL;
    return bsearch(&key, file->tensors, file->count, sizeof(key), compare_names);
}

const char *safetensors_metadata(const struct safetensors *file, const char *key)
{
    return json_string_value(json_object_get(json_object_get(file->header, METADATA), key));
}

enum status safetensors_read(struct safetensors *file, const struct safetensors_tensor *tensor,
                             uint64_t first, uint64_t size, void *out)
{
    if (file->io == NULL || size > tensor->size || first > tensor->size - size)
        return ST_INVALID;
    return io_read_all(file->io, file->fd, out, (size_t)size,
                       file->data_at + tensor->offset + first);
}
