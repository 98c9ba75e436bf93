#include "observer/snapshot/snapshot.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/unconst.h"
#include "proto/text/json.h"

#define JSON_BYTES_MAX ((size_t)64 << 20)

/* What a snapshot shows, shared by those that are made of the same answers. */
struct held {
    atomic_uint refs;
    Cairn__V1__ListJobsReply **pages;
    size_t page_count;
    Cairn__V1__Job **jobs;
    Cairn__V1__ListNodesReply *nodes;
    Cairn__V1__GetVersionReply *version;
    pthread_mutex_t lock; /* of the texts */
    struct buf jobs_json, nodes_json;
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

static json_t *jobs_value(const struct snapshot *snapshot)
{
    json_t *list = json_array();
    for (size_t i = 0; list != NULL && i < snapshot->job_count; i++) {
        if (json_array_append_new(list, json_from_message(&snapshot->jobs[i]->base)) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list == NULL ? NULL
                        : json_pack("{s:o, s:b}", "jobs", list, "truncated", snapshot->truncated);
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
    if (held == NULL)
        return NULL;
    (void)pthread_mutex_lock(&held->lock);
    if (held->jobs_json.size == 0)
        return text_of(held, &held->jobs_json, jobs_value(snapshot));
    (void)pthread_mutex_unlock(&held->lock);
    return &held->jobs_json;
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
                              Cairn__V1__ListNodesReply *nodes, Cairn__V1__GetVersionReply *version)
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
