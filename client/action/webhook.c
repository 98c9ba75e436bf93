/* webhook ls: what the list of webhooks says, and what became of the last messages. webhook test:
 * one message to each, from here. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cairn/v1/control.pb-c.h"
#include "client/action/commands.h"
#include "client/print/cell.h"
#include "client/print/output.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "webhook/config.h"
#include "webhook/delivery_state.h"
#include "webhook/send.h"
#include "webhook/sign.h"
#include "webhook/url.h"

#define MISTAKES_BYTES ((size_t)64 * 1024)
#define TIME_BYTES     32
#define EVENTS_BYTES   128

/* ---- the list ---- */

/* *out: free(); NULL: what is wrong with it is reported. */
static enum exit_code read_list(const struct client *client, struct webhook_config **out)
{
    if (client_needs_home(client) != EXIT_DONE)
        return EXIT_REFUSED;
    char path[LIMIT_PATH];
    auto_buf struct buf mistakes;
    buf_init(&mistakes, MISTAKES_BYTES);
    enum status st = paths_join(&client->paths, path, sizeof(path), WEBHOOK_FILE);
    if (st == ST_OK)
        st = webhook_config_read(path, out, &mistakes);
    if (st == ST_NOT_FOUND) {
        client_error("there is no %s: write one, as docs/webhooks.md says", path);
    } else if (st != ST_OK && mistakes.size > 0) {
        client_error("mistakes in the list of webhooks");
        (void)fputs(mistakes.data, stderr);
    } else if (st != ST_OK) {
        client_error("%s: %s", path, status_string(st));
    } else if ((*out)->count == 0) {
        client_error("%s lists no webhook: docs/webhooks.md says how", path);
        free(*out);
        *out = NULL;
        st = ST_NOT_FOUND;
    }
    return exit_of_status(st);
}

static void time_of(int64_t ms, char out[TIME_BYTES])
{
    const time_t at = (time_t)(ms / 1000);
    struct tm parts;
    out[0] = '\0';
    if (ms > 0 && gmtime_r(&at, &parts) != NULL)
        (void)strftime(out, TIME_BYTES, "%Y-%m-%dT%H:%M:%SZ", &parts);
}

static void events_of(const struct webhook *hook, char out[EVENTS_BYTES])
{
    size_t used = 0;
    out[0] = '\0';
    for (unsigned i = 0; i < WEBHOOK_EVENTS && used < EVENTS_BYTES; i++) {
        if ((hook->events & (1u << i)) != 0) {
            used += (size_t)snprintf(out + used, EVENTS_BYTES - used, "%s%s", used > 0 ? "," : "",
                                     webhook_event_word((enum webhook_event)i));
        }
    }
}

/* ---- ls ---- */

#define WEBHOOK(member) .offset = offsetof(Cairn__V1__Webhook, member)

static void cell_last(const void *row, char *out, size_t capacity)
{
    const Cairn__V1__Webhook *hook = row;
    char age[16];
    if (hook->last_at[0] == '\0') {
        (void)snprintf(out, capacity, "-");
        return;
    }
    cell_age(&hook->last_at, age, sizeof(age));
    (void)snprintf(out, capacity, "%s of %s %s ago: %s%s", hook->last_event, hook->last_job, age,
                   hook->last_delivered ? "delivered" : "failed, ",
                   hook->last_delivered ? "" : hook->last_answer);
}

static void cell_signed(const void *is_signed, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%s", *(const protobuf_c_boolean *)is_signed ? "yes" : "no");
}

static const struct column webhook_columns[] = {
    { "NAME", WEBHOOK(name), .cell = cell_text },
    { "TO", WEBHOOK(to), .cell = cell_text },
    { "EVENTS", WEBHOOK(events), .cell = cell_text },
    { "STATE", WEBHOOK(state), .cell = cell_text },
    { "WAITING", WEBHOOK(waiting), .cell = cell_u64, .right = true },
    { "MISSED", WEBHOOK(missed), .cell = cell_u64, .right = true, .wide = true },
    { "FORMAT", WEBHOOK(format), .cell = cell_text, .wide = true },
    { "JOBS", WEBHOOK(jobs), .cell = cell_text, .wide = true },
    { "SIGNED", WEBHOOK(signed_), .cell = cell_signed, .wide = true },
    { "LAST", .cell = cell_last },
    { 0 },
};

