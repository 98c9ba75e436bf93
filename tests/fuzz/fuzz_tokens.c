/*
 * Any bytes as files of tokens: refused with a message, or a stream whose every token can be read.
 * The first byte says how: bit 0 text, the rest into how many files the others are cut.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "common/limits.h"
#include "tests/fuzz/fuzz.h"
#include "trainer/data/tokens.h"

#define READ_TOKENS 100

/* Files "0", "1", … of a folder: equal parts of the input, the last with the rest. */
struct files {
    const uint8_t *data;
    size_t size;
    size_t count;
};

static bool find(const struct files *f, const char *path, size_t *out)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash == NULL ? path : slash + 1;
    char *end = NULL;
    unsigned long i = strtoul(name, &end, 10);
    if (end == name || *end != '\0' || i >= f->count)
        return false;
    *out = (size_t)i;
    return true;
}

static enum status files_stat(void *self, const char *path, struct io_stat *out)
{
    size_t i = 0;
    if (!find(self, path, &i))
        return ST_NOT_FOUND;
    *out = (struct io_stat){ 0 };
    return ST_OK;
}

static enum status files_open(void *self, const char *path, int flags, int *out_fd)
{
    size_t i = 0;
    CHECK(flags == IO_READ);
    if (!find(self, path, &i))
        return ST_NOT_FOUND;
    *out_fd = (int)i;
    return ST_OK;
}

static enum status files_close(void *self, int fd)
{
    const struct files *f = self;
    CHECK((size_t)fd < f->count);
    return ST_OK;
}

static enum status files_list(void *self, const char *path, io_name_fn fn, void *arg)
{
    const struct files *f = self;
    (void)path;
    for (size_t i = 0; i < f->count; i++) {
        char name[2] = { (char)('0' + i), '\0' };
        if (!fn(arg, name))
            break;
    }
    return ST_OK;
}

/* A copy of exactly its size, so that a sanitizer sees what is read beyond. */
static enum status files_map(void *self, int fd, void **out_data, size_t *out_size)
{
    const struct files *f = self;
    size_t part = f->size / f->count;
    size_t begin = part * (size_t)fd;
    size_t size = (size_t)fd + 1 == f->count ? f->size - begin : part;
    uint8_t *copy = NULL;
    if (size > 0) {
        copy = malloc(size);
        CHECK(copy != NULL);
        memcpy(copy, f->data + begin, size);
    }
    *out_data = copy;
    *out_size = size;
    return ST_OK;
}

static enum status files_unmap(void *self, void *data, size_t size)
{
    (void)self;
    CHECK(size > 0);
    free(data);
    return ST_OK;
}

static void read_all(struct tokens *tokens)
{
    struct reason reason;
    int32_t out[READ_TOKENS];
    uint64_t count = tokens_count(tokens);
    for (uint64_t at = 0; at < count; at += READ_TOKENS) {
        struct tokens_range range = { .at = at, .vocab = 1 << 20 };
        range.count = count - at < READ_TOKENS ? count - at : READ_TOKENS;
        CHECK(tokens_read(tokens, &range, out, &reason) == ST_OK);
        range.vocab = out[0];
        CHECK(tokens_read(tokens, &range, out, &reason) == ST_CONFIG);
        CHECK(reason.text[0] != '\0');
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    struct files files = { .data = data + 1, .size = size - 1 };
    files.count = (size_t)(data[0] >> 1) % 9 + 1;
    struct io io = { .self = &files,
                     .open = files_open,
                     .close = files_close,
                     .stat = files_stat,
                     .list = files_list,
                     .map = files_map,
                     .unmap = files_unmap };
    struct tokens_options options = { .io = &io,
                                      .path = files.count == 1 ? "/data/0" : "/data/*",
                                      .text = (data[0] & 1) != 0 };
    struct reason reason = { .text = "" };
    struct tokens *tokens = NULL;
    enum status st = tokens_open(&options, &tokens, &reason);
    if (st == ST_OK) {
        read_all(tokens);
        tokens_close(tokens);
    } else {
        CHECK(st == ST_CONFIG);
        CHECK(reason.text[0] != '\0');
    }
    return 0;
}
