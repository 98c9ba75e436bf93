/*
 * A growing byte buffer with a maximum, fixed at init.
 *
 * Memory: data is owned by the buffer, valid until the next call that grows it, and always followed
 *         by a NUL that size doesn't count. A failed append leaves the buffer as it was.
 * Errors: ST_FULL       the maximum would be passed
 *         ST_NO_MEMORY
 */
#pragma once

#include <stdarg.h>
#include <stddef.h>

#include "common/status.h"

struct buf {
    char *data;
    size_t size;
    size_t capacity;
    size_t size_max;
};

void buf_init(struct buf *buf, size_t size_max);
void buf_release(struct buf *buf);
void buf_clear(struct buf *buf);
MUST_CHECK enum status buf_append(struct buf *buf, const void *data, size_t size);
MUST_CHECK enum status buf_append_text(struct buf *buf, const char *text);
MUST_CHECK enum status buf_printf(struct buf *buf, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Passes ownership of the bytes to the caller (free; NULL if nothing was ever appended); the buffer
 * is empty afterwards. */
char *buf_take(struct buf *buf, size_t *out_size);

#define auto_buf __attribute__((cleanup(buf_release)))
