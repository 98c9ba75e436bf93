/*
 * One message on its way to a webhook: a POST, by libcurl.
 *
 * Certificates of https are checked, redirects are not followed, an answer beyond HOOK_ANSWER bytes
 * is not read, and nothing takes longer than its time. What an answer means:
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
#include "hook/config.h"

#define HOOK_ANSWER     ((size_t)64 * 1024)
#define HOOK_TIMEOUT_MS 10000 /* of a request, all in all: a receiver queues what takes longer */
#define HOOK_CONNECT_MS 5000
#define HOOK_AFTER_MIN  1000   /* Retry-After is kept within these, ms */
#define HOOK_AFTER_MAX  900000 /* longer, the message itself would be old */

enum hook_verdict { HOOK_TAKEN, HOOK_AGAIN, HOOK_REFUSED, HOOK_GONE };

struct hook_answer {
    enum hook_verdict verdict;
    long code;        /* 0: there was no answer */
    int64_t after_ms; /* not earlier again; 0: not said */
    int64_t took_ms;
    struct reason what; /* for people, without secrets */
};

struct hook_message {
    enum hook_event event;
    const char *delivery;
    const char *body;
    size_t size;
    int64_t unix_s;
    int64_t timeout_ms; /* 0: HOOK_TIMEOUT_MS */
};

struct hook_request;

/* curl_global_init first. Errors: ST_NO_MEMORY; those of hook_secret_read, which reason explains */
MUST_CHECK enum status hook_request_new(const struct hook *hook, const struct hook_message *message,
                                        struct hook_request **out, struct reason *reason);
/* NULL is fine. */
void hook_request_free(struct hook_request *request);
/* The handle to perform: borrowed; its private pointer is the request. */
CURL *hook_request_curl(struct hook_request *request);
/* Judges the answer of a request that was performed. */
void hook_request_judge(struct hook_request *request, CURLcode code, struct hook_answer *out);

/* Sends a message and waits for the answer. Errors: as hook_request_new */
MUST_CHECK enum status hook_send(const struct hook *hook, const struct hook_message *message,
                                 struct hook_answer *out, struct reason *reason);
