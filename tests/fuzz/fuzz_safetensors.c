/* Any bytes as a safetensors file, and as the header of one that is as long as it says. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/weights/safetensors.h"
#include "common/check.h"
#include "tests/fuzz/fuzz.h"

/* What an accepted file promises: its tensors lie one behind the other, to its end. */
static void check_places(const struct safetensors *file, uint64_t data_size)
{
    const struct safetensors_tensor *tensors = NULL;
    uint32_t count = safetensors_tensors(file, &tensors);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        CHECK(tensors[i].offset <= data_size);
        CHECK(tensors[i].size <= data_size - tensors[i].offset);
        CHECK(tensors[i].ndim >= 0 && tensors[i].ndim <= SAFETENSORS_DIMS);
        CHECK(safetensors_find(file, tensors[i].name) == &tensors[i]);
        sum += tensors[i].size;
    }
    CHECK(sum == data_size);
}

static void parse(const char *header, size_t size, uint64_t data_size)
{
    struct safetensors *file = NULL;
    struct reason message = { "" };
    enum status st = safetensors_parse(header, size, data_size, &file, &message);
    CHECK(st == ST_OK || message.text[0] != '\0');
    if (st != ST_OK)
        return;
    check_places(file, data_size);
    (void)safetensors_metadata(file, "format");
    safetensors_close(file);
}

/* A file in memory: the one descriptor of a table that only reads. */
struct bytes {
    const uint8_t *data;
    size_t size;
};

static enum status bytes_open(void *self, const char *path, int flags, int *out_fd)
{
    (void)self;
    (void)path;
    (void)flags;
    *out_fd = 3;
    return ST_OK;
}

static enum status bytes_close(void *self, int fd)
{
    (void)self;
    return fd == 3 ? ST_OK : ST_INVALID;
}

static enum status bytes_pread(void *self, int fd, void *data, size_t size, uint64_t at,
                               size_t *out_size)
{
    const struct bytes *bytes = self;
    CHECK(fd == 3);
    size_t left = at < bytes->size ? bytes->size - (size_t)at : 0;
    *out_size = size < left ? size : left;
    memcpy(data, bytes->data + (at < bytes->size ? at : 0), *out_size);
    return ST_OK;
}

static enum status bytes_stat(void *self, const char *path, struct io_stat *out)
{
    const struct bytes *bytes = self;
    (void)path;
    *out = (struct io_stat){ .size = bytes->size };
    return ST_OK;
}

static void read_all(struct safetensors *file)
{
    const struct safetensors_tensor *tensors = NULL;
    uint32_t count = safetensors_tensors(file, &tensors);
    for (uint32_t i = 0; i < count; i++) {
        void *data = malloc((size_t)tensors[i].size + 1);
        CHECK(data != NULL);
        CHECK(safetensors_read(file, &tensors[i], 0, tensors[i].size, data) == ST_OK);
        CHECK(safetensors_read(file, &tensors[i], 0, tensors[i].size + 1, data) == ST_INVALID);
        free(data);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes bytes = { .data = data, .size = size };
    struct io io = { .self = &bytes,
                     .open = bytes_open,
                     .close = bytes_close,
                     .pread = bytes_pread,
                     .stat = bytes_stat };
    struct safetensors *file = NULL;
    struct reason message = { "" };
    enum status st = safetensors_open(&io, "/file", &file, &message);
    CHECK(st == ST_OK || message.text[0] != '\0');
    if (st == ST_OK) {
        read_all(file);
        safetensors_close(file);
    }
    /* Parses the same bytes without their length, which a fuzzer seldom gets right. */
    size_t from = size >= 8 && data[8 < size ? 8 : 0] == '{' ? 8 : 0;
    for (uint64_t data_size = 0; data_size <= 64; data_size += 8)
        parse((const char *)data + from, size - from, data_size);
    return 0;
}
