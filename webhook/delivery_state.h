/*
 * The state of the webhooks: the last delivery of each, and how many messages wait. The observer
 * writes it, with all else that it keeps of them, into HOME/observer/webhooks.json; `cairn webhook
 * ls` reads it there.
 *
 * Thread: any.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/reason.h"
#include "common/status.h"
#include "webhook/config.h"

#define WEBHOOK_STATE_FILE  "observer/webhooks.json"   /* in the home */
#define WEBHOOK_STATE_BYTES ((size_t)64 * 1024 * 1024) /* all queues full of the longest messages */

enum webhook_health {
    WEBHOOK_IDLE,     /* all messages are delivered */
    WEBHOOK_WAITING,  /* there is more to deliver */
    WEBHOOK_FAILING,  /* nothing waits, and the last message was not delivered */
    WEBHOOK_RETRYING, /* the last try failed, and is made again */
    WEBHOOK_DISABLED, /* 410: until its list changes */
};
const char *webhook_health_word(enum webhook_health state);

struct webhook_delivery_state {
    char name[WEBHOOK_NAME];
    enum webhook_health state;
    int64_t waiting;      /* messages */
    int64_t missed;       /* given up since one was delivered last */
    int64_t tried_ms;     /* the last try, Unix; 0: none */
    bool delivered;       /* the last try delivered its message */
    char event[24];       /* of the last try's message */
    char job[LIMIT_NAME]; /* name of that message's job */
    struct reason what;   /* how it was answered */
};

/* Owned by the caller; NULL: no memory. */
json_t *webhook_delivery_state_json(const struct webhook_delivery_state *known);
/* false: it is nothing of the kind. */
bool webhook_delivery_state_from(const json_t *value, struct webhook_delivery_state *out);

/*
 * Reads the state file at path, of at most WEBHOOK_MAX webhooks.
 * Errors: ST_NOT_FOUND  no message was ever sent; ST_CORRUPT; those of io_read_file
 */
MUST_CHECK enum status webhook_delivery_state_read(const char *path,
                                                   struct webhook_delivery_state out[WEBHOOK_MAX],
                                                   size_t *out_count);
