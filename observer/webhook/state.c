/* Marks and queues, and their file. */
#include "observer/webhook/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"

#define VERSION 1

enum status webhook_state_init(struct webhook_state *state)
{
    *state = (struct webhook_state){ 0 };
    state->cursors = calloc(WEBHOOK_JOBS_MAX, sizeof(*state->cursors));
    return state->cursors == NULL ? ST_NO_MEMORY : ST_OK;
}

static void drop_all(struct webhook_state *state)
{
    while (state->queue_count > 0)
        webhook_state_queue_drop(state, state->queues[0]);
    state->cursor_count = 0;
    state->since_ms = 0;
    state->list_ns = 0;
}

void webhook_state_release(struct webhook_state *state)
{
    drop_all(state);
    free(state->cursors);
    state->cursors = NULL;
}

/* ---- cursors ---- */

/* Jobs that go on have none (0): they come last. */
static int64_t ended_at(const struct webhook_cursor *cursor)
{
    return cursor->ended_ms != 0 ? cursor->ended_ms : INT64_MAX;
}

static struct webhook_cursor *make_room(struct webhook_state *state)
{
    if (state->cursor_count < WEBHOOK_JOBS_MAX)
        return &state->cursors[state->cursor_count++];
    struct webhook_cursor *oldest = &state->cursors[0];
    for (size_t i = 1; i < state->cursor_count; i++) {
        if (ended_at(&state->cursors[i]) < ended_at(oldest))
            oldest = &state->cursors[i];
    }
    if (oldest->ended_ms >= state->since_ms)
        state->since_ms = oldest->ended_ms + 1; /* it isn't told once more */
    return oldest;
}

struct webhook_cursor *webhook_state_cursor(struct webhook_state *state, const char *job)
{
    for (size_t i = 0; i < state->cursor_count; i++) {
        if (strcmp(state->cursors[i].job, job) == 0)
            return &state->cursors[i];
    }
    struct webhook_cursor *cursor = make_room(state);
    *cursor = (struct webhook_cursor){ 0 };
    (void)snprintf(cursor->job, sizeof(cursor->job), "%s", job);
    return cursor;
}

/* ---- queues ---- */

struct webhook_queue *webhook_state_queue(const struct webhook_state *state, const char *name)
{
    for (size_t i = 0; i < state->queue_count; i++) {
        if (strcmp(state->queues[i]->known.name, name) == 0)
            return state->queues[i];
    }
    return NULL;
}

struct webhook_queue *webhook_state_queue_add(struct webhook_state *state, const char *name,
                                              int64_t retry_ms)
{
    struct webhook_queue *queue = webhook_state_queue(state, name);
    if (queue != NULL || state->queue_count == WEBHOOK_MAX)
        return queue;
    queue = malloc(sizeof(*queue));
    if (queue == NULL)
        return NULL;
    webhook_queue_init(queue, name, retry_ms);
    state->queues[state->queue_count++] = queue;
    return queue;
}

void webhook_state_queue_drop(struct webhook_state *state, struct webhook_queue *queue)
{
    size_t i = 0;
    while (i < state->queue_count && state->queues[i] != queue)
        i++;
    if (i == state->queue_count)
        return;
    webhook_queue_release(queue);
    free(queue);
    state->queues[i] = state->queues[--state->queue_count];
}

/* ---- the file ---- */

static json_t *json_of_cursor(const struct webhook_cursor *cursor)
{
    char event[24];
    (void)snprintf(event, sizeof(event), "%016" PRIx64, cursor->event);
    return json_pack("{s:s, s:b, s:s, s:I, s:I, s:I}", "job", cursor->job, "seen", cursor->seen,
                     "event", event, "event_ms", (json_int_t)cursor->event_ms, "recovered",
                     (json_int_t)cursor->recovered, "ended_ms", (json_int_t)cursor->ended_ms);
}

static json_t *json_of_cursors(const struct webhook_state *state)
{
    json_t *list = json_array();
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < state->cursor_count; i++)
        ok = json_array_append_new(list, json_of_cursor(&state->cursors[i])) == 0;
    if (ok)
        return list;
    json_decref(list);
    return NULL;
}