struct listed {
    Cairn__V1__Webhook message;
    char events[EVENTS_BYTES], last_at[TIME_BYTES];
};

/* Texts are borrowed. known: NULL: nothing is. */
static void describe(const struct webhook *hook, struct webhook_delivery_state *known,
                     struct listed *out)
{
    Cairn__V1__Webhook *m = &out->message;
    *m = (Cairn__V1__Webhook)CAIRN__V1__WEBHOOK__INIT;
    events_of(hook, out->events);
    m->name = (char *)hook->name;
    m->to = (char *)hook->shown;
    m->events = out->events;
    m->format = (char *)webhook_format_word(hook->format);
    m->jobs = (char *)hook->jobs;
    m->signed_ = hook->secret_file[0] != '\0';
    m->state = (char *)"ready";
    if (known == NULL)
        return;
    time_of(known->tried_ms, out->last_at);
    m->state = (char *)webhook_health_word(known->state);
    m->waiting = (uint64_t)known->waiting;
    m->missed = (uint64_t)known->missed;
    m->last_event = known->event;
    m->last_job = known->job;
    m->last_at = out->last_at;
    m->last_delivered = known->delivered;
    m->last_answer = known->what.text;
}

struct listing {
    struct webhook_delivery_state known[WEBHOOK_MAX];
    size_t known_count;
    struct listed rows[WEBHOOK_MAX];
};

static struct webhook_delivery_state *known_of(struct listing *listing, const char *name)
{
    for (size_t i = 0; i < listing->known_count; i++) {
        if (strcmp(listing->known[i].name, name) == 0)
            return &listing->known[i];
    }
    return NULL;
}

static enum exit_code list(const struct client *client, const struct webhook_config *config)
{
    char path[LIMIT_PATH];
    ProtobufCMessage *messages[WEBHOOK_MAX] = { NULL };
    auto_free struct listing *listing = calloc(1, sizeof(*listing));
    if (listing == NULL)
        return EXIT_INTERNAL;
    enum status st = paths_join(&client->paths, path, sizeof(path), WEBHOOK_STATE_FILE);
    if (st == ST_OK)
        st = webhook_delivery_state_read(path, listing->known, &listing->known_count);
    if (st != ST_OK && st != ST_NOT_FOUND)
        client_note(client, "%s: %s", path, status_string(st));
    for (size_t i = 0; i < config->count; i++) {
        const struct webhook *hook = &config->hooks[i];
        describe(hook, known_of(listing, hook->name), &listing->rows[i]);
        messages[i] = &listing->rows[i].message.base;
    }
    return output_list(client, webhook_columns, messages, config->count);
}

/* Names of jobs, and what signs them, on networks that others read. */
static void warn_of_clear(const struct client *client, const struct webhook_config *config)
{
    for (size_t i = 0; i < config->count; i++) {
        if (webhook_url_is_clear(config->hooks[i].url)) {
            client_note(client, "%s: http:// goes beyond this machine in the clear; use https://\n",
                        config->hooks[i].name);
        }
    }
}

enum exit_code cmd_webhook_ls(struct client *client)
{
    auto_free struct webhook_config *config = NULL;
    enum exit_code code = read_list(client, &config);
    if (config == NULL)
        return code;
    warn_of_clear(client, config);
    return list(client, config);
}

/* ---- test ---- */

#define TEST(member) .offset = offsetof(Cairn__V1__WebhookTest, member)

static void cell_delivered(const void *delivered, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%s",
                   *(const protobuf_c_boolean *)delivered ? "delivered" : "FAILED");
}

static const struct column test_columns[] = {
    { "NAME", TEST(name), .cell = cell_text },
    { "TO", TEST(to), .cell = cell_text },
    { "RESULT", TEST(delivered), .cell = cell_delivered },
    { "ANSWER", TEST(answer), .cell = cell_text },
    { "SECONDS", TEST(seconds), .cell = cell_number, .right = true },
    { 0 },
};

struct tested {
    Cairn__V1__WebhookTest message;
    char delivery[WEBHOOK_DELIVERY];
    struct reason answer;
};

