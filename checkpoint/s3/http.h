/*
 * One HTTP request over libcurl, signed by its SigV4, tried once. No S3 is known here but the
 * headers of its answers.
 *
 * What libcurl 7.88 leaves to the caller: the query sorted and encoded (an empty value with its
 * '='), the path encoded, and x-amz-content-sha256 sent.
 *
 * Thread: any; each request takes an idle connection, or makes one.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/s3/config.h"
#include "common/buf.h"
#include "common/status.h"

#define S3_HEADERS_MAX 8
#define S3_BODY_MAX    ((size_t)16 << 20) /* an answer that isn't a file's bytes */

struct s3_http;

struct s3_http_times {
    int64_t connect_ms; /* for the connection and its TLS */
    int64_t stall_ms;   /* without a kilobyte a second */
    int64_t total_ms;   /* beside what the bytes take at 64 KiB/s */
};

struct s3_http_request {
    const char *method;
    const char *url;
    const char *headers[S3_HEADERS_MAX]; /* "Name: value"; NULL after the last */
    const void *body;
    size_t size;
    void *into; /* where the bytes of a 2xx go, at most into_size; NULL: to the answer's body */
    size_t into_size;
    bool patient;                             /* the server may think for minutes */
    const struct s3_credentials *credentials; /* NULL: not signed */
    const char *region;
};

struct s3_http_answer {
    long status;     /* 0: none came */
    int curl;        /* CURLcode of the transfer */
    char what[256];  /* of the transfer's failure */
    size_t received; /* bytes in into */
    uint64_t length; /* Content-Length */
    int64_t modified_ms;
    char etag[128];
    char region[64];
    char nonce[64];               /* x-amz-meta-cairn-upload */
    bool known;                   /* the answer has a header x-amz-... */
    char type[32], location[128]; /* Content-Type, cut; Location */
    struct buf body;
};
void s3_http_answer_release(struct s3_http_answer *answer);

/* ca_bundle: "" for the system's. closing: transfers end soon after it is set; borrowed. */
MUST_CHECK enum status s3_http_new(const struct s3_http_times *times, const char *ca_bundle,
                                   const atomic_bool *closing, struct s3_http **out);
void s3_http_free(struct s3_http *http);

/* ST_OK: out says what came of it, which may be nothing. out is released by the caller then. */
MUST_CHECK enum status s3_http_send(struct s3_http *http, const struct s3_http_request *request,
                                    struct s3_http_answer *out);

#define S3_SHA256_TEXT 65
/* Lower-case hex of the SHA-256 of bytes. */
MUST_CHECK enum status s3_sha256(const void *data, size_t size, char out[S3_SHA256_TEXT]);
#define S3_MD5_TEXT 25
/* Base64 of the MD5 of bytes, for Content-MD5. ST_CONFIG: this machine may not compute it. */
MUST_CHECK enum status s3_md5(const void *data, size_t size, char out[S3_MD5_TEXT]);
