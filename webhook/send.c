/* Messages by libcurl, and what answers mean. */
#include "webhook/send.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "webhook/private.h"
#include "webhook/sign.h"

struct webhook_request {
    CURL *curl;
    struct curl_slist *headers;
    char url[WEBHOOK_URL];
    char error[CURL_ERROR_SIZE];
    size_t received;
};

/* Takes a part of the answer, which nobody reads; beyond the bound nobody waits for the rest. */
/* NOLINTNEXTLINE(readability-non-const-parameter): libcurl's signature */
static size_t take_answer(char *data, size_t size, size_t count, void *arg)
{
    struct webhook_request *request = arg;
    (void)data;
    request->received += size * count;
    return request->received > WEBHOOK_ANSWER ? 0 : size * count;
}

static bool add_header(struct webhook_request *request, const char *name, const char *value)
{
    char line[512];
    int size = snprintf(line, sizeof(line), "%s: %s", name, value);
    struct curl_slist *list =
        size > 0 && (size_t)size < sizeof(line) ? curl_slist_append(request->headers, line) : NULL;
    if (list != NULL)
        request->headers = list;
    return list != NULL;
}

static enum status add_signature(struct webhook_request *request, const struct webhook *hook,
                                 const struct webhook_message *message, struct reason *reason)
{
    char *secret = NULL;
    size_t size = 0;
    char signature[WEBHOOK_SIGNATURE];
    if (hook->secret_file[0] == '\0')
        return ST_OK;
    enum status st = webhook_secret_read(hook->secret_file, &secret, &size, reason);
    if (st == ST_OK)
        st = webhook_sign(secret, size, message->unix_s, message->body, message->size, signature);
    webhook_secret_free(secret, size);
    if (st == ST_OK && !add_header(request, "X-Cairn-Signature", signature))
        st = ST_NO_MEMORY;
    return st;
}

static enum status add_headers(struct webhook_request *request, const struct webhook *hook,
                               const struct webhook_message *message, struct reason *reason)
{
    bool ok = add_header(request, "Content-Type", webhook_content_type(hook->format)) &&
              add_header(request, "X-Cairn-Event", webhook_event_word(message->event)) &&
              add_header(request, "X-Cairn-Delivery", message->delivery) &&
              add_header(request, "Expect", "");
    return ok ? add_signature(request, hook, message, reason) : ST_NO_MEMORY;
}

static bool set_options(struct webhook_request *request, const struct webhook *hook,
                        const struct webhook_message *message)
{
    CURL *curl = request->curl;
    const int64_t total_ms = message->timeout_ms > 0 ? message->timeout_ms : WEBHOOK_TIMEOUT_MS;
    bool ok =
        curl_easy_setopt(curl, CURLOPT_URL, hook->url) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 1L) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 2L) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_POST, 1L) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)message->size) ==
            CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_COPYPOSTFIELDS, message->body) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_USERAGENT, "cairn-observer/" CAIRN_VERSION) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_HTTPHEADER, request->headers) == CURLE_OK;
    if (ok && hook->ca_file[0] != '\0')
        ok = curl_easy_setopt(curl, CURLOPT_CAINFO, hook->ca_file) == CURLE_OK;
    (void)curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)total_ms);
    (void)curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)WEBHOOK_CONNECT_MS);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_answer);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEDATA, request);
    (void)curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, request->error);
    (void)curl_easy_setopt(curl, CURLOPT_PRIVATE, request);
    return ok;
}

enum status webhook_request_new(const struct webhook *hook, const struct webhook_message *message,
                                struct webhook_request **out, struct reason *reason)
{
    struct webhook_request *request = calloc(1, sizeof(*request));
    if (request == NULL)
        return ST_NO_MEMORY;
    memcpy(request->url, hook->url, sizeof(request->url));
    request->curl = curl_easy_init();
    enum status st =
        request->curl == NULL ? ST_NO_MEMORY : add_headers(request, hook, message, reason);
    if (st == ST_OK && !set_options(request, hook, message))
        st = ST_NO_MEMORY;
    if (st != ST_OK) {
        webhook_request_free(request);
        return st;
    }
    *out = request;
    return ST_OK;
}

