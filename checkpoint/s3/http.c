#include "checkpoint/s3/http.h"

#include <curl/curl.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/check.h"

#define IDLE_MAX         16
#define BYTES_PER_MS     64 /* the slowest transfer that is waited for */
#define STALL_BYTES      1024L
#define RECEIVE_BUFFER   (512L << 10)
#define SEND_BUFFER      (1L << 20)
#define NONCE_HEADER     "x-amz-meta-cairn-upload"
#define CONNECTION_AGE_S 60L
#define GO_AHEAD_MS      1L

struct s3_http {
    struct s3_http_times times;
    char ca_bundle[LIMIT_PATH];
    const atomic_bool *closing;
    pthread_mutex_t mutex;
    CURL *idle[IDLE_MAX];
    size_t idle_count;
};

/* A request under way. */
struct transfer {
    struct s3_http *http;
    const struct s3_http_request *request;
    struct s3_http_answer *answer;
    CURL *curl;
    size_t sent;
    bool overflow;
    bool headed; /* the answer's head has come to its end */
};

void s3_http_answer_release(struct s3_http_answer *answer)
{
    buf_release(&answer->body);
}

enum status s3_sha256(const void *data, size_t size, char out[S3_SHA256_TEXT])
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    if (EVP_Digest(data, size, digest, &length, EVP_sha256(), NULL) != 1 || length != 32)
        return ST_NO_MEMORY;
    for (unsigned i = 0; i < length; i++)
        (void)snprintf(out + 2 * (size_t)i, 3, "%02x", digest[i]);
    return ST_OK;
}

enum status s3_md5(const void *data, size_t size, char out[S3_MD5_TEXT])
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    if (EVP_Digest(data, size, digest, &length, EVP_md5(), NULL) != 1 || length != 16)
        return ST_CONFIG;
    (void)EVP_EncodeBlock((unsigned char *)out, digest, (int)length);
    return ST_OK;
}

/* ---- what libcurl calls ---- */

static size_t read_body(char *to, size_t size, size_t count, void *arg)
{
    struct transfer *t = arg;
    size_t room = size * count, left = t->request->size - t->sent;
    size_t now = left < room ? left : room;
    if (now > 0)
        memcpy(to, (const char *)t->request->body + t->sent, now);
    t->sent += now;
    return now;
}

static int seek_body(void *arg, curl_off_t at, int origin)
{
    struct transfer *t = arg;
    if (origin != SEEK_SET || at < 0 || (uint64_t)at > t->request->size)
        return CURL_SEEKFUNC_FAIL;
    t->sent = (size_t)at;
    return CURL_SEEKFUNC_OK;
}

static size_t take_body(char *data, size_t size, size_t count, void *arg)
{
    struct transfer *t = arg;
    size_t bytes = size * count;
    long status = 0;
    (void)curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
    if (t->request->into == NULL || status / 100 != 2) {
        t->overflow = buf_append(&t->answer->body, data, bytes) != ST_OK;
        return t->overflow ? 0 : bytes;
    }
    t->overflow = bytes > t->request->into_size - t->answer->received;
    if (t->overflow)
        return 0;
    memcpy((char *)t->request->into + t->answer->received, data, bytes);
    t->answer->received += bytes;
    return bytes;
}

/* The value, if the line is this header's; without the blanks around it. */
static bool take_header_of(const char *line, size_t size, const char *name, char *out,
                           size_t capacity)
{
    size_t length = strlen(name);
    if (size <= length || strncasecmp(line, name, length) != 0 || line[length] != ':')
        return false;
    const char *from = line + length + 1, *end = line + size;
    while (from < end && (*from == ' ' || *from == '\t'))
        from++;
    while (end > from && strchr("\r\n \t", end[-1]) != NULL)
        end--;
    size_t value = (size_t)(end - from);
    if (value >= capacity)
        value = 0; /* not one that we can use */
    memcpy(out, from, value);
    out[value] = '\0';
    return true;
}

static size_t take_header(char *line, size_t size, size_t count, void *arg)
{
    struct transfer *t = arg;
    struct s3_http_answer *answer = t->answer;
    size_t bytes = size * count;
    char text[64];
    answer->known = answer->known || (bytes > 6 && strncasecmp(line, "x-amz-", 6) == 0);
    t->headed = bytes <= 2; /* the empty line; libcurl takes an end before it for one, too */
    if (take_header_of(line, bytes, "etag", answer->etag, sizeof(answer->etag)) ||
        take_header_of(line, bytes, NONCE_HEADER, answer->nonce, sizeof(answer->nonce)) ||
        take_header_of(line, bytes, "x-amz-bucket-region", answer->region,
                       sizeof(answer->region)) ||
        take_header_of(line, bytes, "location", answer->location, sizeof(answer->location)))
        return bytes;
    if (take_header_of(line, bytes, "content-type", text, sizeof(text))) {
        (void)snprintf(answer->type, sizeof(answer->type), "%.*s", (int)sizeof(answer->type) - 1,
                       text);
    } else if (take_header_of(line, bytes, "content-length", text, sizeof(text))) {
        answer->length = strtoull(text, NULL, 10);
    } else if (take_header_of(line, bytes, "last-modified", text, sizeof(text))) {
        time_t at = curl_getdate(text, NULL);
        answer->modified_ms = at < 0 ? 0 : (int64_t)at * 1000;
    }
    return bytes;
}

