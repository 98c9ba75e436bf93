/*
 *     a block:  EMPTY   ─▶ LOADING             [fetch_on]
 *               LOADING ─▶ READY, or FAILED    [load_block]    by a thread of the pool
 *               READY   ─▶ EMPTY               [drop_first]    it was read to its end, or something
 *                                                              else is expected now
 *               FAILED  ─▶ EMPTY               [copy_first]
 *
 * Invariants:
 *  (1) Blocks that aren't EMPTY follow each other without a gap: first, first + 1, … (a ring);
 *      their places are consecutive, too.
 *  (2) A LOADING block belongs to its task. It is waited for before it is used for something else.
 *  (3) They hold what is expected, and nothing else: the first has `next`, what is read next, and
 *      none goes beyond `end`.
 *  (4) The ring is used by one thread at a time; a read that meets another goes by itself.
 *  (5) A FAILED block is reported once, to its reader; then it is dropped, and the next read
 *      tries anew.
 */
#include "checkpoint/s3/download.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"

enum block_state { BLOCK_EMPTY, BLOCK_LOADING, BLOCK_READY, BLOCK_FAILED };

struct block {
    struct s3_download *download;
    struct s3_task task;
    enum block_state state;
    uint64_t at;
    size_t size;
    char *data;
    enum status st;
    struct reason reason; /* of a FAILED one */
};

struct s3_download {
    struct s3_download_options options;
    struct s3_place place;
    struct s3_object object;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct block blocks[S3_BLOCKS_MAX];
    uint32_t first, count; /* of the ring */
    uint64_t next, end;    /* expected */
    bool busy;             /* a thread reads in order; it may wait, the ring is its own */
};

enum status s3_download_new(const struct s3_download_options *options, const struct s3_place *place,
                            struct s3_download **out)
{
    if (options->blocks_max < 1 || options->blocks_max > S3_BLOCKS_MAX || options->block_bytes == 0)
        return ST_INVALID;
    struct s3_object object;
    enum status st = s3_object_head(options->client, place, &object);
    if (st != ST_OK)
        return st;
    struct s3_download *download = calloc(1, sizeof(*download));
    if (download == NULL)
        return ST_NO_MEMORY;
    download->options = *options;
    download->place = *place;
    download->object = object;
    for (size_t i = 0; i < S3_BLOCKS_MAX; i++)
        download->blocks[i].download = download;
    CHECK(pthread_mutex_init(&download->mutex, NULL) == 0);
    CHECK(pthread_cond_init(&download->changed, NULL) == 0);
    *out = download;
    return ST_OK;
}

/* ---- fetching ahead ---- */

static void load_block(void *arg)
{
    struct block *block = arg;
    struct s3_download *d = block->download;
    enum status st = s3_object_read(d->options.client, &d->place, d->object.etag, block->at,
                                    block->data, block->size);
    CHECK(pthread_mutex_lock(&d->mutex) == 0);
    block->st = st;
    block->state = st == ST_OK ? BLOCK_READY : BLOCK_FAILED;
    if (st != ST_OK)
        s3_client_explain(d->options.client, st, &block->reason);
    (void)pthread_cond_broadcast(&d->changed);
    (void)pthread_mutex_unlock(&d->mutex);
}

static struct block *block_of(struct s3_download *d, uint32_t index)
{
    return &d->blocks[(d->first + index) % d->options.blocks_max];
}

/* Forgets the first block; waits for it if it is on its way. */
static void drop_first(struct s3_download *d)
{
    struct block *block = block_of(d, 0);
    while (block->state == BLOCK_LOADING)
        (void)pthread_cond_wait(&d->changed, &d->mutex);
    block->state = BLOCK_EMPTY;
    d->first = (d->first + 1) % d->options.blocks_max;
    d->count--;
}

