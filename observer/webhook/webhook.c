/* Webhooks: jobs in, a thread that sends what is new in them. */
#include "observer/webhook/webhook.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/io.h"
#include "observer/webhook/list.h"
#include "observer/webhook/state.h"
#include "webhook/send.h"

#define LOOK_MS    1000  /* at the list, and writing what was handled */
#define TROUBLE_MS 10000 /* before the state is written again, if that failed */
#define BODY_BYTES ((size_t)64 * 1024)

struct sending {
    struct webhook_request *request; /* NULL: nothing is on its way */
    struct webhook_queue *queue;
};

struct webhooks {
    struct webhook_options options;
    char state_path[LIMIT_PATH];
    pthread_t thread;
    CURLM *multi;
    struct sending sending[WEBHOOK_MAX]; /* the thread's alone, as list */
    int64_t look_at;
    int64_t write_at;
    bool write_failed;

    pthread_mutex_t mutex; /* of all below */
    struct webhook_list list;
    struct webhook_state state;
    bool dirty; /* not as in the file */
    bool closing;
};

static const struct log *log_of(const struct webhooks *w)
{
    return w->options.log;
}

static int64_t mono_now(void)
{
    return clock_mono_ms(clock_system());
}

static int64_t wall_now(void)
{
    return clock_wall_ms(clock_system());
}

/* ---- the file of what was handled ---- */

static enum status write_text(struct webhooks *w, const struct buf *text)
{
    char folder[LIMIT_PATH];
    enum status st = paths_join(w->options.paths, folder, sizeof(folder), "observer");
    if (st == ST_OK)
        st = io_mkdir_all(io_system(), folder);
    return st == ST_OK ? io_replace(io_system(), w->state_path, text->data, text->size) : st;
}

/* Writes the state, not under the mutex: the disk may take its time. */
static void write_state(struct webhooks *w, int64_t mono)
{
    auto_buf struct buf text;
    buf_init(&text, WEBHOOK_STATE_BYTES);
    CHECK(pthread_mutex_lock(&w->mutex) == 0);
    const bool dirty = w->dirty;
    enum status st = dirty ? webhook_state_print(&w->state, &text) : ST_OK;
    w->dirty = false;
    CHECK(pthread_mutex_unlock(&w->mutex) == 0);
    if (dirty && st == ST_OK)
        st = write_text(w, &text);
    w->write_at = mono + (st == ST_OK ? LOOK_MS : TROUBLE_MS);
    if (st != ST_OK && !w->write_failed) {
        LOG_WARN(log_of(w), "%s: %s, ignoring: after a restart messages are sent once more",
                 w->state_path, status_string(st));
    }
    w->write_failed = st != ST_OK;
    if (st == ST_OK)
        return;
    CHECK(pthread_mutex_lock(&w->mutex) == 0);
    w->dirty = true;
    CHECK(pthread_mutex_unlock(&w->mutex) == 0);
}

static void read_state(struct webhooks *w)
{
    char *text = NULL;
    size_t size = 0;
    enum status st = io_read_file(io_system(), w->state_path, WEBHOOK_STATE_BYTES, &text, &size);
    if (st == ST_OK)
        st = webhook_state_read(&w->state, text, size, w->options.retry_ms);
    free(text);
    if (st != ST_OK && st != ST_NOT_FOUND) {
        LOG_WARN(log_of(w), "%s: %s, ignoring: what happened so far is not told", w->state_path,
                 status_string(st));
    }
}

/* ---- the list ---- */

static bool is_listed(const struct webhooks *w, const struct webhook_queue *queue)
{
    return webhook_config_find(w->list.config, queue->known.name) != NULL;
}

static void cut(struct webhooks *w, struct sending *sending)
{
    (void)curl_multi_remove_handle(w->multi, webhook_request_curl(sending->request));
    webhook_request_free(sending->request);
    webhook_queue_cut(sending->queue);
    *sending = (struct sending){ 0 };
}

static void drop_queue(struct webhooks *w, struct webhook_queue *queue)
{
    for (size_t i = 0; i < WEBHOOK_MAX; i++) {
        if (w->sending[i].request != NULL && w->sending[i].queue == queue)
            cut(w, &w->sending[i]);
    }
    if (queue->count > 0) {
        LOG_WARN(log_of(w), "webhook %s is not listed any more: %zu messages for it are dropped",
                 queue->known.name, queue->count);
    }
    webhook_state_queue_drop(&w->state, queue);
}