static bool add_waiting(const struct webhook_queue *queue, json_t *list)
{
    bool ok = true;
    for (size_t i = 0; ok && i < queue->count; i++) {
        const struct webhook_item *item = webhook_queue_at(queue, i);
        json_t *one = json_pack("{s:s, s:I, s:O}", "webhook", queue->known.name, "queued_ms",
                                (json_int_t)item->queued_ms, "payload", item->payload);
        ok = json_array_append_new(list, one) == 0;
    }
    return ok;
}

enum status webhook_state_print(const struct webhook_state *state, struct buf *out)
{
    json_t *known = json_array(), *waiting = json_array();
    bool ok = known != NULL && waiting != NULL;
    for (size_t i = 0; ok && i < state->queue_count; i++) {
        ok = json_array_append_new(known, webhook_delivery_state_json(&state->queues[i]->known)) ==
                 0 &&
             add_waiting(state->queues[i], waiting);
    }
    json_t *root = NULL;
    if (ok) {
        root = json_pack("{s:i, s:I, s:I, s:o, s:O, s:O}", "version", VERSION, "since_ms",
                         (json_int_t)state->since_ms, "list_ns", (json_int_t)state->list_ns, "jobs",
                         json_of_cursors(state), "webhooks", known, "waiting", waiting);
    }
    json_decref(known);
    json_decref(waiting);
    auto_free char *text =
        root == NULL ? NULL : json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(15));
    json_decref(root);
    return text == NULL ? ST_NO_MEMORY : buf_append_text(out, text);
}

static int64_t number_of(const json_t *value, const char *key)
{
    return json_integer_value(json_object_get(value, key));
}

static void read_mark(struct webhook_state *state, const json_t *value)
{
    const char *job = json_string_value(json_object_get(value, "job"));
    const char *event = json_string_value(json_object_get(value, "event"));
    if (job == NULL || event == NULL || strlen(job) >= LIMIT_NAME ||
        state->cursor_count == WEBHOOK_JOBS_MAX)
        return;
    struct webhook_cursor *cursor = webhook_state_cursor(state, job);
    cursor->seen = json_is_true(json_object_get(value, "seen"));
    cursor->event = strtoull(event, NULL, 16);
    cursor->event_ms = number_of(value, "event_ms");
    cursor->recovered = (uint32_t)number_of(value, "recovered");
    cursor->ended_ms = number_of(value, "ended_ms");
}

/* Reads what is known of one webhook, and makes its queue. A message that was on its way when the
 * file was written waits again. */
static void read_known(struct webhook_state *state, const json_t *value, int64_t retry_ms)
{
    struct webhook_delivery_state known;
    if (!webhook_delivery_state_from(value, &known))
        return;
    struct webhook_queue *queue = webhook_state_queue_add(state, known.name, retry_ms);
    if (queue == NULL)
        return;
    queue->known = known;
    queue->known.waiting = 0;
}

static enum status read_waiting(struct webhook_state *state, const json_t *value)
{
    const char *name = json_string_value(json_object_get(value, "webhook"));
    json_t *payload = json_object_get(value, "payload");
    struct webhook_queue *queue = name == NULL ? NULL : webhook_state_queue(state, name);
    size_t dropped = 0;
    if (queue == NULL || !json_is_object(payload))
        return ST_INVALID;
    return webhook_queue_add(queue, json_incref(payload), number_of(value, "queued_ms"), &dropped);
}

enum status webhook_state_read(struct webhook_state *state, const char *text, size_t size,
                               int64_t retry_ms)
{
    json_t *root = json_loadb(text, size, 0, NULL);
    drop_all(state);
    if (root == NULL || number_of(root, "version") != VERSION) {
        json_decref(root);
        return ST_CORRUPT;
    }
    const json_t *jobs = json_object_get(root, "jobs");
    const json_t *known = json_object_get(root, "webhooks");
    const json_t *waiting = json_object_get(root, "waiting");
    for (size_t i = 0; i < json_array_size(jobs); i++)
        read_mark(state, json_array_get(jobs, i));
    for (size_t i = 0; i < json_array_size(known); i++)
        read_known(state, json_array_get(known, i), retry_ms);
    enum status st = ST_OK;
    for (size_t i = 0; i < json_array_size(waiting); i++) {
        if (read_waiting(state, json_array_get(waiting, i)) != ST_OK)
            st = ST_CORRUPT; /* the others are good */
    }
    state->since_ms = number_of(root, "since_ms");
    state->list_ns = number_of(root, "list_ns");
    json_decref(root);
    return st;
}