/* Fetches on what is expected, while there are blocks. */
static void fetch_on(struct s3_download *d)
{
    uint64_t at = d->next;
    if (d->count > 0) {
        const struct block *last = block_of(d, d->count - 1);
        at = last->at + last->size;
    }
    while (d->count < d->options.blocks_max && at < d->end) {
        struct block *block = block_of(d, d->count);
        uint64_t left = d->end - at;
        if (block->data == NULL)
            block->data = malloc(d->options.block_bytes);
        if (block->data == NULL)
            return;
        block->at = at;
        block->size = left < d->options.block_bytes ? (size_t)left : d->options.block_bytes;
        block->state = BLOCK_LOADING;
        block->task = (struct s3_task){ .run = load_block, .arg = block };
        if (s3_pool_submit(d->options.pool, &block->task) != ST_OK) {
            block->state = BLOCK_EMPTY;
            return;
        }
        at += block->size;
        d->count++;
    }
}

/* Copies what the first block has from at on, which it holds. */
static enum status copy_first(struct s3_download *d, void *data, size_t size, uint64_t at,
                              size_t *out_size)
{
    struct block *block = block_of(d, 0);
    while (block->state == BLOCK_LOADING)
        (void)pthread_cond_wait(&d->changed, &d->mutex);
    if (block->state == BLOCK_FAILED) {
        enum status st = block->st;
        s3_client_set_problem(d->options.client, st, "%s", block->reason.text);
        while (d->count > 0)
            drop_first(d);
        return st;
    }
    size_t from = (size_t)(at - block->at);
    size_t now = block->size - from < size ? block->size - from : size;
    memcpy(data, block->data + from, now);
    *out_size = now;
    d->next = at + now;
    if (from + now == block->size) {
        drop_first(d);
        fetch_on(d);
    }
    return ST_OK;
}

/* Reads on what is expected, from `at`, which is; under mutex. */
static enum status read_ahead(struct s3_download *d, void *data, size_t size, uint64_t at,
                              size_t *out_size)
{
    while (d->count > 0 && at >= block_of(d, 0)->at + block_of(d, 0)->size)
        drop_first(d); /* something was left out */
    d->next = at;
    fetch_on(d);
    return d->count == 0 ? ST_NO_MEMORY : copy_first(d, data, size, at, out_size);
}

void s3_download_expect(struct s3_download *d, uint64_t at, uint64_t end)
{
    if (end > d->object.size)
        end = d->object.size;
    CHECK(pthread_mutex_lock(&d->mutex) == 0);
    if (!d->busy && at < end) {
        if (at != d->end) {
            while (d->count > 0)
                drop_first(d);
            d->next = at;
        }
        d->end = end;
        fetch_on(d);
    }
    (void)pthread_mutex_unlock(&d->mutex);
}

enum status s3_download_read(struct s3_download *d, void *data, size_t size, uint64_t at,
                             size_t *out_size)
{
    if (at >= d->object.size || size == 0) {
        *out_size = 0;
        return ST_OK;
    }
    if (size > d->object.size - at)
        size = (size_t)(d->object.size - at);
    CHECK(pthread_mutex_lock(&d->mutex) == 0);
    bool ahead = !d->busy && at >= d->next && at < d->end;
    size_t done = 0;
    enum status st = ST_OK;
    if (ahead) {
        d->busy = true;
        st = read_ahead(d, data, size, at, &done);
        d->busy = false;
    }
    (void)pthread_mutex_unlock(&d->mutex);
    if (!ahead) {
        done = size;
        st = s3_object_read(d->options.client, &d->place, d->object.etag, at, data, size);
    }
    if (st == ST_OK)
        *out_size = done;
    return st;
}

void s3_download_free(struct s3_download *d)
{
    if (d == NULL)
        return;
    CHECK(pthread_mutex_lock(&d->mutex) == 0);
    while (d->count > 0)
        drop_first(d);
    (void)pthread_mutex_unlock(&d->mutex);
    for (size_t i = 0; i < S3_BLOCKS_MAX; i++)
        free(d->blocks[i].data);
    (void)pthread_mutex_destroy(&d->mutex);
    (void)pthread_cond_destroy(&d->changed);
    free(d);
}
