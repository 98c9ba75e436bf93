/*
 * Invariants:
 *  (1) Credentials are read and replaced under the mutex, fetched without it, by one thread at a
 *      time (`renewing`); a call works on a copy.
 *  (2) `closing` is set once and stays; every wait and every transfer ends soon after it.
 *  (3) What is explained is a thread's own: the problem of its last call that failed.
 */
#include "checkpoint/s3/client.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "checkpoint/s3/role.h"
#include "checkpoint/s3/stranger.h"
#include "checkpoint/s3/url.h"
#include "checkpoint/s3/xml.h"
#include "common/backoff.h"
#include "common/check.h"
#include "common/cleanup.h"
#include "common/clock.h"

#define RENEW_BEFORE_MS INT64_C(300000) /* of a role's credentials */
#define SLOW_DOWN       4               /* the store has asked for longer pauses */

struct s3_client {
    struct s3_client_options options;
    struct s3_config config;
    struct s3_http *http;
    atomic_bool closing;
    pthread_key_t problem; /* struct problem of each thread that had one */
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* closing was set, or credentials were renewed */
    struct s3_credentials credentials;
    bool renewing;       /* a thread reads others, without the mutex */
    uint64_t renewals;   /* that have ended */
    enum status renewed; /* of the last */
    struct reason why;   /* why the last renewal failed */
};

/* The action that an answer asks for. */
enum verdict { VERDICT_DONE, VERDICT_AGAIN, VERDICT_RENEW, VERDICT_OVER };

struct judgement {
    enum verdict verdict;
    enum status st;
    bool slower;
    bool stranger; /* no store gave the answer */
    struct s3_error error;
    const char *hint; /* a way out; or "" */
};

struct s3_client_options s3_client_defaults(void)
{
    return (struct s3_client_options){
        .times = { .connect_ms = 10000, .stall_ms = 20000, .total_ms = 60000 },
        .tries = { .attempts_max = 8,
                   .backoff_ms = 100,
                   .backoff_ms_max = 5000,
                   .time_ms_max = 60000 },
    };
}

/* ---- explaining ---- */

struct problem {
    enum status st;
    struct reason reason;
};

void s3_client_set_problem(struct s3_client *client, enum status st, const char *format, ...)
{
    struct problem *problem = pthread_getspecific(client->problem);
    if (problem == NULL) {
        problem = malloc(sizeof(*problem));
        if (problem == NULL || pthread_setspecific(client->problem, problem) != 0) {
            free(problem);
            return;
        }
    }
    va_list args;
    va_start(args, format);
    reason_set_list(&problem->reason, format, args);
    va_end(args);
    problem->st = st;
}

void s3_client_explain(struct s3_client *client, enum status st, struct reason *out)
{
    const struct problem *problem = pthread_getspecific(client->problem);
    *out = problem == NULL || problem->st != st ? (struct reason){ "" } : problem->reason;
}

/* Says what came of a call that is given up. */
static void explain_failure(struct s3_client *client, const struct s3_call *call,
                            const struct s3_http_answer *answer, const struct judgement *j,
                            uint32_t attempts)
{
    char tried[48] = "";
    if (attempts > 1)
        (void)snprintf(tried, sizeof(tried), " after %u attempts", attempts);
    char place[160];
    (void)snprintf(place, sizeof(place), "%s s3://%.60s/%.80s", call->method, call->bucket,
                   call->key);
    if (answer->curl != CURLE_OK || answer->status == 0) {
        s3_client_set_problem(client, j->st, "%s: %s%s%s", place, answer->what, tried, j->hint);
        return;
    }
    if (j->stranger) {
        char said[S3_STRANGER_TEXT];
        s3_stranger_say(answer, said);
        s3_client_set_problem(
            client, j->st, "%s: HTTP %ld, which is no answer of an S3 store%s%s%s", place,
            answer->status, said, tried, s3_stranger_hint(client->config.endpoint, answer));
        return;
    }
    s3_client_set_problem(client, j->st, "%s: HTTP %ld%s%s%s%.120s%s%s%s", place, answer->status,
                          j->error.code[0] != '\0' ? " " : "", j->error.code,
                          j->error.message[0] != '\0' ? ", " : "", j->error.message, tried, j->hint,
                          j->hint[0] != '\0' && j->hint[strlen(j->hint) - 1] == ' ' ? answer->region
                                                                                    : "");
}

/* ---- judging ---- */

static bool is_one_of(const char *code, const char *const *list)
{
    while (*list != NULL && strcmp(code, *list) != 0)
        list++;
    return *list != NULL;
}