static int look_around(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    const struct transfer *t = arg;
    return atomic_load(t->http->closing) ? 1 : 0;
}

/* ---- one request ---- */

static CURL *take_handle(struct s3_http *http)
{
    CURL *curl = NULL;
    CHECK(pthread_mutex_lock(&http->mutex) == 0);
    if (http->idle_count > 0)
        curl = http->idle[--http->idle_count];
    (void)pthread_mutex_unlock(&http->mutex);
    return curl == NULL ? curl_easy_init() : curl;
}

/* Keeps its connections for the next request. */
static void give_handle(struct s3_http *http, CURL *curl)
{
    curl_easy_reset(curl);
    CHECK(pthread_mutex_lock(&http->mutex) == 0);
    bool kept = http->idle_count < IDLE_MAX;
    if (kept)
        http->idle[http->idle_count++] = curl;
    (void)pthread_mutex_unlock(&http->mutex);
    if (!kept)
        curl_easy_cleanup(curl);
}

/* Options beside method and signature. Those that a libcurl could refuse are looked at. */
static bool set_transfer(struct transfer *t)
{
    CURL *c = t->curl;
    const struct s3_http *http = t->http;
    const struct s3_http_request *r = t->request;
    int64_t bytes = (int64_t)(r->size + r->into_size);
    int64_t total_ms = http->times.total_ms * (r->patient ? 5 : 1) + bytes / BYTES_PER_MS;
    long stall_s = (long)((http->times.stall_ms + 999) / 1000);
    bool good = curl_easy_setopt(c, CURLOPT_URL, r->url) == CURLE_OK &&
                curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
                curl_easy_setopt(c, CURLOPT_PATH_AS_IS, 1L) == CURLE_OK &&
                curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L) == CURLE_OK;
    (void)curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)http->times.connect_ms);
    (void)curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)total_ms);
    /* Don't wait for a go-ahead: a body is a few MB, and some servers never send it. Removing the
     * header "Expect" instead doesn't work: libcurl before 8.3 signs it even so, and MinIO refuses
     * that. */
    (void)curl_easy_setopt(c, CURLOPT_EXPECT_100_TIMEOUT_MS, GO_AHEAD_MS);
    if (!r->patient) {
        (void)curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, STALL_BYTES);
        (void)curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, stall_s);
    }
    (void)curl_easy_setopt(c, CURLOPT_BUFFERSIZE, RECEIVE_BUFFER);
    (void)curl_easy_setopt(c, CURLOPT_UPLOAD_BUFFERSIZE, SEND_BUFFER);
    (void)curl_easy_setopt(c, CURLOPT_TCP_KEEPALIVE, 1L);
    (void)curl_easy_setopt(c, CURLOPT_MAXAGE_CONN, CONNECTION_AGE_S);
    (void)curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take_body);
    (void)curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
    (void)curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, take_header);
    (void)curl_easy_setopt(c, CURLOPT_HEADERDATA, t);
    (void)curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    (void)curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, look_around);
    (void)curl_easy_setopt(c, CURLOPT_XFERINFODATA, t);
    if (http->ca_bundle[0] != '\0')
        good = good && curl_easy_setopt(c, CURLOPT_CAINFO, http->ca_bundle) == CURLE_OK;
    return good;
}

static void set_method(struct transfer *t)
{
    CURL *c = t->curl;
    const struct s3_http_request *r = t->request;
    if (strcmp(r->method, "HEAD") == 0) {
        (void)curl_easy_setopt(c, CURLOPT_NOBODY, 1L);
    } else if (strcmp(r->method, "PUT") == 0) {
        (void)curl_easy_setopt(c, CURLOPT_UPLOAD, 1L);
        (void)curl_easy_setopt(c, CURLOPT_INFILESIZE_LARGE, (curl_off_t)r->size);
        (void)curl_easy_setopt(c, CURLOPT_READFUNCTION, read_body);
        (void)curl_easy_setopt(c, CURLOPT_READDATA, t);
        (void)curl_easy_setopt(c, CURLOPT_SEEKFUNCTION, seek_body);
        (void)curl_easy_setopt(c, CURLOPT_SEEKDATA, t);
    } else if (strcmp(r->method, "POST") == 0) {
        (void)curl_easy_setopt(c, CURLOPT_POST, 1L);
        (void)curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)r->size);
        (void)curl_easy_setopt(c, CURLOPT_POSTFIELDS, r->size == 0 ? "" : (const char *)r->body);
    } else if (strcmp(r->method, "GET") != 0) {
        (void)curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, r->method);
    }
}

