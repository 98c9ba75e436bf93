/*
 * One message on its way to a webhook: a POST, by libcurl.
 *
 * Certificates of https are checked, redirects are not followed, an answer beyond WEBHOOK_ANSWER
 * bytes is not read, and nothing takes longer than its time. What an answer means:
 *
 *   2xx                    taken
 *   410                    gone: nobody wants messages there any more
 *   408, 429, 5xx, silence again, later; not before Retry-After, where it is said
 *   all else               refused: the same message would be refused again
 *
 * Memory: a request has copies of what it was made of.
 * Thread: one at a time.
 */
#pragma once

#include <curl/curl.h>
#include <stddef.h>
#include <stdint.h>

#include "common/reason.h"
#include "webhook/config.h"

#define WEBHOOK_ANSWER     ((size_t)64 * 1024)
#define WEBHOOK_TIMEOUT_MS 10000 /* of a request, all in all: a receiver queues what takes longer */
#define WEBHOOK_CONNECT_MS 5000
#define WEBHOOK_AFTER_MIN  1000   /* Retry-After is kept within these, ms */
#define WEBHOOK_AFTER_MAX  900000 /* longer, the message itself would be old */

enum webhook_verdict { WEBHOOK_TAKEN, WEBHOOK_AGAIN, WEBHOOK_REFUSED, WEBHOOK_GONE };

struct webhook_answer {
    enum webhook_verdict verdict;
    long code;        /* 0: there was no answer */
    int64_t after_ms; /* not earlier again; 0: not said */
    int64_t took_ms;
    struct reason what; /* for people, without secrets */
};

struct webhook_message {
    enum webhook_event event;
    const char *delivery;
    const char *body;
    size_t size;
    int64_t unix_s;
    int64_t timeout_ms; /* 0: WEBHOOK_TIMEOUT_MS */
};

struct webhook_request;

/* curl_global_init first. Errors: ST_NO_MEMORY; those of webhook_secret_read, which reason explains
 * */
MUST_CHECK enum status webhook_request_new(const struct webhook *hook,
                                           const struct webhook_message *message,
                                           struct webhook_request **out, struct reason *reason);
/* NULL is fine. */
void webhook_request_free(struct webhook_request *request);
/* The handle to perform: borrowed; its private pointer is the request. */
CURL *webhook_request_curl(struct webhook_request *request);
/* Judges the answer of a request that was performed. */
void webhook_request_judge(struct webhook_request *request, CURLcode code,
                           struct webhook_answer *out);

/* Sends a message and waits for the answer. Errors: as webhook_request_new */
MUST_CHECK enum status webhook_send(const struct webhook *hook,
                                    const struct webhook_message *message,
                                    struct webhook_answer *out, struct reason *reason);