static void judge_transfer(int curl, struct judgement *j)
{
    j->verdict = VERDICT_AGAIN;
    switch (curl) {
    case CURLE_OPERATION_TIMEDOUT:
        j->st = ST_TIMED_OUT;
        return;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
        j->st = ST_UNREACHABLE;
        j->hint = "; is AWS_ENDPOINT_URL_S3 right, and is the store up?";
        return;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        j->verdict = VERDICT_OVER;
        j->st = ST_CONFIG;
        j->hint = "; name the authority that signed the store's certificate in AWS_CA_BUNDLE";
        return;
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_NOT_BUILT_IN:
        j->verdict = VERDICT_OVER;
        j->st = ST_CONFIG;
        return;
    case CURLE_ABORTED_BY_CALLBACK:
        j->verdict = VERDICT_OVER;
        j->st = ST_CLOSED;
        return;
    default: /* resets, cut-off answers, failing TLS */
        j->st = ST_IO;
    }
}

static void judge_refusal(const struct s3_http_answer *answer, struct judgement *j)
{
    static const char *const renew[] = { "ExpiredToken", "ExpiredTokenException", "InvalidToken",
                                         "TokenRefreshRequired", NULL };
    j->verdict = VERDICT_OVER;
    j->st = ST_REFUSED;
    if (j->error.code[0] == '\0' && !answer->known) {
        j->verdict = VERDICT_RENEW; /* of HEAD there is no code */
        j->hint = "; the credentials may not do this, or what answers is no S3 store: see "
                  "AWS_ENDPOINT_URL_S3, and the permissions in docs/s3.md";
    } else if (j->error.code[0] == '\0' || is_one_of(j->error.code, renew)) {
        j->verdict = VERDICT_RENEW;
        j->hint = "; the credentials have expired or may not do this: renew them, and see which "
                  "permissions docs/s3.md lists";
    } else if (strcmp(j->error.code, "RequestTimeTooSkewed") == 0) {
        j->hint = "; set this machine's clock";
    } else if (strcmp(j->error.code, "InvalidAccessKeyId") == 0 ||
               strcmp(j->error.code, "SignatureDoesNotMatch") == 0) {
        j->hint = "; AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not a pair that the store "
                  "knows";
    } else {
        j->hint = "; the credentials lack a permission: docs/s3.md lists those that are needed";
    }
}

/* Judges an answer by the code in its body, whatever the status says. */
static bool judge_code(struct judgement *j)
{
    static const char *const again[] = { "RequestTimeout",       "SlowDown",
                                         "InternalError",        "Throttling",
                                         "OperationAborted",     "ServiceUnavailable",
                                         "TooManyRequests",      "ConditionalRequestConflict",
                                         "RequestLimitExceeded", NULL };
    static const char *const full[] = { "QuotaExceeded", "EntityTooLarge", "XMinioStorageFull",
                                        "InsufficientStorage", NULL };
    static const char *const unsupported[] = { "NotImplemented", "MethodNotAllowed", NULL };
    const char *code = j->error.code;
    j->verdict = VERDICT_OVER;
    if (is_one_of(code, again)) {
        j->verdict = VERDICT_AGAIN;
        j->st = ST_IO;
        j->slower = strcmp(code, "SlowDown") == 0 || strcmp(code, "ServiceUnavailable") == 0;
    } else if (is_one_of(code, full)) {
        j->st = ST_FULL;
    } else if (strcmp(code, "NoSuchBucket") == 0) {
        j->st = ST_CONFIG;
        j->hint = "; make the bucket, or name another one in checkpoint.store";
    } else if (is_one_of(code, unsupported)) {
        j->st = ST_CONFIG;
        j->hint = "; this store can't be used: docs/s3.md says what one must be able to do";
    } else if (strcmp(code, "PermanentRedirect") == 0 || strcmp(code, "TemporaryRedirect") == 0 ||
               strcmp(code, "AuthorizationHeaderMalformed") == 0 ||
               strcmp(code, "IllegalLocationConstraintException") == 0) {
        j->st = ST_CONFIG;
        j->hint = "; the bucket is in another region: set AWS_REGION to ";
    } else {
        return false;
    }
    return true;
}

