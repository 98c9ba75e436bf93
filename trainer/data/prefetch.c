/*
 * Items are numbered from 0 on in the order in which they are filled; item k lies in entry
 * k mod PREFETCH_ENTRIES of the ring.
 *
 *   taken - 1        the caller's, while `held`
 *   [taken, filled)  wait
 *   filled           is what the thread fills, if it does
 *
 * Invariants
 *  1. Items are taken in the order of the sequence, none left out.
 *  2. The thread writes only into the entry of item `filled`, and only while that entry neither
 *     waits nor is held.
 *  3. A start or a move while the thread fills makes another `epoch`; what it was filling is
 *     dropped when it is done.
 *
 * The thread waits (ring full, sequence ended, or not started) or fills, without the mutex.
 */
#include "trainer/data/prefetch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/limits.h"

struct prefetch {
    struct prefetch_options options;
    uint32_t lanes[LIMIT_LANES];  /* of options.share */
    bool owns[LIMIT_LANES];       /* a lane is one of them */
    uint32_t shares[LIMIT_RANKS]; /* of options.share.audit, as is */
    uint32_t order[LIMIT_LANES];
    uint64_t eval_batches;
    struct prefetch_item ring[PREFETCH_ENTRIES];
    struct batch batch[PREFETCH_ENTRIES];
    void *memory; /* of all batches */
    void *room;
    struct reason reason; /* of st; the thread's while it fills */

    pthread_t thread;
    bool thread_runs;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* below: under the mutex */
    struct batch_place next; /* of the thread */
    uint32_t next_own;       /* ... is of that one of lanes */
    bool next_audits;        /* ... instead of another rank's lane */
    uint64_t epoch;          /* number of starts */
    uint64_t filled, taken;
    bool held; /* item taken - 1 is still the caller's */
    bool started, ended, stop;
    enum status st; /* of the item after the last one */
};

static bool own_batch(const struct prefetch *p, uint64_t batch)
{
    return p->owns[batch % p->options.source.lanes];
}

/* Moves an evaluation cursor to the next own batch at or after it; false: there is none. */
static bool seek_batch(const struct prefetch *p, struct batch_place *c)
{
    while (c->step < p->eval_batches && !own_batch(p, c->step))
        c->step++;
    c->lane = (uint32_t)(c->step % p->options.source.lanes);
    return c->step < p->eval_batches;
}

static void begin_step(struct prefetch *p, struct batch_place *c)
{
    const struct prefetch_share *share = &p->options.share;
    const uint32_t lane = audit_rule_foreign(&share->audit, c->step, share->rank, NULL);
    p->next_audits = lane != AUDIT_NO_LANE;
    p->next_own = 0;
    c->lane = p->next_audits ? lane : p->lanes[0];
}

/* False: the sequence has ended. */
static bool cursor_advance(struct prefetch *p, struct batch_place *c)
{
    if (++c->micro < p->options.source.accumulate)
        return true;
    c->micro = 0;
    if (p->options.evaluation) {
        c->step++;
        return seek_batch(p, c);
    }
    if (p->next_audits) {
        p->next_audits = false;
    } else if (++p->next_own == p->options.share.lane_count) {
        c->step++;
        begin_step(p, c);
        return true;
    }
    c->lane = p->lanes[p->next_own];
    return true;
}

static enum status fill_entry(struct prefetch *p, const struct batch_place *c, size_t entry)
{
    const struct batch_source *source = &p->options.source;
    const struct batch *batch = &p->batch[entry];
    if (p->options.evaluation)
        return batch_fill_eval(source, c, p->room, batch, &p->reason);
    return batch_fill(source, c, p->room, batch, &p->reason);
}

static bool may_fill(const struct prefetch *p)
{
    uint64_t busy = p->filled - p->taken + (p->held ? 1 : 0);
    return p->started && !p->ended && busy < PREFETCH_ENTRIES;
}

/* The entry is filled: it waits now. */
static void add_item(struct prefetch *p, const struct batch_place *c, size_t entry)
{
    p->ring[entry] =
        (struct prefetch_item){ .step = c->step,
                                .lane = c->lane,
                                .micro = c->micro,
                                .x = p->batch[entry].x,
                                .labels = p->batch[entry].labels,
                                .draw = p->options.evaluation ? NULL : p->batch[entry].draw };
    p->filled++;
    CHECK(p->filled - p->taken <= PREFETCH_ENTRIES);
    p->ended = !cursor_advance(p, &p->next);
}

