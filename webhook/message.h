/*
 * What a webhook is told: one event of a job, as JSON, or as the text that chats show.
 *
 * A payload (docs/webhooks.md lists its members) is made once and kept until it is delivered. The
 * body that is sent is made from the payload each time, as it also says how many messages before it
 * were lost.
 *
 * Thread: any.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/limits.h"

/* Events, in the order of their words (webhook_event_word). The list of a webhook is bits of these.
 * */
enum webhook_event {
    WEBHOOK_FAILED,
    WEBHOOK_RECOVERED,
    WEBHOOK_FINISHED,
    WEBHOOK_DIVERGED,
    WEBHOOK_STORE_TROUBLE,
    WEBHOOK_TEST, /* asked for by people; goes to each */
};
#define WEBHOOK_EVENTS WEBHOOK_TEST /* those that can be chosen */

enum webhook_format {
    WEBHOOK_JSON,
    WEBHOOK_SLACK, /* {"text": …}, which Mattermost, Rocket.Chat and others take, too */
    WEBHOOK_TEXT,  /* plain */
};
#define WEBHOOK_FORMATS (WEBHOOK_TEXT + 1)

const char *webhook_event_word(enum webhook_event event);    /* "store-trouble" */
const char *webhook_format_word(enum webhook_format format); /* "slack" */

#define WEBHOOK_MESSAGE ((size_t)2 * LIMIT_REASON)

/* The facts of one event. Texts are UTF-8; "" and -1: there is none. */
struct webhook_news {
    enum webhook_event event;
    bool over; /* for trouble: it is over */
    const char *job, *name, *state;
    const char *time; /* RFC 3339 */
    int64_t step;
    const char *message; /* a sentence */
    const char *cause;
    const char *node;
    int64_t rank;
    double seconds_lost; /* NaN: none */
    int64_t steps_lost;
    const char *next; /* a command */
};

/* Owned by the caller (json_decref); NULL: no memory. Of what isn't UTF-8 a '?' is left. */
json_t *webhook_payload(const struct webhook_news *news, const char *delivery);

/*
 * Makes the body that is sent for a payload. missed: messages to the same webhook that were given
 * up since one was delivered.
 * Errors: ST_INVALID  it is no payload; ST_FULL; ST_NO_MEMORY
 */
MUST_CHECK enum status webhook_body(const json_t *payload, enum webhook_format format,
                                    uint64_t missed, struct buf *out);
/* The value of Content-Type. */
const char *webhook_content_type(enum webhook_format format);