static void judge_status(const struct s3_http_answer *answer, struct judgement *j)
{
    const long status = answer->status;
    j->verdict = VERDICT_OVER;
    if (status == 404) {
        j->st = ST_NOT_FOUND;
    } else if (status == 412) {
        j->st = ST_EXISTS;
    } else if (status == 401 || status == 403 ||
               (status == 400 &&
                (j->error.code[0] == '\0' || strstr(j->error.code, "Token") != NULL))) {
        judge_refusal(answer, j);
    } else if (status == 301 || status == 307 || status == 308) {
        j->st = ST_CONFIG;
        j->hint = "; the bucket is in another region: set AWS_REGION to ";
    } else if (status == 501) {
        j->st = ST_CONFIG;
        j->hint = "; this store can't be used: docs/s3.md says what one must be able to do";
    } else if (status == 507) {
        j->st = ST_FULL;
    } else if (status == 408 || status == 429 || status >= 500) {
        j->verdict = VERDICT_AGAIN;
        j->st = ST_IO;
        j->slower = status == 429 || status == 503;
    } else {
        j->st = ST_IO;
    }
}

static struct judgement judge_request(const struct s3_call *call, struct s3_http_answer *answer)
{
    struct judgement j = { .verdict = VERDICT_DONE, .st = ST_OK, .hint = "" };
    if (answer->curl != CURLE_OK || answer->status == 0) {
        judge_transfer(answer->curl, &j);
        return j;
    }
    bool good = answer->status / 100 == 2;
    if (answer->body.size > 0 && (!good || strcmp(call->method, "POST") == 0))
        j.error = s3_error_parse(answer->body.data, answer->body.size);
    if (j.error.region[0] != '\0' && answer->region[0] == '\0')
        (void)snprintf(answer->region, sizeof(answer->region), "%s", j.error.region);
    if (call->conflict && strcmp(j.error.code, "ConditionalRequestConflict") == 0) {
        j.verdict = VERDICT_OVER;
        j.st = ST_AGAIN;
        return j;
    }
    j.stranger = s3_is_stranger(call->method, answer, &j.error);
    if (j.stranger) {
        j.verdict = VERDICT_OVER;
        j.st = ST_UNREACHABLE;
        return j;
    }
    if (j.error.code[0] != '\0' && judge_code(&j))
        return j;
    if (!good) {
        judge_status(answer, &j);
    } else if (j.error.code[0] != '\0') { /* a 200 whose body says otherwise */
        j.verdict = VERDICT_OVER;
        j.st = ST_IO;
    } else if (call->into != NULL && answer->received != call->into_size) {
        j.verdict = VERDICT_AGAIN;
        j.st = ST_IO;
    }
    return j;
}

/* Whether the store says that it has no such request, or that this one isn't as it wants it. */
static bool is_unknown(const struct s3_http_answer *answer, const struct judgement *j)
{
    if (answer->curl != CURLE_OK || j->verdict == VERDICT_DONE || j->verdict == VERDICT_AGAIN)
        return false;
    if (answer->status == 400)
        return j->st == ST_IO || j->error.code[0] == '\0';
    return answer->status == 405 || answer->status == 501 ||
           strcmp(j->error.code, "NotImplemented") == 0 ||
           strcmp(j->error.code, "MethodNotAllowed") == 0;
}

static struct judgement judge_answer(const struct s3_call *call, struct s3_http_answer *answer)
{
    struct judgement j = judge_request(call, answer);
    if (j.hint[0] != '\0' && j.hint[strlen(j.hint) - 1] == ' ' && answer->region[0] == '\0') {
        j.hint = "; the bucket is in another region, which the store doesn't name: see AWS_REGION "
                 "and AWS_ENDPOINT_URL_S3";
    }
    if (call->spare && is_unknown(answer, &j)) {
        j.verdict = VERDICT_OVER;
        j.st = ST_INVALID;
    }
    return j;
}

/* ---- credentials ---- */

/* Reads the credentials of files and roles, without the mutex, since that may take a while. */
static enum status read_credentials(struct s3_client *client, struct s3_credentials *out,
                                    struct reason *why)
{
    enum status st = s3_config_reload(&client->config, out);
    if (st == ST_OK && out->key_id[0] == '\0')
        st = s3_role_fetch(client->http, client->config.region, out, why);
    return st;
}

static bool is_same(const struct s3_credentials *a, const struct s3_credentials *b)
{
    return strcmp(a->key_id, b->key_id) == 0 && strcmp(a->secret, b->secret) == 0 &&
           strcmp(a->token, b->token) == 0;
}

/* Reads the credentials anew, for all callers that want that; under the mutex, which is given up
 * meanwhile. The old ones stay if no source answers. */