static bool add_header(struct curl_slist **list, const char *header)
{
    struct curl_slist *longer = curl_slist_append(*list, header);
    if (longer == NULL)
        return false;
    *list = longer;
    return true;
}

/* Signs: every header in the list is part of the signature. */
static bool set_signature(struct transfer *t, struct curl_slist **list)
{
    const struct s3_http_request *r = t->request;
    const struct s3_credentials *who = r->credentials;
    char header[S3_TOKEN_MAX + 64], provider[128], hash[S3_SHA256_TEXT];
    if (s3_sha256(r->body, r->size, hash) != ST_OK)
        return false;
    (void)snprintf(header, sizeof(header), "x-amz-content-sha256: %s", hash);
    if (!add_header(list, header))
        return false;
    (void)snprintf(header, sizeof(header), "x-amz-security-token: %s", who->token);
    if (who->token[0] != '\0' && !add_header(list, header))
        return false;
    (void)snprintf(provider, sizeof(provider), "aws:amz:%s:s3", r->region);
    return curl_easy_setopt(t->curl, CURLOPT_AWS_SIGV4, provider) == CURLE_OK &&
           curl_easy_setopt(t->curl, CURLOPT_USERNAME, who->key_id) == CURLE_OK &&
           curl_easy_setopt(t->curl, CURLOPT_PASSWORD, who->secret) == CURLE_OK;
}

static enum status perform_transfer(struct transfer *t)
{
    const struct s3_http_request *r = t->request;
    struct curl_slist *list = NULL;
    char what[CURL_ERROR_SIZE] = "";
    set_method(t);
    bool good = set_transfer(t);
    for (size_t i = 0; i < S3_HEADERS_MAX && r->headers[i] != NULL && good; i++)
        good = add_header(&list, r->headers[i]);
    if (good && r->credentials != NULL)
        good = set_signature(t, &list);
    good = good && curl_easy_setopt(t->curl, CURLOPT_HTTPHEADER, list) == CURLE_OK &&
           curl_easy_setopt(t->curl, CURLOPT_ERRORBUFFER, what) == CURLE_OK;
    if (good) {
        CURLcode code = curl_easy_perform(t->curl);
        if (code == CURLE_OK && !t->headed) {
            code = CURLE_PARTIAL_FILE;
            (void)snprintf(what, sizeof(what), "the answer was cut off");
        }
        t->answer->curl = (int)code;
        (void)curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &t->answer->status);
        if (code != CURLE_OK) {
            (void)snprintf(t->answer->what, sizeof(t->answer->what), "%s",
                           t->overflow       ? "the answer is longer than it may be"
                           : what[0] != '\0' ? what
                                             : curl_easy_strerror(code));
        }
    }
    curl_slist_free_all(list);
    return good ? ST_OK : ST_NO_MEMORY;
}

enum status s3_http_send(struct s3_http *http, const struct s3_http_request *request,
                         struct s3_http_answer *out)
{
    struct s3_http_answer answer = { .status = 0 };
    buf_init(&answer.body, S3_BODY_MAX);
    struct transfer t = { .http = http, .request = request, .answer = &answer };
    t.curl = take_handle(http);
    if (t.curl == NULL)
        return ST_NO_MEMORY;
    enum status st = perform_transfer(&t);
    give_handle(http, t.curl);
    if (st == ST_OK) {
        *out = answer;
    } else {
        s3_http_answer_release(&answer);
    }
    return st;
}

/* ---- its life ---- */

enum status s3_http_new(const struct s3_http_times *times, const char *ca_bundle,
                        const atomic_bool *closing, struct s3_http **out)
{
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return ST_NO_MEMORY;
    struct s3_http *http = calloc(1, sizeof(*http));
    if (http == NULL) {
        curl_global_cleanup();
        return ST_NO_MEMORY;
    }
    http->times = *times;
    http->closing = closing;
    (void)snprintf(http->ca_bundle, sizeof(http->ca_bundle), "%s", ca_bundle);
    CHECK(pthread_mutex_init(&http->mutex, NULL) == 0);
    *out = http;
    return ST_OK;
}

void s3_http_free(struct s3_http *http)
{
    if (http == NULL)
        return;
    for (size_t i = 0; i < http->idle_count; i++)
        curl_easy_cleanup(http->idle[i]);
    (void)pthread_mutex_destroy(&http->mutex);
    free(http);
    curl_global_cleanup();
}