/* Under the mutex. Queues of those that went go, new ones come. */
static void apply_list(struct webhooks *w)
{
    const struct webhook_config *config = w->list.config;
    const bool none_before = w->state.queue_count == 0;
    for (size_t i = w->state.queue_count; i > 0; i--) {
        if (!is_listed(w, w->state.queues[i - 1]))
            drop_queue(w, w->state.queues[i - 1]);
    }
    for (size_t i = 0; i < config->count; i++) {
        if (webhook_state_queue_add(&w->state, config->hooks[i].name, w->options.retry_ms) == NULL)
            LOG_ERROR(log_of(w), "webhook %s: no memory", config->hooks[i].name);
    }
    if (none_before && config->count > 0) { /* nobody wanted to know what was until now */
        w->state.since_ms = wall_now();
        w->state.cursor_count = 0;
    }
    if (w->state.list_ns != w->list.is.changed_ns) { /* written anew */
        for (size_t i = 0; i < w->state.queue_count; i++)
            webhook_queue_enable(w->state.queues[i]);
    }
    w->state.list_ns = w->list.is.changed_ns;
    w->dirty = w->dirty || !none_before || config->count > 0;
}

/* Under the mutex. */
static void look(struct webhooks *w, int64_t mono)
{
    if (mono < w->look_at)
        return;
    w->look_at = mono + LOOK_MS;
    if (webhook_list_look(&w->list))
        apply_list(w);
}

/* ---- sending ---- */

static struct sending *free_place(struct webhooks *w)
{
    for (size_t i = 0; i < WEBHOOK_MAX; i++) {
        if (w->sending[i].request == NULL)
            return &w->sending[i];
    }
    return NULL;
}

static void log_answer(const struct webhooks *w, const struct webhook_queue *queue,
                       const struct webhook_answer *answer, size_t given_up)
{
    const char *name = queue->known.name;
    const char *what = answer->what.text;
    if (answer->verdict == WEBHOOK_TAKEN) {
        LOG_DEBUG(log_of(w), "webhook %s: %s is delivered", name, queue->known.event);
    } else if (answer->verdict == WEBHOOK_GONE) {
        LOG_ERROR(log_of(w),
                  "webhook %s: %s; nothing is sent to it until the list of webhooks changes; %zu "
                  "messages are given up",
                  name, what, given_up);
    } else if (given_up > 0) {
        LOG_ERROR(log_of(w), "webhook %s: %s; %zu messages are given up", name, what, given_up);
    } else if (queue->failures == 1) {
        LOG_WARN(log_of(w), "webhook %s: %s; it is tried again for an hour", name, what);
    }
}

static void answered(struct webhooks *w, struct webhook_queue *queue,
                     const struct webhook_answer *answer)
{
    const size_t given_up = webhook_queue_answered(queue, answer, mono_now(), wall_now());
    log_answer(w, queue, answer, given_up);
    w->dirty = true;
}

static enum status make_request(const struct webhooks *w, const struct webhook *hook,
                                const struct webhook_queue *queue, const struct webhook_item *item,
                                struct webhook_request **out, struct reason *reason)
{
    auto_buf struct buf body;
    buf_init(&body, BODY_BYTES);
    enum status st = webhook_body(item->payload, hook->format, queue->carried, &body);
    if (st != ST_OK)
        return st;
    struct webhook_message message = { .event = item->event,
                                       .delivery = item->delivery,
                                       .body = body.data,
                                       .size = body.size,
                                       .unix_s = wall_now() / 1000,
                                       .timeout_ms = w->options.timeout_ms };
    return webhook_request_new(hook, &message, out, reason);
}

/* Starts to send the next message. If the request can't be made, the message is treated as if
 * nobody had answered. */
static void start(struct webhooks *w, struct webhook_queue *queue, struct sending *sending)
{
    const struct webhook *hook = webhook_config_find(w->list.config, queue->known.name);
    const struct webhook_item *item = webhook_queue_take(queue, mono_now());
    struct webhook_answer failed = { .verdict = WEBHOOK_AGAIN };
    CHECK(hook != NULL && item != NULL);
    enum status st = make_request(w, hook, queue, item, &sending->request, &failed.what);
    if (st == ST_OK) {
        sending->queue = queue;
        if (curl_multi_add_handle(w->multi, webhook_request_curl(sending->request)) == CURLM_OK)
            return;
        webhook_request_free(sending->request);
        *sending = (struct sending){ 0 };
        st = ST_NO_MEMORY;
    }
    if (failed.what.text[0] == '\0')
        reason_set(&failed.what, "%s", status_string(st));
    answered(w, queue, &failed);
}

