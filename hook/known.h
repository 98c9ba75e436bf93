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
#include "hook/config.h"

#define HOOK_STATE_FILE  "observer/webhooks.json"   /* in the home */
#define HOOK_STATE_BYTES ((size_t)64 * 1024 * 1024) /* all queues full of the longest messages */

enum hook_state {
    HOOK_IDLE,     /* all messages are delivered */
    HOOK_WAITING,  /* there is more to deliver */
    HOOK_FAILING,  /* nothing waits, and the last message was not delivered */
    HOOK_RETRYING, /* the last try failed, and is made again */
    HOOK_DISABLED, /* 410: until its list changes */
};
const char *hook_state_word(enum hook_state state);

struct hook_known {
    char name[HOOK_NAME];
    enum hook_state state;
    int64_t waiting;      /* messages */
    int64_t missed;       /* given up since one was delivered last */
    int64_t tried_ms;     /* the last try, Unix; 0: none */
    bool delivered;       /* the last try delivered its message */
    char event[24];       /* of the last try's message */
    char job[LIMIT_NAME]; /* name of that message's job */
    struct reason what;   /* how it was answered */
};

/* Owned by the caller; NULL: no memory. */
json_t *hook_known_json(const struct hook_known *known);
/* false: it is nothing of the kind. */
bool hook_known_from(const json_t *value, struct hook_known *out);

/*
 * Reads the state file at path, of at most HOOK_MAX webhooks.
 * Errors: ST_NOT_FOUND  no message was ever sent; ST_CORRUPT; those of io_read_file
 */
MUST_CHECK enum status hook_known_read(const char *path, struct hook_known out[HOOK_MAX],
                                       size_t *out_count);
