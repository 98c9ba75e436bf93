/* Addresses of objects, and the encoding of S3's signatures: all but A-Z a-z 0-9 - . _ ~ as %XX. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/limits.h"

#define S3_BUCKET_MAX 64   /* 63 characters */
#define S3_KEY_MAX    1025 /* 1024 bytes */
#define S3_URL_MAX    (512 + 3 * S3_KEY_MAX + 8192)

/* Bucket and key of a path "s3://bucket/key". */
struct s3_place {
    char bucket[S3_BUCKET_MAX];
    char key[S3_KEY_MAX]; /* without a slash at either end; "" for the bucket */
};

/* false: this isn't such a path, or its bucket can't be one. */
bool s3_place_parse(const char *path, struct s3_place *out);

/* Encodes text; slashes stay as they are if `slashes`. false: no room. */
bool s3_url_encode(const char *text, bool slashes, char *out, size_t capacity);
/* The other way round, in place; a '+' is a blank. */
void s3_url_decode(char *text);

/*
 * endpoint "": Amazon's of the region, with the bucket in the host's name where it can be (no
 * dots); else the bucket is the path's first part. query: encoded and sorted, or NULL. false: no
 * room.
 */
bool s3_url_make(const char *endpoint, const char *region, const char *bucket, const char *key,
                 const char *query, char out[S3_URL_MAX]);