static enum status renew_credentials(struct s3_client *client)
{
    struct s3_credentials *next = calloc(1, sizeof(*next));
    struct reason why = { "" };
    if (next == NULL)
        return ST_NO_MEMORY;
    client->renewing = true;
    (void)pthread_mutex_unlock(&client->mutex);
    enum status st = read_credentials(client, next, &why);
    CHECK(pthread_mutex_lock(&client->mutex) == 0);
    client->renewing = false;
    client->renewals++;
    client->renewed = st;
    client->why = why;
    if (st == ST_OK)
        client->credentials = *next;
    (void)pthread_cond_broadcast(&client->changed);
    free(next);
    return st;
}

/* Waits until another thread's renewal has ended; under the mutex. */
static enum status wait_for_renewal(struct s3_client *client)
{
    const uint64_t renewals = client->renewals;
    const int64_t until = clock_mono_ms(clock_system()) + client->options.tries.time_ms_max;
    const struct timespec at = { .tv_sec = until / 1000, .tv_nsec = until % 1000 * 1000000 };
    int rc = 0;
    while (client->renewals == renewals && rc == 0 && !atomic_load(&client->closing))
        rc = pthread_cond_timedwait(&client->changed, &client->mutex, &at);
    if (client->renewals != renewals)
        return client->renewed;
    return atomic_load(&client->closing) ? ST_CLOSED : ST_TIMED_OUT;
}

/*
 * Returns the credentials to use now, renewed if they are about to expire. refused: credentials
 * that the store doesn't take; the caller gets others, or ST_NOT_FOUND. NULL: nothing was refused.
 * One thread renews; threads whose credentials are good go on meanwhile, the others wait. why: of
 * an error
 */
static enum status current_credentials(struct s3_client *client,
                                       const struct s3_credentials *refused,
                                       struct s3_credentials *out, struct reason *why)
{
    CHECK(pthread_mutex_lock(&client->mutex) == 0);
    const struct s3_credentials *now = &client->credentials;
    const int64_t left_ms =
        now->expires_ms == 0 ? INT64_MAX : now->expires_ms - clock_wall_ms(clock_system());
    const bool none = now->key_id[0] == '\0' || (refused != NULL && is_same(now, refused));
    enum status st = ST_OK;
    if (client->renewing && (none || left_ms <= 0)) {
        st = wait_for_renewal(client);
    } else if (!client->renewing && (none || left_ms < RENEW_BEFORE_MS)) {
        st = renew_credentials(client);
    }
    if (st != ST_CLOSED && st != ST_TIMED_OUT && now->key_id[0] != '\0')
        st = refused != NULL && is_same(now, refused) ? ST_NOT_FOUND : ST_OK;
    if (st == ST_OK) {
        *out = *now;
    } else {
        *why = client->why;
    }
    (void)pthread_mutex_unlock(&client->mutex);
    return st;
}

/* ---- calling ---- */

/* Waits for a random part of the pause that this attempt has earned; false: closing, or late. */
static bool pause_before(struct s3_client *client, uint32_t attempt, bool slower, int64_t end_ms)
{
    const struct s3_tries *tries = &client->options.tries;
    const int64_t first = tries->backoff_ms * (slower ? SLOW_DOWN : 1);
    const int64_t most = backoff_ms(first, 2, attempt, tries->backoff_ms_max);
    uint32_t chance = 0;
    if (getrandom(&chance, sizeof(chance), GRND_NONBLOCK) != (ssize_t)sizeof(chance))
        chance = UINT32_MAX;
    int64_t until = clock_mono_ms(clock_system()) + (int64_t)((double)most * chance / UINT32_MAX);
    if (until >= end_ms)
        return false;
    struct timespec at = { .tv_sec = until / 1000, .tv_nsec = until % 1000 * 1000000 };
    CHECK(pthread_mutex_lock(&client->mutex) == 0);
    int rc = 0;
    while (rc == 0 && !atomic_load(&client->closing))
        rc = pthread_cond_timedwait(&client->changed, &client->mutex, &at);
    (void)pthread_mutex_unlock(&client->mutex);
    return !atomic_load(&client->closing);
}

static enum status call_once(struct s3_client *client, const struct s3_call *call, const char *url,
                             const struct s3_credentials *credentials, struct s3_http_answer *out)
{
    struct s3_http_request request = {
        .method = call->method,
        .url = url,
        .body = call->body,
        .size = call->size,
        .into = call->into,
        .into_size = call->into_size,
        .patient = call->patient,
        .credentials = credentials,
        .region = client->config.region,
    };
    for (size_t i = 0; i < sizeof(call->header) / sizeof(call->header[0]); i++)
        request.headers[i] = call->header[i];
    return s3_http_send(client->http, &request, out);
}

/* Returns the error of calls that can't be signed. If only the source of credentials is
 * unreachable, the error is one that passes. */
