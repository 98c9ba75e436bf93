/*
 * Requests to S3 as calls: signed with credentials that are renewed in time, tried again while that
 * makes sense, and explained when they come to nothing.
 *
 * Tried again, with exponential back-off and full jitter, bounded in number and time: connections
 * that fail, stall or are cut off, answers cut short, 408, 429, 500, 502, 503, 504, and the codes
 * RequestTimeout, SlowDown, InternalError, ServiceUnavailable, OperationAborted and (but where a
 * call says otherwise) ConditionalRequestConflict, also where they come as the body of a 200.
 * Whoever sends something that isn't idempotent must be able to tell his own doing from that of
 * others (see object.h).
 *
 * Source: back-off with full jitter: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture
 *         Blog, 2015.
 * Thread: any.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/s3/http.h"

struct s3_client;

struct s3_tries {
    uint32_t attempts_max;
    int64_t backoff_ms; /* before the second attempt, at most; doubled each time */
    int64_t backoff_ms_max;
    int64_t time_ms_max; /* no attempt begins later */
};

struct s3_client_options {
    struct s3_http_times times;
    struct s3_tries tries;
};
struct s3_client_options s3_client_defaults(void);

struct s3_call {
    const char *method;
    const char *bucket;
    const char *key;       /* as it is, not encoded; "" for the bucket */
    const char *query;     /* encoded and sorted; or NULL */
    const char *header[4]; /* "Name: value"; NULL after the last */
    const void *body;
    size_t size;
    void *into; /* a 2xx must bring exactly into_size bytes; NULL: the answer's body takes them */
    size_t into_size;
    bool patient;  /* the server may think for minutes */
    bool spare;    /* there is another way: that the store doesn't do this is ST_INVALID */
    bool conflict; /* ConditionalRequestConflict ends it, with ST_AGAIN: all before it is void */
};

/* Reads the configuration. ST_CONFIG: the reason says what to change. */
MUST_CHECK enum status s3_client_new(const struct s3_client_options *options,
                                     struct s3_client **out, struct reason *reason);
/* Calls in progress end soon after it, waits included; none may begin. */
void s3_client_close(struct s3_client *client);
/* Frees the client. No call may be in progress. */
void s3_client_free(struct s3_client *client);

/*
 * Only ST_OK (2xx) gives an answer, to be released by the caller.
 * Errors: ST_NOT_FOUND   404 (NoSuchKey, NoSuchUpload; of HEAD also a missing bucket)
 *         ST_EXISTS      412: a condition isn't met
 *         ST_REFUSED     401, 403
 *         ST_CONFIG      no credentials, no such bucket, another region, something not supported
 *         ST_FULL        the store's quota
 *         ST_AGAIN       a conflict that the call wants to know of
 *         ST_INVALID     the store has no such request, and the call has a spare
 *         ST_TIMED_OUT, ST_UNREACHABLE, ST_IO after all attempts; ST_CLOSED
 * All but the first two have set what s3_client_explain tells.
 */
MUST_CHECK enum status s3_client_call(struct s3_client *client, const struct s3_call *call,
                                      struct s3_http_answer *out);

/* Likewise, for calls whose answer says nothing. */
MUST_CHECK enum status s3_client_do(struct s3_client *client, const struct s3_call *call);

/* Checks that a call could be signed. It sends nothing to the store, but may ask the source of
 * credentials.
 * Errors: as s3_client_call has them without credentials */
MUST_CHECK enum status s3_client_ready(struct s3_client *client);

/* The sentence of this thread's last call that failed, if it came to st; else "". Also set by hand,
 * e.g. to pass one on from another thread. */
void s3_client_explain(struct s3_client *client, enum status st, struct reason *out);
void s3_client_set_problem(struct s3_client *client, enum status st, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
