/*
 * The reading thread, and its throttle.
 *
 *     waiting -> reading   [run_orders]     an order came
 *     reading -> waiting   [read_files]     all its files are read, or one can't be: news
 *     reading -> reading   [run_orders]     another order came: without news of the first
 */
#include "session/readback/readback.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "common/clock.h"
#include "common/fault.h"

#define NICE     10
#define NEWS_MS  1000
#define YIELD_MS 1000 /* for each stretch while a save is written: reading still comes to its end */
#define LOOK_MS  100

struct readback {
    struct readback_options options;
    pthread_t thread;
    pthread_mutex_t mutex; /* of the four below */
    pthread_cond_t changed;
    struct readback_order order;
    uint64_t number; /* of the order; 0: none came */
    bool closing;
};

/* One order that is being carried out; only the thread uses it. */
struct reading {
    struct readback *readback;
    struct io io;
    struct readback_order order;
    uint64_t number;
    struct readback_news news;
    uint64_t share_bytes; /* about what this rank has to read */
    int64_t begun_ms, told_ms;
};

static int64_t now_ms(void)
{
    return clock_mono_ms(clock_system());
}

/* True if the order is over: closing, or another order came. Under mutex. */
static bool is_over(const struct reading *r)
{
    return r->readback->closing || r->readback->number != r->number;
}

/* Waits; returns false if the order is over. */
static bool wait_ms(const struct reading *r, int64_t ms)
{
    struct readback *readback = r->readback;
    const int64_t end_ms = now_ms() + ms;
    (void)pthread_mutex_lock(&readback->mutex);
    while (!is_over(r) && now_ms() < end_ms) {
        const struct timespec at = { .tv_sec = end_ms / 1000, .tv_nsec = end_ms % 1000 * 1000000 };
        (void)pthread_cond_timedwait(&readback->changed, &readback->mutex, &at);
    }
    const bool on = !is_over(r);
    (void)pthread_mutex_unlock(&readback->mutex);
    return on;
}

static void tell(struct reading *r)
{
    r->told_ms = now_ms();
    r->readback->options.news(r->readback->options.arg, &r->news);
}

/* Callback of struct io while a file is looked for: false if the order is over. */
static bool goes_on(void *arg)
{
    const struct reading *r = arg;
    return wait_ms(r, 0);
}

/* Callback of ckpt_read_options: sleeps until the elapsed part of spread_ms equals the part of the
 * bytes that was read. */
static bool keep_throttle(void *arg, uint64_t bytes)
{
    struct reading *r = arg;
    const struct readback_options *o = &r->readback->options;
    r->news.bytes += bytes;
    if (now_ms() >= r->told_ms + NEWS_MS)
        tell(r);
    double part = r->share_bytes > 0 ? (double)r->news.bytes / (double)r->share_bytes : 1;
    int64_t due_ms = r->begun_ms + (int64_t)((part < 1 ? part : 1) * (double)r->order.spread_ms);
    int64_t left_ms = due_ms - now_ms();
    if (!wait_ms(r, left_ms > 0 ? left_ms : 0))
        return false;
    for (int64_t waited = 0; o->busy != NULL && waited < YIELD_MS && o->busy(o->arg);
         waited += LOOK_MS) {
        if (!wait_ms(r, LOOK_MS))
            return false;
    }
    return true;
}

/* A ckpt_finding_fn: the first one says what is wrong. */
static void note_finding(void *arg, const char *line)
{
    struct reading *r = arg;
    if (r->news.why.text[0] == '\0')
        reason_set(&r->news.why, "%s", line);
}

static enum status read_files(struct reading *r)
{
    const struct readback_order *order = &r->order;
    const struct ckpt_read_options options = { .throttle = keep_throttle, .throttle_arg = r };
    enum status st = ST_OK;
    r->io = *r->readback->options.io;
    r->io.waiting = goes_on;
    r->io.waiting_arg = r;
    ckpt_await(&r->io, order->dir);
    for (uint32_t s = 0; s < order->shards && st == ST_OK; s++) {
        if (((uint64_t)s + 1) % order->ranks != order->rank)
            continue;
        r->news.shard = s;
        fault_point("readback.file");
        st = ckpt_verify_file(&r->io, order->dir, s, &options, note_finding, r);
    }
    if (st == ST_OK) {
        r->news.why.text[0] = '\0'; /* a remark at most */
    } else if (r->news.why.text[0] == '\0') {
        io_explain(&r->io, st, &r->news.why);
    }
    return st;
}

static void carry_out(struct readback *readback, const struct readback_order *order,
                      uint64_t number)
{
    uint64_t files = 0;
    for (uint32_t s = 0; s < order->shards; s++)
        files += ((uint64_t)s + 1) % order->ranks == order->rank;
    struct reading r = {
        .readback = readback,
        .order = *order,
        .number = number,
        .news = { .step = order->step, .generation = order->generation },
        .share_bytes = order->shards > 0 ? order->bytes / order->shards * files : 0,
        .begun_ms = now_ms(),
    };
    r.told_ms = r.begun_ms;
    r.news.status = read_files(&r);
    r.news.done = true;
    (void)pthread_mutex_lock(&readback->mutex);
    const bool over = is_over(&r);
    (void)pthread_mutex_unlock(&readback->mutex);
    if (!over)
        tell(&r);
}

static void *run_orders(void *arg)
{
    struct readback *readback = arg;
    const struct sched_param param = { 0 };
    uint64_t done = 0;
    (void)sched_setscheduler(0, SCHED_BATCH, &param);
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
    (void)pthread_setname_np(pthread_self(), "cairn-readback");
    (void)pthread_mutex_lock(&readback->mutex);
    while (!readback->closing) {
        if (readback->number == done) {
            (void)pthread_cond_wait(&readback->changed, &readback->mutex);
            continue;
        }
        const struct readback_order order = readback->order;
        done = readback->number;
        (void)pthread_mutex_unlock(&readback->mutex);
        carry_out(readback, &order, done);
        (void)pthread_mutex_lock(&readback->mutex);
    }
    (void)pthread_mutex_unlock(&readback->mutex);
    return NULL;
}

enum status readback_new(const struct readback_options *options, struct readback **out)
{
    struct readback *readback = calloc(1, sizeof(*readback));
    if (readback == NULL)
        return ST_NO_MEMORY;
    readback->options = *options;
    (void)pthread_mutex_init(&readback->mutex, NULL);
    clock_cond_init(&readback->changed);
    if (pthread_create(&readback->thread, NULL, run_orders, readback) != 0) {
        (void)pthread_cond_destroy(&readback->changed);
        (void)pthread_mutex_destroy(&readback->mutex);
        free(readback);
        return ST_NO_MEMORY;
    }
    *out = readback;
    return ST_OK;
}

void readback_free(struct readback *readback)
{
    if (readback == NULL)
        return;
    (void)pthread_mutex_lock(&readback->mutex);
    readback->closing = true;
    (void)pthread_cond_broadcast(&readback->changed);
    (void)pthread_mutex_unlock(&readback->mutex);
    (void)pthread_join(readback->thread, NULL);
    (void)pthread_cond_destroy(&readback->changed);
    (void)pthread_mutex_destroy(&readback->mutex);
    free(readback);
}

void readback_start(struct readback *readback, const struct readback_order *order)
{
    (void)pthread_mutex_lock(&readback->mutex);
    readback->order = *order;
    readback->number++;
    (void)pthread_cond_broadcast(&readback->changed);
    (void)pthread_mutex_unlock(&readback->mutex);
}