static enum status lack_credentials(struct s3_client *client, enum status st,
                                    const struct reason *why)
{
    if (atomic_load(&client->closing))
        return ST_CLOSED;
    if (st != ST_NO_MEMORY && st != ST_UNREACHABLE && st != ST_TIMED_OUT)
        st = ST_CONFIG;
    s3_client_set_problem(client, st, "there are no credentials for S3: %s",
                          why->text[0] != '\0' ? why->text
                                               : "set AWS_ACCESS_KEY_ID and "
                                                 "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE");
    return st;
}

enum status s3_client_call(struct s3_client *client, const struct s3_call *call,
                           struct s3_http_answer *out)
{
    char url[S3_URL_MAX];
    struct s3_credentials credentials;
    if (!s3_url_make(client->config.endpoint, client->config.region, call->bucket, call->key,
                     call->query, url))
        return ST_INVALID;
    struct reason why = { "" };
    enum status st = current_credentials(client, NULL, &credentials, &why);
    if (st != ST_OK)
        return lack_credentials(client, st, &why);
    int64_t end_ms = clock_mono_ms(clock_system()) + client->options.tries.time_ms_max;
    for (uint32_t attempt = 1;; attempt++) {
        struct s3_http_answer answer;
        if (atomic_load(&client->closing))
            return ST_CLOSED;
        st = call_once(client, call, url, &credentials, &answer);
        if (st != ST_OK)
            return st;
        struct judgement j = judge_answer(call, &answer);
        if (j.verdict == VERDICT_DONE) {
            *out = answer;
            return ST_OK;
        }
        bool again = j.verdict == VERDICT_AGAIN && attempt < client->options.tries.attempts_max &&
                     pause_before(client, attempt, j.slower, end_ms);
        if (j.verdict == VERDICT_RENEW && attempt < client->options.tries.attempts_max)
            again = current_credentials(client, &credentials, &credentials, &why) == ST_OK;
        if (!again && j.st != ST_NOT_FOUND && j.st != ST_EXISTS)
            explain_failure(client, call, &answer, &j, attempt);
        s3_http_answer_release(&answer);
        if (!again)
            return atomic_load(&client->closing) ? ST_CLOSED : j.st;
    }
}

enum status s3_client_do(struct s3_client *client, const struct s3_call *call)
{
    struct s3_http_answer answer;
    enum status st = s3_client_call(client, call, &answer);
    if (st == ST_OK)
        s3_http_answer_release(&answer);
    return st;
}

enum status s3_client_ready(struct s3_client *client)
{
    struct s3_credentials credentials;
    struct reason why = { "" };
    enum status st = current_credentials(client, NULL, &credentials, &why);
    return st == ST_OK ? ST_OK : lack_credentials(client, st, &why);
}

/* ---- its life ---- */

enum status s3_client_new(const struct s3_client_options *options, struct s3_client **out,
                          struct reason *reason)
{
    struct s3_client *client = calloc(1, sizeof(*client));
    if (client == NULL)
        return ST_NO_MEMORY;
    client->options = *options;
    enum status st = s3_config_load(&client->config, reason);
    if (st == ST_OK) {
        client->credentials = client->config.credentials;
        st =
            s3_http_new(&options->times, client->config.ca_bundle, &client->closing, &client->http);
    }
    if (st == ST_OK && pthread_key_create(&client->problem, free) != 0) {
        s3_http_free(client->http);
        st = ST_NO_MEMORY;
    }
    if (st != ST_OK) {
        free(client);
        return st;
    }
    pthread_condattr_t attributes;
    CHECK(pthread_condattr_init(&attributes) == 0);
    CHECK(pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0);
    CHECK(pthread_cond_init(&client->changed, &attributes) == 0);
    CHECK(pthread_mutex_init(&client->mutex, NULL) == 0);
    (void)pthread_condattr_destroy(&attributes);
    *out = client;
    return ST_OK;
}

void s3_client_close(struct s3_client *client)
{
    CHECK(pthread_mutex_lock(&client->mutex) == 0);
    atomic_store(&client->closing, true);
    (void)pthread_cond_broadcast(&client->changed);
    (void)pthread_mutex_unlock(&client->mutex);
}

void s3_client_free(struct s3_client *client)
{
    if (client == NULL)
        return;
    s3_http_free(client->http);
    free(pthread_getspecific(client->problem)); /* no destructor runs once the key is gone */
    (void)pthread_key_delete(client->problem);
    (void)pthread_mutex_destroy(&client->mutex);
    (void)pthread_cond_destroy(&client->changed);
    free(client);
}