static enum status make_body(const struct webhook *hook, const char *delivery, int64_t now_ms,
                             struct buf *out)
{
    char host[256] = "this machine", message[384], now[TIME_BYTES];
    (void)gethostname(host, sizeof(host) - 1);
    time_of(now_ms, now);
    (void)snprintf(message, sizeof(message), "A test from Cairn on %s: webhook %s works.", host,
                   hook->name);
    struct webhook_news news = { .event = WEBHOOK_TEST,
                                 .time = now,
                                 .step = -1,
                                 .message = message,
                                 .rank = -1,
                                 .seconds_lost = (double)NAN,
                                 .steps_lost = -1,
                                 .next = "cairn webhook ls" };
    json_t *payload = webhook_payload(&news, delivery);
    enum status st = payload == NULL ? ST_NO_MEMORY : webhook_body(payload, hook->format, 0, out);
    json_decref(payload);
    return st;
}

/* Sends one; the row says what it came to. */
static enum exit_code test_one(const struct webhook *hook, struct tested *out)
{
    const int64_t now_ms = clock_wall_ms(clock_system());
    struct webhook_answer answer = { .verdict = WEBHOOK_AGAIN };
    auto_buf struct buf body;
    buf_init(&body, MISTAKES_BYTES);
    enum status st = webhook_delivery_new(out->delivery);
    if (st == ST_OK)
        st = make_body(hook, out->delivery, now_ms, &body);
    if (st == ST_OK) {
        struct webhook_message message = { .event = WEBHOOK_TEST,
                                           .delivery = out->delivery,
                                           .body = body.data,
                                           .size = body.size,
                                           .unix_s = now_ms / 1000 };
        st = webhook_send(hook, &message, &answer, &answer.what);
    }
    if (st != ST_OK && answer.what.text[0] == '\0')
        reason_set(&answer.what, "%s", status_string(st));
    out->answer = answer.what;
    out->message = (Cairn__V1__WebhookTest)CAIRN__V1__WEBHOOK_TEST__INIT;
    out->message.name = (char *)hook->name;
    out->message.to = (char *)hook->shown;
    out->message.delivered = st == ST_OK && answer.verdict == WEBHOOK_TAKEN;
    out->message.answer = out->answer.text;
    out->message.seconds = (double)answer.took_ms / 1e3;
    out->message.delivery = out->delivery;
    if (st != ST_OK)
        return exit_of_status(st);
    if (answer.verdict == WEBHOOK_TAKEN)
        return EXIT_DONE;
    return answer.code == 0 ? EXIT_UNREACHABLE : EXIT_REFUSED;
}

static enum exit_code test_all(const struct client *client, const struct webhook_config *config,
                               const char *only)
{
    ProtobufCMessage *messages[WEBHOOK_MAX] = { NULL };
    size_t count = 0;
    enum exit_code worst = EXIT_DONE;
    auto_free struct tested *rows = calloc(WEBHOOK_MAX, sizeof(*rows));
    if (rows == NULL)
        return EXIT_INTERNAL;
    for (size_t i = 0; i < config->count; i++) {
        if (only != NULL && strcmp(only, config->hooks[i].name) != 0)
            continue;
        enum exit_code code = test_one(&config->hooks[i], &rows[count]);
        messages[count] = &rows[count].message.base;
        count++;
        worst = worst == EXIT_DONE ? code : worst;
    }
    enum exit_code printed = output_list(client, test_columns, messages, count);
    return worst == EXIT_DONE ? printed : worst;
}

enum exit_code cmd_webhook_test(struct client *client)
{
    const struct arguments *args = &client->args;
    const char *only = args->operand_count > 0 ? args->operands[0] : NULL;
    auto_free struct webhook_config *config = NULL;
    enum exit_code code = read_list(client, &config);
    if (config == NULL)
        return code;
    if (only != NULL && webhook_config_find(config, only) == NULL) {
        client_error("there is no webhook '%s'; 'cairn webhook ls' lists them", only);
        return EXIT_NOT_FOUND;
    }
    warn_of_clear(client, config);
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return EXIT_INTERNAL;
    code = test_all(client, config, only);
    curl_global_cleanup();
    return code;
}
