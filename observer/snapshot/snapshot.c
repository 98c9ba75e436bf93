#include "observer/snapshot/snapshot.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/unconst.h"
#include "observer/snapshot/job_texts.h"
#include "proto/text/json.h"

#define JSON_BYTES_MAX ((size_t)64 << 20)

/* The answers that a snapshot shows; snapshots that are made of the same answers share them. */
struct held {
    atomic_uint refs;
    Cairn__V1__ListJobsReply **pages;
    size_t page_count;
    Cairn__V1__Job **jobs;
    Cairn__V1__ListNodesReply *nodes;
    Cairn__V1__GetVersionReply *version;
    pthread_mutex_t lock; /* of what follows */
    struct buf jobs_json, nodes_json;
    struct texts *texts;  /* of the jobs; NULL: nobody asked for them yet */
    struct texts *before; /* until then: the newest that were made before */
};

struct made {
    struct snapshot snapshot; /* first */
    atomic_uint refs;
    struct held *held; /* NULL: the coordinator never answered */
};

static struct made *made_of(const struct snapshot *snapshot)
{
    return unconst(snapshot);
}

static void unref_held(struct held *held)
{
    if (held == NULL || atomic_fetch_sub(&held->refs, 1) > 1)
        return;
    for (size_t i = 0; i < held->page_count; i++)
        cairn__v1__list_jobs_reply__free_unpacked(held->pages[i], NULL);
    cairn__v1__list_nodes_reply__free_unpacked(held->nodes, NULL);
    cairn__v1__get_version_reply__free_unpacked(held->version, NULL);
    (void)pthread_mutex_destroy(&held->lock);
    buf_release(&held->jobs_json);
    buf_release(&held->nodes_json);
    texts_unref(held->texts);
    texts_unref(held->before);
    free(held->pages);
    free(held->jobs);
    free(held);
}

const struct snapshot *snapshot_ref(const struct snapshot *snapshot)
{
    if (snapshot != NULL)
        (void)atomic_fetch_add(&made_of(snapshot)->refs, 1);
    return snapshot;
}

void snapshot_unref(const struct snapshot *snapshot)
{
    struct made *made = made_of(snapshot);
    if (made == NULL || atomic_fetch_sub(&made->refs, 1) > 1)
        return;
    unref_held(made->held);
    free(made);
}

const Cairn__V1__Job *snapshot_job(const struct snapshot *snapshot, const char *id)
{
    for (size_t i = 0; i < snapshot->job_count; i++) {
        if (strcmp(snapshot->jobs[i]->id, id) == 0)
            return snapshot->jobs[i];
    }
    return NULL;
}

/* ---- as JSON ---- */

/* Owned by held, and there as long as it is; NULL: no memory. Its lock is held. */
static const struct texts *texts_of(struct held *held, size_t job_count)
{
    if (held->texts == NULL) {
        held->texts = texts_new(held->jobs, job_count, held->before);
        texts_unref(held->before);
        held->before = NULL;
    }
    return held->texts;
}

static enum status put_jobs(const struct texts *texts, const struct texts *known, bool truncated,
                            struct buf *out)
{
    const size_t begin = out->size;
    size_t count = 0;
    enum status st = buf_append_text(out, "{\"jobs\":[");
    if (st == ST_OK)
        st = texts_put(texts, known, out, &count);
    if (st == ST_OK)
        st = buf_printf(out, "],\"truncated\":%s}\n", truncated ? "true" : "false");
    if (count == 0 && known != NULL)
        out->size = begin;
    return st;
}

static const struct buf *text_of(struct held *held, struct buf *text, json_t *value)
{
    const bool made = json_print(value, true, text) == ST_OK;
    json_decref(value);
    if (!made)
        buf_clear(text);
    (void)pthread_mutex_unlock(&held->lock);
    return made ? text : NULL;
}

const struct buf *snapshot_jobs_json(const struct snapshot *snapshot)
{
    struct held *held = made_of(snapshot)->held;
    enum status st = ST_OK;
    if (held == NULL)
        return NULL;
    (void)pthread_mutex_lock(&held->lock);
    if (held->jobs_json.size == 0) {
        const struct texts *texts = texts_of(held, snapshot->job_count);
        st = texts == NULL ? ST_NO_MEMORY
                           : put_jobs(texts, NULL, snapshot->truncated, &held->jobs_json);
        if (st != ST_OK)
            buf_clear(&held->jobs_json);
    }
    (void)pthread_mutex_unlock(&held->lock);
    return st == ST_OK ? &held->jobs_json : NULL;
}

