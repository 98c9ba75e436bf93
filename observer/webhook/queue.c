/* Messages that wait for one webhook. */
#include "observer/webhook/queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/backoff.h"
#include "common/check.h"

void webhook_queue_init(struct webhook_queue *queue, const char *name, int64_t retry_ms)
{
    *queue = (struct webhook_queue){ .retry_ms = retry_ms > 0 ? retry_ms : WEBHOOK_RETRY_MS };
    (void)snprintf(queue->known.name, sizeof(queue->known.name), "%s", name);
}

static struct webhook_item *item_at(const struct webhook_queue *queue, size_t i)
{
    return (struct webhook_item *)&queue->items[(queue->first + i) % WEBHOOK_QUEUE_MAX];
}

const struct webhook_item *webhook_queue_at(const struct webhook_queue *queue, size_t i)
{
    CHECK(i < queue->count);
    return item_at(queue, i);
}

/* The i-th, and those behind it move up. */
static void remove_item(struct webhook_queue *queue, size_t i)
{
    json_decref(item_at(queue, i)->payload);
    if (i == 0)
        queue->first = (queue->first + 1) % WEBHOOK_QUEUE_MAX;
    for (size_t k = i; i > 0 && k + 1 < queue->count; k++)
        *item_at(queue, k) = *item_at(queue, k + 1);
    queue->count--;
    queue->known.waiting = (int64_t)queue->count;
}

static void miss(struct webhook_queue *queue, size_t i)
{
    remove_item(queue, i);
    queue->known.missed++;
}

static void miss_all(struct webhook_queue *queue)
{
    while (queue->count > 0)
        miss(queue, 0);
}

void webhook_queue_release(struct webhook_queue *queue)
{
    while (queue->count > 0)
        remove_item(queue, 0);
}

static void note_state(struct webhook_queue *queue)
{
    if (queue->known.state == WEBHOOK_DISABLED)
        return;
    const bool failing = queue->known.tried_ms != 0 && !queue->known.delivered;
    if (queue->count == 0) {
        queue->known.state = failing ? WEBHOOK_FAILING : WEBHOOK_IDLE;
    } else {
        queue->known.state = queue->failures > 0 ? WEBHOOK_RETRYING : WEBHOOK_WAITING;
    }
}

static bool read_item(struct webhook_item *item)
{
    const char *event = json_string_value(json_object_get(item->payload, "event"));
    const char *delivery = json_string_value(json_object_get(item->payload, "delivery"));
    const char *message = json_string_value(json_object_get(item->payload, "message"));
    if (event == NULL || delivery == NULL || message == NULL ||
        strlen(delivery) >= sizeof(item->delivery))
        return false;
    (void)snprintf(item->delivery, sizeof(item->delivery), "%s", delivery);
    while (item->event < WEBHOOK_TEST && strcmp(event, webhook_event_word(item->event)) != 0)
        item->event++;
    return strcmp(event, webhook_event_word(item->event)) == 0;
}

enum status webhook_queue_add(struct webhook_queue *queue, json_t *payload, int64_t wall,
                              size_t *out_dropped)
{
    struct webhook_item item = { .payload = payload, .queued_ms = wall };
    *out_dropped = 0;
    if (payload == NULL || !read_item(&item)) {
        json_decref(payload);
        return ST_INVALID;
    }
    if (queue->known.state == WEBHOOK_DISABLED) {
        json_decref(payload);
        queue->known.missed++;
        return ST_OK;
    }
    if (queue->count == WEBHOOK_QUEUE_MAX) {
        miss(queue, queue->busy ? 1 : 0);
        *out_dropped = 1;
    }
    *item_at(queue, queue->count++) = item;
    queue->known.waiting = (int64_t)queue->count;
    note_state(queue);
    return ST_OK;
}

int64_t webhook_queue_due(const struct webhook_queue *queue)
{
    const bool idle = queue->count == 0 || queue->busy || queue->known.state == WEBHOOK_DISABLED;
    return idle ? INT64_MAX : queue->next_ms;
}

const struct webhook_item *webhook_queue_take(struct webhook_queue *queue, int64_t mono)
{
    if (webhook_queue_due(queue) > mono)
        return NULL;
    queue->busy = true;
    queue->carried = (uint64_t)queue->known.missed;
    return item_at(queue, 0);
}

void webhook_queue_cut(struct webhook_queue *queue)
{
    queue->busy = false;
}

static int64_t wait_ms(const struct webhook_queue *queue, const struct webhook_answer *answer)
{
    return answer->after_ms > 0
               ? answer->after_ms
               : backoff_ms(queue->retry_ms, 3, queue->failures, WEBHOOK_RETRY_MAX);
}

static void note_try(struct webhook_queue *queue, const struct webhook_answer *answer, int64_t wall)
{
    const struct webhook_item *item = item_at(queue, 0);
    const json_t *job = json_object_get(item->payload, "job");
    const char *name = json_string_value(json_object_get(job, "name"));
    struct webhook_delivery_state *known = &queue->known;
    known->tried_ms = wall;
    known->delivered = answer->verdict == WEBHOOK_TAKEN;
    known->what = answer->what;
    (void)snprintf(known->event, sizeof(known->event), "%s", webhook_event_word(item->event));
    (void)snprintf(known->job, sizeof(known->job), "%s", name != NULL ? name : "");
}

/* Gives up messages that were queued WEBHOOK_GIVE_UP_MS ago; a clock that was set back makes none
 * old. */
static void give_up_old(struct webhook_queue *queue, int64_t wall)
{
    while (queue->count > 0 && wall - item_at(queue, 0)->queued_ms >= WEBHOOK_GIVE_UP_MS)
        miss(queue, 0);
}

size_t webhook_queue_answered(struct webhook_queue *queue, const struct webhook_answer *answer,
                              int64_t mono, int64_t wall)
{
    CHECK(queue->busy && queue->count > 0);
    const size_t before = queue->count;
    queue->busy = false;
    note_try(queue, answer, wall);
    switch (answer->verdict) {
    case WEBHOOK_TAKEN:
        remove_item(queue, 0);
        queue->known.missed -= (int64_t)queue->carried;
        queue->failures = 0;
        queue->next_ms = mono;
        queue->overflows = false;
        note_state(queue);
        return 0;
    case WEBHOOK_AGAIN:
        queue->failures++;
        queue->next_ms = mono + wait_ms(queue, answer);
        give_up_old(queue, wall);
        break;
    case WEBHOOK_REFUSED:
        miss(queue, 0);
        queue->failures = 0;
        queue->next_ms = mono;
        break;
    case WEBHOOK_GONE:
        miss_all(queue);
        queue->known.state = WEBHOOK_DISABLED;
        break;
    }
    note_state(queue);
    return before - queue->count;
}

void webhook_queue_enable(struct webhook_queue *queue)
{
    if (queue->known.state == WEBHOOK_DISABLED)
        queue->known.state = WEBHOOK_IDLE;
    queue->failures = 0;
    queue->next_ms = 0;
}