/* Returns when a queue's next try is due. While the list has mistakes, or lacks the webhook, no
 * address is known: never. */
static int64_t due_of(const struct webhooks *w, const struct webhook_queue *queue)
{
    const bool known = w->list.config != NULL && is_listed(w, queue);
    return known ? webhook_queue_due(queue) : INT64_MAX;
}

/* Under the mutex. */
static void start_due(struct webhooks *w, int64_t mono)
{
    for (size_t i = 0; i < w->state.queue_count; i++) {
        struct sending *sending = free_place(w);
        CHECK(sending != NULL || due_of(w, w->state.queues[i]) == INT64_MAX); /* one for each */
        if (due_of(w, w->state.queues[i]) <= mono)
            start(w, w->state.queues[i], sending);
    }
}

static struct sending *sending_of(struct webhooks *w, CURL *curl)
{
    for (size_t i = 0; i < WEBHOOK_MAX; i++) {
        struct sending *sending = &w->sending[i];
        if (sending->request != NULL && webhook_request_curl(sending->request) == curl)
            return sending;
    }
    return NULL;
}

/* Under the mutex. */
static void collect(struct webhooks *w)
{
    int left = 0;
    for (CURLMsg *done; (done = curl_multi_info_read(w->multi, &left)) != NULL;) {
        const CURLcode code = done->data.result;
        struct sending *sending =
            done->msg == CURLMSG_DONE ? sending_of(w, done->easy_handle) : NULL;
        if (sending == NULL)
            continue;
        struct webhook_answer answer;
        struct webhook_queue *queue = sending->queue;
        webhook_request_judge(sending->request, code, &answer);
        (void)curl_multi_remove_handle(w->multi, webhook_request_curl(sending->request));
        webhook_request_free(sending->request);
        *sending = (struct sending){ 0 };
        answered(w, queue, &answer);
    }
}

/* Under the mutex: until the next thing is to be done. */
static int wait_ms(const struct webhooks *w, int64_t mono)
{
    int64_t next = mono + LOOK_MS;
    for (size_t i = 0; i < w->state.queue_count; i++) {
        const int64_t due = due_of(w, w->state.queues[i]);
        next = due < next ? due : next;
    }
    return next > mono ? (int)(next - mono) : 0;
}

static void *run(void *arg)
{
    struct webhooks *w = arg;
    CHECK(pthread_mutex_lock(&w->mutex) == 0);
    while (!w->closing) {
        int running = 0;
        look(w, mono_now());
        start_due(w, mono_now());
        const int ms = wait_ms(w, mono_now());
        CHECK(pthread_mutex_unlock(&w->mutex) == 0);
        if (mono_now() >= w->write_at)
            write_state(w, mono_now());
        (void)curl_multi_perform(w->multi, &running);
        (void)curl_multi_poll(w->multi, NULL, 0, ms, NULL);
        (void)curl_multi_perform(w->multi, &running);
        CHECK(pthread_mutex_lock(&w->mutex) == 0);
        collect(w);
    }
    for (size_t i = 0; i < WEBHOOK_MAX; i++) {
        if (w->sending[i].request != NULL)
            cut(w, &w->sending[i]);
    }
    CHECK(pthread_mutex_unlock(&w->mutex) == 0);
    write_state(w, mono_now());
    return NULL;
}

/* ---- its life ---- */

static void release(struct webhooks *w)
{
    if (w->multi != NULL)
        (void)curl_multi_cleanup(w->multi);
    webhook_list_release(&w->list);
    webhook_state_release(&w->state);
    (void)pthread_mutex_destroy(&w->mutex);
    free(w);
    curl_global_cleanup();
}

