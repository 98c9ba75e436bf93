/* Records (record.h); the sum is ISA-L's, which computes it by the processor's instruction. */
#include "observer/tensorboard/record.h"

#include <endian.h>
#include <isa-l/crc.h>
#include <limits.h>
#include <string.h>

#include "common/check.h"
#include "common/unconst.h"

uint32_t tensorboard_masked_crc(const void *data, size_t size)
{
    CHECK(size <= INT_MAX);
    const uint32_t crc = ~crc32_iscsi(unconst(data), (int)size, 0xffffffffu);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static void put_crc(char *at, const void *data, size_t size)
{
    const uint32_t crc = htole32(tensorboard_masked_crc(data, size));
    memcpy(at, &crc, sizeof(crc));
}

enum status tensorboard_record_put(struct buf *out, const void *data, size_t size)
{
    char head[TENSORBOARD_RECORD_HEAD], tail[TENSORBOARD_RECORD_TAIL];
    const uint64_t length = htole64(size);
    const size_t before = out->size;
    memcpy(head, &length, sizeof(length));
    put_crc(head + sizeof(length), head, sizeof(length));
    put_crc(tail, data, size);
    enum status st = buf_append(out, head, sizeof(head));
    if (st == ST_OK)
        st = buf_append(out, data, size);
    if (st == ST_OK)
        st = buf_append(out, tail, sizeof(tail));
    if (st != ST_OK)
        out->size = before;
    return st;
}

static bool crc_is(const char *at, const void *data, size_t size)
{
    uint32_t crc = 0;
    memcpy(&crc, at, sizeof(crc));
    return le32toh(crc) == tensorboard_masked_crc(data, size);
}

bool tensorboard_record_next(const char *file, size_t size, size_t *at, const void **out_data,
                             size_t *out_size)
{
    const size_t around = TENSORBOARD_RECORD_HEAD + TENSORBOARD_RECORD_TAIL;
    uint64_t length = 0;
    if (size - *at < around)
        return false;
    const char *head = file + *at;
    memcpy(&length, head, sizeof(length));
    length = le64toh(length);
    if (!crc_is(head + sizeof(length), head, sizeof(length)) || length > size - *at - around ||
        length > INT_MAX)
        return false;
    const char *data = head + TENSORBOARD_RECORD_HEAD;
    if (!crc_is(data + length, data, length))
        return false;
    *out_data = data;
    *out_size = length;
    *at += around + length;
    return true;
}
