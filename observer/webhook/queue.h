/*
 * The messages that one webhook is still to be sent: in order, one on its way at a time.
 *
 * Bounded: when more than WEBHOOK_QUEUE_MAX wait, the oldest is dropped; a message that couldn't be
 * delivered for WEBHOOK_GIVE_UP_MS is given up. Both are counted, and the next message that is
 * delivered says how many there were. A webhook that is gone (410) takes nothing until its list is
 * written anew.
 *
 * Pure but for memory. Units: mono and wall are ms of a clock that never goes back, and of Unix.
 * Thread: one at a time.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "webhook/delivery_state.h"
#include "webhook/send.h"
#include "webhook/sign.h"

#define WEBHOOK_QUEUE_MAX  256     /* of one webhook: an hour of a bad day, in a MiB or so */
#define WEBHOOK_GIVE_UP_MS 3600000 /* what is older helps nobody */
#define WEBHOOK_RETRY_MS   5000    /* before the second try */
#define WEBHOOK_RETRY_MAX  900000  /* between two tries */

struct webhook_item {
    json_t *payload; /* owned */
    enum webhook_event event;
    char delivery[WEBHOOK_DELIVERY];
    int64_t queued_ms; /* wall */
};

struct webhook_queue {
    struct webhook_delivery_state known; /* the webhook's name, and the result of the last try */
    struct webhook_item items[WEBHOOK_QUEUE_MAX];
    size_t first, count;
    bool busy;         /* the first is on its way */
    uint64_t carried;  /* missed messages that the one on its way reports */
    uint32_t failures; /* in a row */
    int64_t next_ms;   /* mono: no try before */
    bool overflows;    /* messages were dropped since one was delivered */
    int64_t retry_ms;  /* WEBHOOK_RETRY_MS; tests have less */
};

void webhook_queue_init(struct webhook_queue *queue, const char *name, int64_t retry_ms);
void webhook_queue_release(struct webhook_queue *queue);

/* Adds a message. The payload is taken over, also after an error. *out_dropped: messages that were
 * dropped for it.
 * Errors: ST_INVALID  it is no payload */
MUST_CHECK enum status webhook_queue_add(struct webhook_queue *queue, json_t *payload, int64_t wall,
                                         size_t *out_dropped);

/* The message to send now; NULL: none. Borrowed; webhook_queue_answered or webhook_queue_cut has to
 * follow before any other call but webhook_queue_add. */
const struct webhook_item *webhook_queue_take(struct webhook_queue *queue, int64_t mono);
/* The taken message wasn't sent after all: it stays the first. */
void webhook_queue_cut(struct webhook_queue *queue);
/* Records how the taken message was answered. Returns how many messages are given up by that. */
size_t webhook_queue_answered(struct webhook_queue *queue, const struct webhook_answer *answer,
                              int64_t mono, int64_t wall);
/* The list of webhooks was written anew: a webhook that was gone is tried again. */
void webhook_queue_enable(struct webhook_queue *queue);

/* When the next try is due (mono); INT64_MAX: there is nothing to do. */
int64_t webhook_queue_due(const struct webhook_queue *queue);
/* The i-th message, oldest first. */
const struct webhook_item *webhook_queue_at(const struct webhook_queue *queue, size_t i);
