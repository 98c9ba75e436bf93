/*
 * The operations on objects of S3, one function each.
 *
 * Making an object is not idempotent: an answer may be lost, and the attempt after it then finds
 * our own object in the way. So each object carries a random number of its making
 * (x-amz-meta-cairn-upload): an attempt whose outcome isn't known reads it, and knows its own.
 *
 * Thread: any. Errors: as s3_client_call.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/s3/client.h"
#include "checkpoint/s3/url.h"
#include "common/io.h"

#define S3_NONCE_TEXT 33
#define S3_ETAG_MAX   128

struct s3_object {
    uint64_t size;
    int64_t modified_ms;
    char etag[S3_ETAG_MAX];
    char nonce[64];
};

MUST_CHECK enum status s3_object_head(struct s3_client *client, const struct s3_place *place,
                                      struct s3_object *out);
/* Bytes [at, at + size) of the object that had this etag; ST_IO: it was replaced, or has fewer. */
MUST_CHECK enum status s3_object_read(struct s3_client *client, const struct s3_place *place,
                                      const char *etag, uint64_t at, void *into, size_t size);
/* ST_EXISTS: the key is taken, by an object that isn't of this call. Durable: on ST_OK. */
MUST_CHECK enum status s3_object_put_new(struct s3_client *client, const struct s3_place *place,
                                         const void *data, size_t size);
/* A missing one is success. */
MUST_CHECK enum status s3_object_delete(struct s3_client *client, const struct s3_place *place);

/* A name right under a folder; size: of a file, or IO_SIZE_UNKNOWN. false stops. */
typedef bool (*s3_name_fn)(void *arg, const char *name, bool is_folder, uint64_t size);
/* Lists a folder, in no order. A folder that doesn't exist has no names. */
MUST_CHECK enum status s3_list(struct s3_client *client, const struct s3_place *folder,
                               uint32_t page, s3_name_fn fn, void *arg);

/* ---- an object in parts ---- */

#define S3_PARTS_MAX      10000
#define S3_PART_BYTES_MIN ((size_t)5 << 20) /* of all but the last */
#define S3_UPLOAD_ID_MAX  1024

struct s3_multipart {
    struct s3_place place;
    char id[S3_UPLOAD_ID_MAX];
    char nonce[S3_NONCE_TEXT];
};

MUST_CHECK enum status s3_multipart_begin(struct s3_client *client, const struct s3_place *place,
                                          struct s3_multipart *out);
/* Parts count from 1; one that is sent again replaces the one before. */
MUST_CHECK enum status s3_multipart_part(struct s3_client *client,
                                         const struct s3_multipart *upload, uint32_t number,
                                         const void *data, size_t size, char etag[S3_ETAG_MAX]);
/* etags: of all parts, in order; size: of all together. Durable: on ST_OK. ST_EXISTS: the key is
 * taken. ST_AGAIN: the store has given the upload up, and wants another one. */
MUST_CHECK enum status s3_multipart_complete(struct s3_client *client,
                                             const struct s3_multipart *upload,
                                             char (*etags)[S3_ETAG_MAX], uint32_t count,
                                             uint64_t size);
/* Frees the parts. What it can't reach, the next sweep or the bucket's lifecycle rule must. */
void s3_multipart_abort(struct s3_client *client, const struct s3_multipart *upload);

/* Whether an upload that was begun for this key, and not ended, is nobody's any more. */
typedef bool (*s3_is_left_fn)(void *arg, const char *key);
/* Aborts uploads under a folder that is_left says are left over, S3_SWEEP_PAGES pages of them. */
#define S3_SWEEP_PAGES 100
MUST_CHECK enum status s3_multipart_sweep(struct s3_client *client, const struct s3_place *folder,
                                          uint32_t page, s3_is_left_fn is_left, void *arg);