enum status webhook_open(const struct webhook_options *options, struct webhooks **out)
{
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return ST_NO_MEMORY;
    struct webhooks *w = calloc(1, sizeof(*w));
    if (w == NULL) {
        curl_global_cleanup();
        return ST_NO_MEMORY;
    }
    w->options = *options;
    w->list.log = options->log;
    CHECK(pthread_mutex_init(&w->mutex, NULL) == 0);
    w->multi = curl_multi_init();
    enum status st = w->multi == NULL ? ST_NO_MEMORY : webhook_state_init(&w->state);
    if (st == ST_OK)
        st = paths_join(options->paths, w->list.path, sizeof(w->list.path), WEBHOOK_FILE);
    if (st == ST_OK)
        st = paths_join(options->paths, w->state_path, sizeof(w->state_path), WEBHOOK_STATE_FILE);
    if (st == ST_OK) {
        read_state(w);
        look(w, mono_now());
        if (pthread_create(&w->thread, NULL, run, w) != 0)
            st = ST_NO_MEMORY;
    }
    if (st != ST_OK) {
        release(w);
        return st;
    }
    *out = w;
    return ST_OK;
}

void webhook_close(struct webhooks *w)
{
    if (w == NULL)
        return;
    CHECK(pthread_mutex_lock(&w->mutex) == 0);
    w->closing = true;
    CHECK(pthread_mutex_unlock(&w->mutex) == 0);
    (void)curl_multi_wakeup(w->multi);
    CHECK(pthread_join(w->thread, NULL) == 0);
    release(w);
}

/* ---- jobs ---- */

bool webhook_wanted(struct webhooks *w)
{
    CHECK(pthread_mutex_lock(&w->mutex) == 0);
    const bool wanted = w->list.config != NULL && w->list.config->count > 0;
    CHECK(pthread_mutex_unlock(&w->mutex) == 0);
    return wanted;
}

size_t webhook_waiting(struct webhooks *w)
{
    size_t count = 0;
    CHECK(pthread_mutex_lock(&w->mutex) == 0);
    for (size_t i = 0; i < w->state.queue_count; i++)
        count += w->state.queues[i]->count;
    CHECK(pthread_mutex_unlock(&w->mutex) == 0);
    return count;
}

static void queue_for(struct webhooks *w, const struct webhook *hook,
                      const struct webhook_news *news, const char *key)
{
    char delivery[WEBHOOK_DELIVERY];
    struct webhook_queue *queue = webhook_state_queue(&w->state, hook->name);
    size_t dropped = 0;
    if (queue == NULL)
        return; /* no memory: it was said */
    const char *event = webhook_event_word(news->event);
    char what[WEBHOOK_KEY + 32];
    (void)snprintf(what, sizeof(what), "%s/%s", event, key);
    enum status st = webhook_delivery(hook->name, news->job, what, delivery);
    if (st == ST_OK) {
        json_t *payload = webhook_payload(news, delivery);
        st = payload == NULL ? ST_NO_MEMORY
                             : webhook_queue_add(queue, payload, wall_now(), &dropped);
    }
    if (st != ST_OK) {
        LOG_ERROR(log_of(w), "webhook %s: %s of job %s is not told: %s", hook->name, event,
                  news->job, status_string(st));
    } else if (dropped > 0 && !queue->overflows) {
        queue->overflows = true; /* said until one is delivered */
        LOG_ERROR(log_of(w), "webhook %s: more than %d messages wait, the oldest is dropped",
                  hook->name, WEBHOOK_QUEUE_MAX);
    }
}

static void take_news(void *arg, const struct webhook_news *news, const char *key)
{
    struct webhooks *w = arg;
    for (size_t i = 0; i < w->list.config->count; i++) {
        const struct webhook *hook = &w->list.config->hooks[i];
        if (webhook_wants(hook, news->event, news->name))
            queue_for(w, hook, news, key);
    }
}

static bool is_same(const struct webhook_cursor *a, const struct webhook_cursor *b)
{
    return a->seen == b->seen && a->event == b->event && a->recovered == b->recovered &&
           a->ended_ms == b->ended_ms;
}

void webhook_job(struct webhooks *w, const Cairn__V1__Job *job)
{
    CHECK(pthread_mutex_lock(&w->mutex) == 0);
    if (w->list.config != NULL && w->list.config->count > 0 && strlen(job->id) < LIMIT_NAME) {
        struct webhook_cursor *cursor = webhook_state_cursor(&w->state, job->id);
        const struct webhook_cursor before = *cursor;
        webhook_find(job, w->state.since_ms, cursor, take_news, w);
        w->dirty = w->dirty || !is_same(&before, cursor);
    }
    CHECK(pthread_mutex_unlock(&w->mutex) == 0);
    (void)curl_multi_wakeup(w->multi);
}