/* A reference; NULL: there are none. made: also where nobody asked for them yet. */
static struct texts *take_texts(const struct snapshot *snapshot, bool made)
{
    struct held *held = snapshot != NULL ? made_of(snapshot)->held : NULL;
    if (held == NULL)
        return NULL;
    (void)pthread_mutex_lock(&held->lock);
    if (made)
        (void)texts_of(held, snapshot->job_count);
    struct texts *texts = texts_ref(held->texts != NULL ? held->texts : held->before);
    (void)pthread_mutex_unlock(&held->lock);
    return texts;
}

enum status snapshot_put_changes(const struct snapshot *snapshot, const struct snapshot *told,
                                 struct buf *out)
{
    struct texts *texts = take_texts(snapshot, true), *known = take_texts(told, true);
    const enum status st =
        texts == NULL ? ST_NO_MEMORY : put_jobs(texts, known, snapshot->truncated, out);
    texts_unref(texts);
    texts_unref(known);
    return st;
}

const struct buf *snapshot_nodes_json(const struct snapshot *snapshot)
{
    struct held *held = made_of(snapshot)->held;
    if (held == NULL || held->nodes == NULL)
        return NULL;
    (void)pthread_mutex_lock(&held->lock);
    if (held->nodes_json.size == 0)
        return text_of(held, &held->nodes_json, json_from_message(&held->nodes->base));
    (void)pthread_mutex_unlock(&held->lock);
    return &held->nodes_json;
}

/* ---- making them ---- */

static struct held *held_new(Cairn__V1__ListJobsReply *const *pages, size_t page_count,
                             size_t *job_count)
{
    size_t count = 0;
    for (size_t i = 0; i < page_count; i++)
        count += pages[i]->n_jobs;
    struct held *held = calloc(1, sizeof(*held));
    if (held == NULL)
        return NULL;
    held->jobs = calloc(count + 1, sizeof(Cairn__V1__Job *));
    held->pages = calloc(page_count + 1, sizeof(Cairn__V1__ListJobsReply *));
    if (held->jobs == NULL || held->pages == NULL) {
        free(held->jobs);
        free(held->pages);
        free(held);
        return NULL;
    }
    atomic_init(&held->refs, 1);
    (void)pthread_mutex_init(&held->lock, NULL);
    buf_init(&held->jobs_json, JSON_BYTES_MAX);
    buf_init(&held->nodes_json, JSON_BYTES_MAX);
    *job_count = 0;
    for (size_t i = 0; i < page_count; i++) {
        held->pages[held->page_count++] = pages[i];
        for (size_t k = 0; k < pages[i]->n_jobs; k++)
            held->jobs[(*job_count)++] = pages[i]->jobs[k];
    }
    return held;
}

struct snapshot *snapshot_new(Cairn__V1__ListJobsReply *const *pages, size_t page_count,
                              Cairn__V1__ListNodesReply *nodes, Cairn__V1__GetVersionReply *version,
                              const struct snapshot *last)
{
    size_t count = 0;
    struct made *made = calloc(1, sizeof(*made));
    struct held *held = made != NULL ? held_new(pages, page_count, &count) : NULL;
    if (held == NULL) {
        free(made);
        return NULL;
    }
    held->nodes = nodes;
    held->version = version;
    atomic_init(&made->refs, 1);
    made->held = held;
    held->before = take_texts(last, false);
    made->snapshot = (struct snapshot){
        .up = true, .jobs = held->jobs, .job_count = count, .nodes = nodes, .version = version
    };
    return &made->snapshot;
}

struct snapshot *snapshot_stale(const struct snapshot *last, const char *error)
{
    struct made *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return NULL;
    atomic_init(&made->refs, 1);
    if (last != NULL) {
        made->held = made_of(last)->held;
        if (made->held != NULL)
            (void)atomic_fetch_add(&made->held->refs, 1);
        made->snapshot = *last;
    }
    made->snapshot.up = false;
    (void)snprintf(made->snapshot.error, sizeof(made->snapshot.error), "%s", error);
    return &made->snapshot;
}
