#include "common/buf.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"

void buf_init(struct buf *buf, size_t size_max)
{
    *buf = (struct buf){ .size_max = size_max };
}

void buf_release(struct buf *buf)
{
    free(buf->data);
    *buf = (struct buf){ .size_max = buf->size_max };
}

void buf_clear(struct buf *buf)
{
    buf->size = 0;
    if (buf->data != NULL)
        buf->data[0] = '\0';
}

/* Makes room for `more` bytes and the NUL. */
static enum status reserve(struct buf *buf, size_t more)
{
    CHECK(buf->size <= buf->size_max);
    if (more > buf->size_max - buf->size)
        return ST_FULL;
    size_t need = buf->size + more + 1;
    if (need <= buf->capacity)
        return ST_OK;
    size_t capacity = buf->capacity < 256 ? 256 : buf->capacity;
    while (capacity < need && capacity <= SIZE_MAX / 2)
        capacity *= 2;
    if (capacity > buf->size_max + 1)
        capacity = buf->size_max + 1;
    char *data = realloc(buf->data, capacity);
    if (data == NULL)
        return ST_NO_MEMORY;
    buf->data = data;
    buf->capacity = capacity;
    return ST_OK;
}

enum status buf_append(struct buf *buf, const void *data, size_t size)
{
    enum status st = reserve(buf, size);
    if (st != ST_OK)
        return st;
    if (size > 0)
        memcpy(buf->data + buf->size, data, size);
    buf->size += size;
    buf->data[buf->size] = '\0';
    return ST_OK;
}

enum status buf_append_text(struct buf *buf, const char *text)
{
    return buf_append(buf, text, strlen(text));
}

enum status buf_printf(struct buf *buf, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int length = vsnprintf(NULL, 0, format, list);
    va_end(list);
    if (length < 0)
        return ST_INVALID;
    enum status st = reserve(buf, (size_t)length);
    if (st != ST_OK)
        return st;
    va_start(list, format);
    (void)vsnprintf(buf->data + buf->size, (size_t)length + 1, format, list);
    va_end(list);
    buf->size += (size_t)length;
    return ST_OK;
}

char *buf_take(struct buf *buf, size_t *out_size)
{
    char *data = buf->data;
    if (out_size != NULL)
        *out_size = buf->size;
    *buf = (struct buf){ .size_max = buf->size_max };
    return data;
}
