#include "observer/curves/cache.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "observer/curves/arena.h"
#include "observer/curves/history.h"
#include "observer/curves/reduce.h"
#include "proto/text/job_state.h"
#include "proto/text/json.h"

#define ID_BYTES   32
#define PAGES_MAX  1024               /* of one look: a job that goes back again and again */
#define TOLD_BYTES ((size_t)1 << 20)  /* of CACHE_NEW_ROWS rows as JSON */
#define JOB_BYTES  ((size_t)32 << 20) /* of a job as JSON; its message has LIMIT_MESSAGE_BYTES */

/* A question to the coordinator whose answer is everybody's. */
struct asked {
    int64_t ms;         /* when it was asked last; 0: never */
    enum status failed; /* what came of that */
    struct rpc_result failure;
};

struct entry {
    char job[ID_BYTES]; /* "": free */
    unsigned users;     /* under the cache's lock, as job and used_ms */
    int64_t used_ms;
    pthread_mutex_t lock; /* of the rest */
    struct history history;
    struct asked rows, itself;
    struct buf json; /* itself */
    bool over;
    /* The newest rows as JSON, of steps from `first` to `last`, as of `told_ms`: who follows gets
     * the same as all others who do. */
    struct buf told;
    int64_t told_ms;
    uint64_t first, last;
};

struct cache {
    struct coordinator *coordinator;
    pthread_mutex_t lock;
    struct entry entries[CACHE_JOBS_MAX];
};

static int64_t now_ms(void)
{
    return clock_mono_ms(clock_system());
}

enum status cache_new(struct coordinator *coordinator, struct cache **out)
{
    struct cache *cache = calloc(1, sizeof(*cache));
    if (cache == NULL)
        return ST_NO_MEMORY;
    cache->coordinator = coordinator;
    (void)pthread_mutex_init(&cache->lock, NULL);
    for (size_t i = 0; i < CACHE_JOBS_MAX; i++)
        (void)pthread_mutex_init(&cache->entries[i].lock, NULL);
    for (size_t i = 0; i < CACHE_JOBS_MAX; i++) {
        buf_init(&cache->entries[i].told, TOLD_BYTES);
        buf_init(&cache->entries[i].json, JOB_BYTES);
    }
    *out = cache;
    return ST_OK;
}

void cache_free(struct cache *cache)
{
    if (cache == NULL)
        return;
    for (size_t i = 0; i < CACHE_JOBS_MAX; i++) {
        history_release(&cache->entries[i].history);
        buf_release(&cache->entries[i].told);
        buf_release(&cache->entries[i].json);
        (void)pthread_mutex_destroy(&cache->entries[i].lock);
    }
    (void)pthread_mutex_destroy(&cache->lock);
    free(cache);
}

/* The job's entry, or the one that nobody uses for longest, for it; NULL: all are in use. */
static struct entry *find_entry(struct cache *cache, const char *job)
{
    struct entry *oldest = NULL;
    for (size_t i = 0; i < CACHE_JOBS_MAX; i++) {
        struct entry *entry = &cache->entries[i];
        if (strcmp(entry->job, job) == 0)
            return entry;
        if (entry->users == 0 && (oldest == NULL || entry->used_ms < oldest->used_ms))
            oldest = entry;
    }
    if (oldest == NULL)
        return NULL;
    history_release(&oldest->history);
    buf_release(&oldest->told);
    buf_release(&oldest->json);
    oldest->rows.ms = 0;
    oldest->itself.ms = 0;
    oldest->over = false;
    (void)snprintf(oldest->job, sizeof(oldest->job), "%s", job);
    return oldest;
}

/* Locked; NULL: there is none to be had. */
static struct entry *take_entry(struct cache *cache, const char *job)
{
    (void)pthread_mutex_lock(&cache->lock);
    struct entry *entry = strlen(job) < ID_BYTES && job[0] != '\0' ? find_entry(cache, job) : NULL;
    if (entry != NULL)
        entry->users++;
    (void)pthread_mutex_unlock(&cache->lock);
    if (entry != NULL)
        (void)pthread_mutex_lock(&entry->lock);
    return entry;
}

static void release_entry(struct cache *cache, struct entry *entry)
{
    (void)pthread_mutex_unlock(&entry->lock);
    (void)pthread_mutex_lock(&cache->lock);
    entry->users--;
    entry->used_ms = now_ms();
    (void)pthread_mutex_unlock(&cache->lock);
}

static enum status read_page(struct cache *cache, struct entry *entry, struct arena *arena,
                             bool *more, struct rpc_result *result)
{
    Cairn__V1__ReadMetricsRequest request = CAIRN__V1__READ_METRICS_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    request.job = entry->job;
    request.from_step = entry->history.next_step;
    const enum status st = coordinator_call_in(cache->coordinator, "ReadMetrics", &request.base,
                                               &arena->allocator, &reply, result);
    if (st != ST_OK)
        return st;
    const enum history_answer answer =
        history_take(&entry->history, (const Cairn__V1__ReadMetricsReply *)reply);
    arena_reset(arena);
    *more = answer == HISTORY_MORE;
    return answer == HISTORY_NO_MEMORY ? ST_NO_MEMORY : ST_OK;
}