static void *prefetch_main(void *arg)
{
    struct prefetch *p = arg;
    pthread_mutex_lock(&p->mutex);
    while (!p->stop) {
        if (!may_fill(p)) {
            pthread_cond_wait(&p->changed, &p->mutex);
            continue;
        }
        struct batch_place c = p->next;
        uint64_t epoch = p->epoch;
        size_t entry = (size_t)(p->filled % PREFETCH_ENTRIES);
        pthread_mutex_unlock(&p->mutex);
        enum status st = fill_entry(p, &c, entry);
        pthread_mutex_lock(&p->mutex);
        if (epoch != p->epoch)
            continue;
        if (st == ST_OK) {
            add_item(p, &c, entry);
        } else {
            p->st = st;
            p->ended = true;
        }
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

static size_t align(size_t n)
{
    return (n + 63) / 64 * 64;
}

static enum status allocate_ring(struct prefetch *p)
{
    struct batch_sizes sizes = batch_sizes(&p->options.source);
    size_t x = align(sizes.x);
    size_t labels = align(sizes.labels);
    size_t entry_bytes = x + labels + align(sizes.draw);
    const struct prefetch_memory *memory = p->options.memory;
    p->room = aligned_alloc(64, align(sizes.room));
    if (p->room == NULL)
        return ST_NO_MEMORY;
    if (memory != NULL) {
        enum status st = memory->alloc(memory->self, PREFETCH_ENTRIES * entry_bytes, &p->memory);
        if (st != ST_OK)
            return st;
    } else {
        p->memory = aligned_alloc(64, PREFETCH_ENTRIES * entry_bytes);
    }
    if (p->memory == NULL)
        return ST_NO_MEMORY;
    for (size_t i = 0; i < PREFETCH_ENTRIES; i++) {
        char *at = (char *)p->memory + i * entry_bytes;
        p->batch[i].x = at;
        p->batch[i].labels = (int32_t *)(void *)(at + x);
        p->batch[i].draw = (uint32_t *)(void *)(at + x + labels);
    }
    return ST_OK;
}

static void set_share(struct prefetch *p, const struct prefetch_share *share)
{
    const struct audit_rule *audit = &share->audit;
    CHECK(share->lane_count > 0);
    CHECK(share->lane_count <= p->options.source.lanes);
    CHECK(p->options.source.lanes <= LIMIT_LANES);
    CHECK(audit->size <= LIMIT_RANKS);
    p->options.share = *share;
    memcpy(p->lanes, share->lanes, share->lane_count * sizeof(*p->lanes));
    memset(p->owns, 0, sizeof(p->owns));
    for (uint32_t i = 0; i < share->lane_count; i++)
        p->owns[p->lanes[i]] = true;
    p->options.share.lanes = p->lanes;
    p->options.share.audit.shares = p->shares;
    p->options.share.audit.order = p->order;
    if (audit->size > 0) {
        memcpy(p->shares, audit->shares, audit->size * sizeof(*p->shares));
        memcpy(p->order, audit->order, p->options.source.lanes * sizeof(*p->order));
    }
}

enum status prefetch_open(const struct prefetch_options *options, struct prefetch **out)
{
    struct prefetch *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return ST_NO_MEMORY;
    p->options = *options;
    set_share(p, &options->share);
    p->eval_batches = batch_eval_count(&options->source);
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->changed, NULL);
    enum status st = allocate_ring(p);
    if (st == ST_OK && pthread_create(&p->thread, NULL, prefetch_main, p) != 0)
        st = ST_NO_MEMORY;
    if (st != ST_OK) {
        prefetch_close(p);
        return st;
    }
    p->thread_runs = true;
    *out = p;
    return ST_OK;
}

void prefetch_close(struct prefetch *prefetch)
{
    if (prefetch == NULL)
        return;
    if (prefetch->thread_runs) {
        pthread_mutex_lock(&prefetch->mutex);
        prefetch->stop = true;
        pthread_cond_broadcast(&prefetch->changed);
        pthread_mutex_unlock(&prefetch->mutex);
        pthread_join(prefetch->thread, NULL);
    }
    if (prefetch->options.memory != NULL && prefetch->memory != NULL) {
        prefetch->options.memory->free(prefetch->options.memory->self, prefetch->memory);
    } else {
        free(prefetch->memory);
    }
    free(prefetch->room);
    pthread_cond_destroy(&prefetch->changed);
    pthread_mutex_destroy(&prefetch->mutex);
    free(prefetch);
}

void prefetch_start(struct prefetch *prefetch, uint64_t step)
{
    struct prefetch *p = prefetch;
    pthread_mutex_lock(&p->mutex);
    p->epoch++;
    p->next = (struct batch_place){ .step = step };
    begin_step(p, &p->next);
    p->ended = false;
    p->st = ST_OK;
    if (p->options.evaluation) {
        p->next = (struct batch_place){ .step = 0 };
        p->next_audits = false;
        p->ended = !seek_batch(p, &p->next);
    }
    /* The thread may still write into the entry of item `filled`. The ring goes on from there, so
     * that what it drops and the first new item lie in the same entry, one after the other. */
    p->taken = p->filled;
    p->held = false;
    p->started = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->mutex);
}

void prefetch_move(struct prefetch *prefetch, const struct prefetch_share *share)
{
    struct prefetch *p = prefetch;
    pthread_mutex_lock(&p->mutex);
    p->epoch++;
    p->started = false;
    set_share(p, share);
    pthread_mutex_unlock(&p->mutex);
}

enum status prefetch_take(struct prefetch *prefetch, const struct prefetch_item **out)
{
    struct prefetch *p = prefetch;
    const struct prefetch_item *item = NULL;
    enum status st = ST_OK;
    pthread_mutex_lock(&p->mutex);
    CHECK(p->started);
    if (p->held) {
        p->held = false;
        pthread_cond_broadcast(&p->changed);
    }
    while (p->taken == p->filled && !p->ended)
        pthread_cond_wait(&p->changed, &p->mutex);
    CHECK(p->taken <= p->filled);
    if (p->taken < p->filled) {
        item = &p->ring[p->taken % PREFETCH_ENTRIES];
        p->taken++;
        p->held = true;
    } else {
        st = p->st;
    }
    pthread_mutex_unlock(&p->mutex);
    if (st == ST_OK)
        *out = item;
    return st;
}

const struct reason *prefetch_reason(const struct prefetch *prefetch)
{
    return &prefetch->reason;
}