void webhook_request_free(struct webhook_request *request)
{
    if (request == NULL)
        return;
    curl_easy_cleanup(request->curl);
    curl_slist_free_all(request->headers);
    free(request);
}

CURL *webhook_request_curl(struct webhook_request *request)
{
    return request->curl;
}

/* ---- what an answer means ---- */

static enum webhook_verdict verdict_of(long code)
{
    if (code >= 200 && code < 300)
        return WEBHOOK_TAKEN;
    if (code == 410)
        return WEBHOOK_GONE;
    if (code == 408 || code == 429 || code >= 500 || code < 200)
        return WEBHOOK_AGAIN;
    return WEBHOOK_REFUSED;
}

static void explain_code(long code, struct reason *what)
{
    if (code >= 300 && code < 400) {
        reason_set(what, "%ld: redirects are not followed; write where it leads as url", code);
    } else if (code == 401 || code == 403) {
        reason_set(what, "%ld: not allowed; look at url and secret_file", code);
    } else if (code == 404) {
        reason_set(what, "404: there is nothing at this address; look at url");
    } else if (code == 400 || code == 415 || code == 422) {
        reason_set(what, "%ld: it doesn't understand the message; look at format", code);
    } else if (code == 410) {
        reason_set(what, "410: it wants no more messages");
    } else {
        reason_set(what, "%ld", code);
    }
}

static void explain_silence(const struct webhook_request *request, CURLcode code,
                            struct reason *what)
{
    const bool said = request->error[0] != '\0' && !webhook_url_leaks(request->url, request->error);
    reason_set(what, "%s", said ? request->error : curl_easy_strerror(code));
}

void webhook_request_judge(struct webhook_request *request, CURLcode code,
                           struct webhook_answer *out)
{
    curl_off_t after_s = 0, took_us = 0;
    *out = (struct webhook_answer){ .verdict = WEBHOOK_AGAIN };
    (void)curl_easy_getinfo(request->curl, CURLINFO_RESPONSE_CODE, &out->code);
    (void)curl_easy_getinfo(request->curl, CURLINFO_RETRY_AFTER, &after_s);
    (void)curl_easy_getinfo(request->curl, CURLINFO_TOTAL_TIME_T, &took_us);
    out->took_ms = (int64_t)took_us / 1000;
    /* We hung up on a long answer: what it begins with is all there is to know. */
    const bool enough = code == CURLE_WRITE_ERROR && request->received > WEBHOOK_ANSWER;
    if (code != CURLE_OK && !enough) {
        out->code = 0;
        out->verdict = code == CURLE_URL_MALFORMAT ? WEBHOOK_REFUSED : WEBHOOK_AGAIN;
        explain_silence(request, code, &out->what);
        return;
    }
    out->verdict = verdict_of(out->code);
    explain_code(out->code, &out->what);
    if (out->verdict == WEBHOOK_AGAIN && after_s > 0) {
        const int64_t after_ms =
            after_s > WEBHOOK_AFTER_MAX / 1000 ? WEBHOOK_AFTER_MAX : after_s * 1000;
        out->after_ms = after_ms < WEBHOOK_AFTER_MIN ? WEBHOOK_AFTER_MIN : after_ms;
    }
}

enum status webhook_send(const struct webhook *hook, const struct webhook_message *message,
                         struct webhook_answer *out, struct reason *reason)
{
    struct webhook_request *request = NULL;
    enum status st = webhook_request_new(hook, message, &request, reason);
    if (st != ST_OK)
        return st;
    CURLcode code = curl_easy_perform(request->curl);
    webhook_request_judge(request, code, out);
    webhook_request_free(request);
    return ST_OK;
}
