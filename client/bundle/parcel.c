#include "client/bundle/parcel.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/limits.h"
#include "proto/text/json.h"

#define LIST_BYTES ((size_t)2 << 20) /* of MANIFEST.txt, and of errors.txt */
#define WIDER      2 /* a text may become longer where REDACTED takes the place of something */

enum status parcel_open(struct parcel *parcel, const char *path, struct redact *redact,
                        int64_t now_s, struct reason *reason)
{
    *parcel =
        (struct parcel){ .redact = redact, .until_ms = clock_mono_ms(clock_system()) + PARCEL_MS };
    buf_init(&parcel->manifest, LIST_BYTES);
    buf_init(&parcel->errors, LIST_BYTES);
    return tar_create(path, now_s, &parcel->tar, reason);
}

/* Keeps a failure of the writer itself. */
static void note(struct parcel *parcel, enum status st)
{
    if (parcel->st == ST_OK)
        parcel->st = st;
}

void parcel_missing(struct parcel *parcel, const char *format, ...)
{
    char line[LIMIT_REASON * 2];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(line, sizeof(line), format, list);
    va_end(list);
    parcel->missing++;
    if (buf_printf(&parcel->errors, "%s\n", line) == ST_NO_MEMORY)
        note(parcel, ST_NO_MEMORY);
}

bool parcel_is_late(struct parcel *parcel, const char *name)
{
    if (clock_mono_ms(clock_system()) < parcel->until_ms)
        return false;
    parcel_missing(parcel, "%s: not asked for, as the %d s of a bundle were over", name,
                   PARCEL_MS / 1000);
    return true;
}

/* The last way of all bytes: what the filter has been through. cut: bytes that were left out. */
static void add(struct parcel *parcel, const char *name, const char *data, size_t size, size_t cut)
{
    char whole[TAR_NAME + 64];
    (void)snprintf(whole, sizeof(whole), PARCEL_ROOT "%s", name);
    if (parcel->st != ST_OK)
        return;
    if (redact_leaks(parcel->redact, data, size)) {
        parcel_missing(parcel, "%s: left out, as a secret would have been in it", name);
        return;
    }
    if (parcel->total + size > PARCEL_TOTAL_BYTES || strlen(whole) > TAR_NAME) {
        parcel_missing(parcel, "%s: left out, as the bundle has its %zu MiB", name,
                       PARCEL_TOTAL_BYTES >> 20);
        return;
    }
    note(parcel, tar_add(parcel->tar, whole, data, size));
    parcel->total += size;
    parcel->members++;
    enum status st = buf_printf(&parcel->manifest, "%10zu  %s", size, name);
    if (st == ST_OK && cut > 0)
        st = buf_printf(&parcel->manifest, "  (cut: the %zu bytes before aren't here)", cut);
    if (st == ST_OK)
        st = buf_append_text(&parcel->manifest, "\n");
    if (st == ST_NO_MEMORY)
        note(parcel, st);
}

void parcel_text(struct parcel *parcel, const char *name, const char *text, size_t size,
                 size_t most, size_t gone)
{
    auto_buf struct buf out;
    size_t cut = 0;
    buf_init(&out, WIDER * TAR_MEMBER_BYTES);
    if (size > most) {
        cut = size - most;
        const char *line = memchr(text + cut, '\n', most);
        cut = line != NULL && line + 1 < text + size ? (size_t)(line + 1 - text) : cut;
    }
    /* The filter sees what was cut, too, where it isn't too much: a secret may begin there. */
    const size_t before = cut < PARCEL_HEAD_BYTES ? cut : PARCEL_HEAD_BYTES;
    auto_buf struct buf head;
    buf_init(&head, WIDER * TAR_MEMBER_BYTES);
    enum status st = redact_text(parcel->redact, text + cut - before, size - cut + before, &out);
    if (st == ST_OK && before > 0)
        st = redact_text(parcel->redact, text + cut - before, before, &head);
    if (st != ST_OK) {
        parcel_missing(parcel, "%s: %s", name, status_string(st));
        return;
    }
    /* Both begin alike up to where the cut is, unless a secret spans it: then from there on. */
    size_t same = 0;
    while (same < head.size && same < out.size && head.data[same] == out.data[same])
        same++;
    add(parcel, name, out.data + same, out.size - same, gone + cut);
}

void parcel_json(struct parcel *parcel, const char *name, json_t *value)
{
    auto_buf struct buf out;
    buf_init(&out, PARCEL_FILE_BYTES);
    enum status st = value == NULL ? ST_NO_MEMORY : redact_json(parcel->redact, value);
    if (st == ST_OK)
        st = json_print(value, false, &out);
    if (st == ST_OK) {
        add(parcel, name, out.data, out.size, 0);
    } else {
        parcel_missing(parcel, "%s: %s", name, status_string(st));
    }
}

void parcel_reply(struct parcel *parcel, const char *name, ProtobufCMessage *reply)
{
    char file[TAR_NAME + 1];
    const enum status st = redact_message(parcel->redact, reply);
    const size_t size = protobuf_c_message_get_packed_size(reply);
    auto_free uint8_t *data = st == ST_OK && size < PARCEL_FILE_BYTES ? malloc(size + 1) : NULL;
    (void)snprintf(file, sizeof(file), "%s.pb", name);
    if (data == NULL) {
        parcel_missing(parcel, "%s: %s", file, status_string(st == ST_OK ? ST_NO_MEMORY : st));
        return;
    }
    add(parcel, file, (const char *)data, protobuf_c_message_pack(reply, data), 0);
}

enum status parcel_close(struct parcel *parcel, struct reason *reason)
{
    auto_buf struct buf errors;
    buf_init(&errors, LIST_BYTES);
    const bool all = parcel->errors.size == 0;
    enum status st = all ? buf_append_text(&errors, "nothing is missing\n")
                         : buf_append(&errors, parcel->errors.data, parcel->errors.size);
    if (st == ST_OK)
        parcel_text(parcel, "errors.txt", errors.data, errors.size, LIST_BYTES, 0);
    if (st == ST_OK && parcel->st == ST_OK) {
        parcel_text(parcel, "MANIFEST.txt", parcel->manifest.data, parcel->manifest.size,
                    LIST_BYTES, 0);
    }
    note(parcel, st);
    st = parcel->st;
    if (st == ST_OK) {
        st = tar_publish(parcel->tar, reason);
    } else {
        reason_set(reason, "the bundle can't be written: %s", status_string(st));
        tar_drop(parcel->tar);
    }
    buf_release(&parcel->manifest);
    buf_release(&parcel->errors);
    return st;
}
