/*
 * safetensors files: tensors in the format that other people's tools read and write.
 *
 *     offset   what
 *     0        N, 8 bytes, little-endian, at most SAFETENSORS_HEADER_MAX
 *     8        N bytes of JSON (UTF-8), spaces behind it allowed:
 *              {NAME: {"dtype": …, "shape": […], "data_offsets": [BEGIN, END]}, …,
 *               "__metadata__": {TEXT: TEXT, …}}
 *     8 + N    the tensors' bytes, row-major, little-endian; offsets count from here
 *
 * Invariants of a file that is accepted (those of the reference reader, and as strict):
 *  (1) every name once, every key of a tensor once, no other key;
 *  (2) END - BEGIN is what dtype and shape take;
 *  (3) the tensors in order of their offsets fill the bytes behind the header without hole or
 *      overlap up to the end of the file.
 *
 * A file is read and written by parts; only its header is held in memory.
 *
 * Errors: the reason is a cause without the file's name: of ST_CORRUPT, and of every error of
 *         safetensors_open.
 * Source: the README and safetensors/src/tensor.rs of github.com/huggingface/safetensors.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/io.h"
#include "common/reason.h"
#include "common/status.h"

#define SAFETENSORS_HEADER_MAX 100000000u
#define SAFETENSORS_DIMS       8

enum safetensors_dtype {
    SAFETENSORS_F32 = 0,
    SAFETENSORS_BF16,
    SAFETENSORS_F16,
    SAFETENSORS_F64,
    SAFETENSORS_I64,
    SAFETENSORS_I32,
    SAFETENSORS_I16,
    SAFETENSORS_I8,
    SAFETENSORS_U64,
    SAFETENSORS_U32,
    SAFETENSORS_U16,
    SAFETENSORS_U8,
    SAFETENSORS_BOOL,
    SAFETENSORS_C64,
    SAFETENSORS_F8_E4M3,
    SAFETENSORS_F8_E5M2,
    SAFETENSORS_F8_E8M0,
    SAFETENSORS_F8_E4M3FNUZ,
    SAFETENSORS_F8_E5M2FNUZ,
    SAFETENSORS_F6_E2M3,
    SAFETENSORS_F6_E3M2,
    SAFETENSORS_F4,
    SAFETENSORS_DTYPES
};

/* "BF16" */
const char *safetensors_dtype_name(enum safetensors_dtype dtype);
uint32_t safetensors_dtype_bits(enum safetensors_dtype dtype);

struct safetensors_tensor {
    const char *name; /* UTF-8; borrowed from the file's header, or from the caller who writes */
    enum safetensors_dtype dtype;
    int32_t ndim;
    uint64_t dims[SAFETENSORS_DIMS];
    uint64_t offset, size; /* bytes; filled in by the writer */
};

/* ---- reading ---- */

struct safetensors;

/*
 * Errors: ST_CORRUPT                       not a safetensors file, or one that breaks a rule above
 *         ST_NOT_FOUND, ST_IO, ST_REFUSED  it can't be read
 */
MUST_CHECK enum status safetensors_open(const struct io *io, const char *path,
                                        struct safetensors **out, struct reason *reason);
/* A header alone, in front of data_size bytes; nothing can be read of it. */
MUST_CHECK enum status safetensors_parse(const char *header, size_t size, uint64_t data_size,
                                         struct safetensors **out, struct reason *reason);
void safetensors_close(struct safetensors *file);

/* Returns the tensors in the order of their names. Borrowed. */
uint32_t safetensors_tensors(const struct safetensors *file, const struct safetensors_tensor **out);
/* Returns the tensor of that name; NULL: none. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name);
/* Returns a text of the metadata, or NULL. Borrowed. */
const char *safetensors_metadata(const struct safetensors *file, const char *key);
/* Reads bytes [first, first + size) of a tensor. ST_INVALID: it has fewer. */
MUST_CHECK enum status safetensors_read(struct safetensors *file,
                                        const struct safetensors_tensor *tensor, uint64_t first,
                                        uint64_t size, void *out);

/* ---- writing ---- */

struct safetensors_text {
    const char *key, *value;
};

struct safetensors_content {
    struct safetensors_tensor *tensors; /* in the order in which their bytes will come */
    uint32_t tensor_count;
    const struct safetensors_text *metadata;
    uint32_t metadata_count;
};

struct safetensors_writer;

/*
 * Begins a file under a temporary name beside path; offsets and sizes of the tensors are filled in.
 * Errors: ST_EXISTS   path is there, and replace is false or it is no file
 *         ST_INVALID  a name twice, or a text that isn't UTF-8
 */
MUST_CHECK enum status safetensors_create(const struct io *io, const char *path, bool replace,
                                          const struct safetensors_content *content,
                                          struct safetensors_writer **out);
/* The next bytes. ST_INVALID: more than were announced. */
MUST_CHECK enum status safetensors_write(struct safetensors_writer *writer, const void *data,
                                         size_t size);
/*
 * Gives the whole file its name. The writer is gone afterwards, whatever is returned.
 * Durable: on ST_OK.
 * Errors:  ST_EXISTS   path has come to be, and replace is false
 *          ST_INVALID  bytes are missing
 */
MUST_CHECK enum status safetensors_publish(struct safetensors_writer *writer);
/* Drops an unfinished file. */
void safetensors_abandon(struct safetensors_writer *writer);
