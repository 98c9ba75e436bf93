#include "server/api/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/limits.h"

/* A field's length as protobuf writes it, in front of its bytes. */
static enum status append_length(struct buf *out, size_t length)
{
    uint8_t bytes[10];
    size_t size = 0;
    do {
        bytes[size++] = (uint8_t)((length & 0x7f) | (length > 0x7f ? 0x80 : 0));
        length >>= 7;
    } while (length > 0);
    return buf_append(out, bytes, size);
}

static bool add_packed(void *arg, uint64_t step, const void *data, size_t size)
{
    struct rows_page *rows = arg;
    const size_t begin = rows->bytes.size;
    rows->more = rows->count == ROWS_PAGE || (rows->count > 0 && begin + size > ROWS_BYTES);
    if (rows->more)
        return false;
    rows->failed =
        append_length(&rows->bytes, size) != ST_OK || buf_append(&rows->bytes, data, size) != ST_OK;
    if (rows->failed)
        return false;
    rows->list[rows->count++] =
        (ProtobufCMessageUnknownField){ .tag = 1, /* rows */
                                        .wire_type = PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED,
                                        .len = rows->bytes.size - begin };
    rows->next_step = step + 1;
    return true;
}

static enum status load(struct rows_page *rows, struct journal *journal, const char *job,
                        uint64_t from_step)
{
    if (rows->list == NULL) {
        rows->list = calloc(ROWS_PAGE, sizeof(*rows->list));
        buf_init(&rows->bytes, ROWS_BYTES + (size_t)LIMIT_MESSAGE_BYTES);
    }
    if (rows->list == NULL)
        return ST_NO_MEMORY;
    buf_clear(&rows->bytes);
    rows->count = 0;
    rows->more = rows->told = rows->failed = false;
    rows->from_step = rows->next_step = from_step;
    const enum status st =
        journal_each_metric(journal, job, from_step, ROWS_PAGE + 1, add_packed, rows);
    uint8_t *at = (uint8_t *)rows->bytes.data;
    for (size_t i = 0; i < rows->count; i++) { /* it doesn't move any more */
        rows->list[i].data = at;
        at += rows->list[i].len;
    }
    return rows->failed ? ST_NO_MEMORY : st;
}

enum status rows_read(struct rows_page *rows, struct journal *journal, const char *job,
                      uint64_t from_step)
{
    if (strcmp(rows->job, job) == 0 && rows->from_step == from_step)
        return ST_OK;
    rows_forget(rows);
    const enum status st = load(rows, journal, job, from_step);
    if (st == ST_OK)
        (void)snprintf(rows->job, sizeof(rows->job), "%s", job);
    return st;
}

void rows_put(struct rows_page *rows, Cairn__V1__ReadMetricsReply *out)
{
    out->base.unknown_fields = rows->list;
    out->base.n_unknown_fields = (unsigned)rows->count;
    out->next_step = rows->next_step;
    out->more = rows->more;
    rows->told = true;
}

void rows_forget(struct rows_page *rows)
{
    rows->job[0] = '\0';
}

void rows_read_ahead(struct rows_page *rows, struct journal *journal)
{
    if (rows->job[0] == '\0' || !rows->told || !rows->more)
        return;
    if (load(rows, journal, rows->job, rows->next_step) != ST_OK)
        rows_forget(rows);
}

void rows_release(struct rows_page *rows)
{
    if (rows->list != NULL)
        buf_release(&rows->bytes);
    free(rows->list);
    *rows = (struct rows_page){ .list = NULL };
}
