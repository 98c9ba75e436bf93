/* Payloads, and what is sent of them. */
#include "webhook/message.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"

#define VERSION 1 /* of payloads: another one when a member goes, or means something else */

const char *webhook_event_word(enum webhook_event event)
{
    static const char *const words[] = {
        [WEBHOOK_FAILED] = "failed",     [WEBHOOK_RECOVERED] = "recovered",
        [WEBHOOK_FINISHED] = "finished", [WEBHOOK_DIVERGED] = "diverged",
        [WEBHOOK_TEST] = "test",         [WEBHOOK_STORE_TROUBLE] = "store-trouble",
    };
    return words[event];
}

const char *webhook_format_word(enum webhook_format format)
{
    static const char *const words[] = {
        [WEBHOOK_JSON] = "json",
        [WEBHOOK_SLACK] = "slack",
        [WEBHOOK_TEXT] = "text",
    };
    return words[format];
}

const char *webhook_content_type(enum webhook_format format)
{
    return format == WEBHOOK_TEXT ? "text/plain; charset=utf-8" : "application/json";
}

/* ---- payloads ---- */

/* null for "". */
static json_t *text_of(const char *text)
{
    if (text == NULL || text[0] == '\0')
        return json_null();
    json_t *value = json_string(text);
    auto_free char *copy = value == NULL ? strdup(text) : NULL;
    if (copy == NULL)
        return value;
    for (char *c = copy; *c != '\0'; c++)
        *c = (char)((unsigned char)*c >= 0x80 ? '?' : *c);
    return json_string(copy);
}

static json_t *count_of(int64_t value)
{
    return value < 0 ? json_null() : json_integer(value);
}

static json_t *seconds_of(double seconds)
{
    return isfinite(seconds) ? json_real(round(seconds * 1e3) / 1e3) : json_null();
}

static json_t *job_of(const struct webhook_news *news)
{
    if (news->job == NULL || news->job[0] == '\0')
        return json_null();
    return json_pack("{s:o, s:o, s:o}", "id", text_of(news->job), "name", text_of(news->name),
                     "state", text_of(news->state));
}

json_t *webhook_payload(const struct webhook_news *news, const char *delivery)
{
    return json_pack("{s:i, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:o, s:s}",
                     "version", VERSION, "event", webhook_event_word(news->event), "job",
                     job_of(news), "time", text_of(news->time), "step", count_of(news->step),
                     "message", text_of(news->message), "cause", text_of(news->cause), "node",
                     text_of(news->node), "rank", count_of(news->rank), "seconds_lost",
                     seconds_of(news->seconds_lost), "steps_lost", count_of(news->steps_lost),
                     "over", news->over, "next", text_of(news->next), "delivery", delivery);
}

/* ---- bodies ---- */

static enum status put_json(const json_t *value, struct buf *out)
{
    auto_free char *text = json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(15));
    return text == NULL ? ST_NO_MEMORY : buf_append_text(out, text);
}

static enum status put_payload(const json_t *payload, uint64_t missed, struct buf *out)
{
    json_t *copy = json_copy((json_t *)payload);
    enum status st = ST_NO_MEMORY;
    if (copy != NULL && json_object_set_new(copy, "missed", json_integer((json_int_t)missed)) == 0)
        st = put_json(copy, out);
    json_decref(copy);
    return st;
}

/* In Slack's text three characters are special. */
static enum status put_escaped(const char *text, bool slack, struct buf *out)
{
    enum status st = ST_OK;
    for (; st == ST_OK && *text != '\0'; text++) {
        const char *as = slack && *text == '&'   ? "&amp;"
                         : slack && *text == '<' ? "&lt;"
                         : slack && *text == '>' ? "&gt;"
                                                 : NULL;
        st = as != NULL ? buf_append_text(out, as) : buf_append(out, text, 1);
    }
    return st;
}

static enum status put_text(const json_t *payload, bool slack, uint64_t missed, struct buf *out)
{
    const char *message = json_string_value(json_object_get(payload, "message"));
    const char *next = json_string_value(json_object_get(payload, "next"));
    if (message == NULL)
        return ST_INVALID;
    enum status st = put_escaped(message, slack, out);
    if (st == ST_OK && next != NULL) {
        st = buf_append_text(out, slack ? "\n`" : "\n");
        if (st == ST_OK)
            st = put_escaped(next, slack, out);
        if (st == ST_OK && slack)
            st = buf_append_text(out, "`");
    }
    if (st == ST_OK && missed > 0)
        st = buf_printf(out, "\n(%" PRIu64 " messages before this one were lost)", missed);
    return st;
}

static enum status put_slack(const json_t *payload, uint64_t missed, struct buf *out)
{
    auto_buf struct buf text;
    buf_init(&text, out->size_max);
    enum status st = put_text(payload, true, missed, &text);
    if (st != ST_OK)
        return st;
    json_t *body = json_pack("{s:s}", "text", text.data);
    st = body == NULL ? ST_NO_MEMORY : put_json(body, out);
    json_decref(body);
    return st;
}

enum status webhook_body(const json_t *payload, enum webhook_format format, uint64_t missed,
                         struct buf *out)
{
    switch (format) {
    case WEBHOOK_JSON:
        return json_is_object(payload) ? put_payload(payload, missed, out) : ST_INVALID;
    case WEBHOOK_SLACK:
        return put_slack(payload, missed, out);
    case WEBHOOK_TEXT: {
        enum status st = put_text(payload, false, missed, out);
        return st == ST_OK ? buf_append_text(out, "\n") : st;
    }
    }
    return ST_INVALID;
}
