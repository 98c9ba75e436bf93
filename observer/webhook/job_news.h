/*
 * What is new in a job since it was looked at last: of its events, its recoveries and its end, what
 * webhooks are told.
 *
 *   failed          its state is FAILED
 *   finished        it is SUCCEEDED, STOPPED or KILLED
 *   recovered       a recovery whose cause is a failure is done
 *   diverged        a step was not finite twice: it is left out, or the job failed by it
 *   store-trouble   events store-full, store-fails, store-away, damaged, restart, and failures
 *                   of the store; over: store-room, store-works, or the job runs again
 *
 * Of trouble of one kind the first event is told, until it is over.
 *
 * Pure: no clock, no memory of its own. Thread: any, one at a time per cursor.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "cairn/v1/control.pb-c.h"
#include "common/limits.h"
#include "webhook/message.h"

/* Up to where a job was looked at. Zeroed, with the job's id, for a job that was never looked
 * at. */
struct webhook_cursor {
    char job[LIMIT_NAME];
    bool seen;          /* the job was looked at */
    uint64_t event;     /* a hash of all of the newest event; 0: there was none */
    int64_t event_ms;   /* time of that event, Unix */
    uint32_t recovered; /* generation of the newest recovery that was done or cut */
    int64_t ended_ms;   /* the job's newest end, which was told; 0: the job goes on */
};

#define WEBHOOK_KEY 48 /* bytes of what an event is known by, with the NUL */

/* news and key are lent for the call. key: the same for the same event, another one for others. */
typedef void (*webhook_news_fn)(void *arg, const struct webhook_news *news, const char *key);

/* Calls fn for each event that is new, and moves the cursor. Of a job that was never looked at,
 * only what happened since since_ms is new. */
void webhook_find(const Cairn__V1__Job *job, int64_t since_ms, struct webhook_cursor *cursor,
                  webhook_news_fn fn, void *arg);