static bool is_fresh(const struct asked *asked)
{
    return asked->ms != 0 && now_ms() - asked->ms < CACHE_FRESH_MS;
}

/* A failure is everybody's who waited for it: else each of them would wait as long for his own. */
static enum status told_before(const struct asked *asked, struct rpc_result *result)
{
    if (asked->failed != ST_OK)
        *result = asked->failure;
    return asked->failed;
}

static enum status keep(struct asked *asked, enum status st, const struct rpc_result *result)
{
    asked->ms = now_ms();
    asked->failed = st;
    if (st != ST_OK)
        asked->failure = *result;
    return st;
}

static enum status refresh(struct cache *cache, struct entry *entry, struct rpc_result *result)
{
    /* Rows may have come between the last reading and the end of a job that is over. */
    const bool last = entry->over && entry->rows.ms <= entry->itself.ms;
    if (is_fresh(&entry->rows) && !last)
        return told_before(&entry->rows, result);
    enum status st = ST_OK;
    struct arena arena; /* a page has some ten thousand parts */
    bool more = true;
    arena_init(&arena);
    for (size_t i = 0; st == ST_OK && more && i < PAGES_MAX; i++)
        st = read_page(cache, entry, &arena, &more, result);
    arena_release(&arena);
    return keep(&entry->rows, st, result);
}

enum status cache_curves(struct cache *cache, const char *job, size_t points, struct buf *out,
                         struct rpc_result *result)
{
    struct entry *entry = take_entry(cache, job);
    if (entry == NULL)
        return ST_FULL;
    enum status st = refresh(cache, entry, result);
    if (st == ST_OK)
        st = reduce_json(&entry->history, job, 0, entry->history.count, points, out);
    release_entry(cache, entry);
    return st;
}

static enum status refresh_job(struct cache *cache, struct entry *entry, struct rpc_result *result)
{
    if (is_fresh(&entry->itself))
        return told_before(&entry->itself, result);
    Cairn__V1__JobRequest request = CAIRN__V1__JOB_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    request.job = entry->job;
    enum status st = coordinator_call(cache->coordinator, "GetJob", &request.base, &reply, result);
    if (st == ST_OK) {
        json_t *value = json_from_message(reply);
        buf_clear(&entry->json);
        st = json_print(value, true, &entry->json);
        entry->over = job_is_over(((const Cairn__V1__Job *)reply)->state);
        json_decref(value);
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    return keep(&entry->itself, st, result);
}

enum status cache_job(struct cache *cache, const char *job, struct buf *out, bool *over,
                      struct rpc_result *result)
{
    struct entry *entry = take_entry(cache, job);
    if (entry == NULL)
        return ST_FULL;
    enum status st = refresh_job(cache, entry, result);
    if (st == ST_OK) {
        st = buf_append(out, entry->json.data, entry->json.size);
        *over = entry->over;
    }
    release_entry(cache, entry);
    return st;
}

/* Rows from index `from` up to `to` as they are; made once for all who ask until others come. */
static enum status tell_rows(struct entry *entry, size_t from, size_t to, struct buf *out)
{
    const struct history *history = &entry->history;
    const uint64_t first = history->rows[from].step, last = history->rows[to - 1].step;
    const bool told = entry->told.size > 0 && entry->told_ms == entry->rows.ms &&
                      entry->first == first && entry->last == last;
    enum status st = ST_OK;
    if (!told) {
        buf_clear(&entry->told);
        st = reduce_json(history, entry->job, from, to, CACHE_NEW_ROWS, &entry->told);
        entry->told_ms = st == ST_OK ? entry->rows.ms : 0;
        entry->first = first;
        entry->last = last;
    }
    return st == ST_OK ? buf_append(out, entry->told.data, entry->told.size) : st;
}

enum status cache_new_rows(struct cache *cache, const char *job, struct cache_place *place,
                           struct buf *out, struct rpc_result *result)
{
    struct entry *entry = take_entry(cache, job);
    place->more = false;
    if (entry == NULL)
        return ST_FULL;
    enum status st = refresh(cache, entry, result);
    const struct history *history = &entry->history;
    if (place->begun && history->rewinds != place->rewinds && history->next_step < place->next_step)
        place->next_step = history->next_step;
    size_t from = history_find(history, place->next_step);
    if (!place->begun)
        place->generation = from > 0 ? history->rows[from - 1].generation : history->generation;
    place->rewinds = history->rewinds;
    place->begun = true;
    /* Made anew between two of his questions, and gone on from. */
    while (from > 0 && history->rows[from - 1].generation > place->generation)
        from--;
    size_t to = history_find(history, history->next_step);
    const bool more = to > from && to - from > CACHE_NEW_ROWS;
    to = more ? from + CACHE_NEW_ROWS : to;
    if (st == ST_OK && from < to) {
        st = tell_rows(entry, from, to, out);
        place->next_step = history->rows[to - 1].step + 1;
        place->generation = history->rows[to - 1].generation;
        place->more = st == ST_OK && more;
    }
    release_entry(cache, entry);
    return st;
}
