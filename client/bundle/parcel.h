/*
 * A bundle while it is packed: members go through the filter and the bounds, and nothing gets in
 * by another way.
 *
 *   cairn-bundle/MANIFEST.txt       what is in it, how large, what was cut
 *   cairn-bundle/errors.txt         what couldn't be had, a line each
 *   cairn-bundle/replies/METHOD.pb  replies of the coordinator, which --bundle prints again
 *   cairn-bundle/jobs/ID/...        of one job; METHOD.pb likewise
 */
#pragma once

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/archive/tar.h"
#include "client/bundle/redact.h"
#include "common/buf.h"

#define PARCEL_ROOT        "cairn-bundle/"
#define PARCEL_HEAD_BYTES  ((size_t)16 << 10)  /* before a cut that the filter looks at, too */
#define PARCEL_LOG_BYTES   ((size_t)256 << 10) /* of a program's log, its newest */
#define PARCEL_FILE_BYTES  ((size_t)8 << 20)   /* of any other file */
#define PARCEL_MS          120000              /* for all that is asked */
#define PARCEL_TOTAL_BYTES ((size_t)128 << 20) /* of all */

struct parcel {
    struct tar_writer *tar;
    struct redact *redact;
    struct buf manifest, errors;
    size_t total, members, missing;
    int64_t until_ms; /* monotonic: what isn't asked by then is not asked any more */
    enum status st;   /* the first failure to write; then nothing more is added */
};

/* Begins a file at path. Errors: those of tar_create */
MUST_CHECK enum status parcel_open(struct parcel *parcel, const char *path, struct redact *redact,
                                   int64_t now_s, struct reason *reason);
/* Adds MANIFEST.txt and errors.txt, and publishes the file; else nothing is left of it. Errors:
 * those of tar_publish, or parcel->st */
MUST_CHECK enum status parcel_close(struct parcel *parcel, struct reason *reason);

/* True if the time for a bundle is over; then `name` is noted as missing. */
bool parcel_is_late(struct parcel *parcel, const char *name);
/* Adds a line to errors.txt. */
void parcel_missing(struct parcel *parcel, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Adds a text; of a longer one than `most` bytes its end, from a line's beginning on. Who has a
 * long one reads PARCEL_HEAD_BYTES more, for a secret may begin before what is kept. gone: bytes
 * before the text that weren't read. name: below PARCEL_ROOT. */
void parcel_text(struct parcel *parcel, const char *name, const char *text, size_t size,
                 size_t most, size_t gone);
/* Adds a value as text. It is filtered in place. */
void parcel_json(struct parcel *parcel, const char *name, json_t *value);
/* Adds a reply of the coordinator as NAME.pb; it is filtered in place, for who reads it next. */
void parcel_reply(struct parcel *parcel, const char *name, ProtobufCMessage *reply);
