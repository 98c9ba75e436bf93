#include "observer/prometheus/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "observer/prometheus/put.h"
#include "observer/prometheus/state.h"
#include "proto/text/job_state.h"

struct prometheus_subject prometheus_job_subject(const struct prometheus_listed *job)
{
    return (struct prometheus_subject){ .job = job->thing, .labels = job->labels };
}

struct prometheus_subject prometheus_node_subject(const struct prometheus_listed *node)
{
    return (struct prometheus_subject){ .node = node->thing, .labels = node->labels };
}

/* ---- who comes into question ---- */

struct ended {
    const Cairn__V1__Job *job;
    double at;
    size_t order;
};

/* The newest first. */
static int by_end(const void *left, const void *right)
{
    const struct ended *a = left, *b = right;
    if (a->at != b->at)
        return a->at > b->at ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

static void list_add(struct prometheus_list *list, const void *thing)
{
    list->list[list->count++] = (struct prometheus_listed){ .thing = thing };
}

/* Appends the jobs that ended within PROMETHEUS_ENDED_S, to come after those that are not over. */
static enum status list_ended(const struct prometheus_view *view, struct prometheus_plan *plan)
{
    auto_free struct ended *ended = calloc(view->job_count + 1, sizeof(*ended));
    size_t count = 0;
    if (ended == NULL)
        return ST_NO_MEMORY;
    for (size_t i = 0; i < view->job_count; i++) {
        const Cairn__V1__Job *job = view->jobs[i];
        if (job == NULL || !job_is_over(job->state))
            continue;
        const double at = prometheus_time(job->ended_at);
        if (at >= view->now_unix_s - PROMETHEUS_ENDED_S) { /* NaN isn't */
            ended[count++] = (struct ended){ job, at, i };
        } else {
            plan->left_out.jobs_ended++;
        }
    }
    qsort(ended, count, sizeof(*ended), by_end);
    for (size_t i = 0; i < count && i < PROMETHEUS_ENDED_MAX; i++)
        list_add(&plan->jobs, ended[i].job);
    plan->left_out.jobs_ended += count > PROMETHEUS_ENDED_MAX ? count - PROMETHEUS_ENDED_MAX : 0;
    return ST_OK;
}

static enum status list_all(const struct prometheus_view *view, struct prometheus_plan *plan,
                            size_t *out_live)
{
    const size_t nodes = view->nodes == NULL ? 0 : view->nodes->n_nodes;
    plan->jobs.list = calloc(view->job_count + 1, sizeof(*plan->jobs.list));
    plan->nodes.list = calloc(nodes + 1, sizeof(*plan->nodes.list));
    if (plan->jobs.list == NULL || plan->nodes.list == NULL)
        return ST_NO_MEMORY;
    for (size_t i = 0; i < view->job_count; i++) {
        if (view->jobs[i] != NULL && !job_is_over(view->jobs[i]->state))
            list_add(&plan->jobs, view->jobs[i]);
    }
    *out_live = plan->jobs.count;
    for (size_t i = 0; i < nodes; i++)
        list_add(&plan->nodes, view->nodes->nodes[i]);
    return list_ended(view, plan);
}

/* ---- their labels ---- */

/* key="KEY",second="SECOND", the latter if there is one; a NUL after it. */
static enum status add_labels(struct buf *texts, const char *key, const char *key_text,
                              const char *second, const char *second_text, size_t *out_key_bytes)
{
    char value[PROMETHEUS_VALUE_BYTES];
    const size_t before = texts->size;
    prometheus_label_value(key_text, value);
    enum status st = buf_printf(texts, "%s=\"%s\"", key, value);
    *out_key_bytes = texts->size - before;
    if (st == ST_OK && second != NULL) {
        prometheus_label_value(second_text, value);
        st = buf_printf(texts, ",%s=\"%s\"", second, value);
    }
    return st == ST_OK ? buf_append(texts, "", 1) : st;
}

/* Makes the labels of jobs. They are found by the place of their text for now: the texts move while
 * they grow. */
static enum status label_jobs(struct prometheus_list *jobs, struct buf *texts)
{
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < jobs->count; i++) {
        const Cairn__V1__Job *job = jobs->list[i].thing;
        CHECK(job != NULL);
        st = add_labels(texts, "job", job->id, "name", job->name, &jobs->list[i].key_bytes);
    }
    return st;
}

static enum status label_nodes(struct prometheus_list *nodes, struct buf *texts)
{
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < nodes->count; i++) {
        const Cairn__V1__Node *node = nodes->list[i].thing;
        CHECK(node != NULL);
        st = add_labels(texts, "node", node->name, NULL, NULL, &nodes->list[i].key_bytes);
    }
    return st;
}

static const char *point_to_labels(struct prometheus_list *list, const char *texts)
{
    for (size_t i = 0; i < list->count; i++) {
        list->list[i].labels = texts;
        texts += strlen(texts) + 1;
    }
    return texts;
}

/* Orders entries by key, then by their place. */
static int by_key(const void *left, const void *right)
{
    const struct prometheus_listed *a = *(struct prometheus_listed *const *)left;
    const struct prometheus_listed *b = *(struct prometheus_listed *const *)right;
    const size_t common = a->key_bytes < b->key_bytes ? a->key_bytes : b->key_bytes;
    const int differ = memcmp(a->labels, b->labels, common);
    if (differ != 0)
        return differ;
    if (a->key_bytes != b->key_bytes)
        return a->key_bytes < b->key_bytes ? -1 : 1;
    return a < b ? -1 : a > b;
}

static bool same_key(const struct prometheus_listed *a, const struct prometheus_listed *b)
{
    return a->key_bytes == b->key_bytes && memcmp(a->labels, b->labels, a->key_bytes) == 0;
}

/* Keeps the first entry of each key. *dropped: how many entries were removed. *first counts entries
 * at the head of the list, before and after; NULL: nobody asks. */
static enum status drop_twice(struct prometheus_list *list, uint64_t *dropped, size_t *first)
{
    auto_free struct prometheus_listed **sorted = calloc(list->count + 1, sizeof(void *));
    size_t kept = 0, kept_first = 0;
    if (sorted == NULL)
        return ST_NO_MEMORY;
    for (size_t i = 0; i < list->count; i++)
        sorted[i] = &list->list[i];
    qsort(sorted, list->count, sizeof(void *), by_key);
    for (size_t i = 1, one = 0; i < list->count; i++) {
        if (same_key(sorted[one], sorted[i])) {
            sorted[i]->thing = NULL;
        } else {
            one = i;
        }
    }
    for (size_t i = 0; i < list->count; i++) {
        if (list->list[i].thing == NULL)
            continue;
        list->list[kept++] = list->list[i];
        kept_first += first != NULL && i < *first;
    }
    *dropped = list->count - kept;
    list->count = kept;
    if (first != NULL)
        *first = kept_first;
    return ST_OK;
}

/* ---- what they take ---- */

struct space {
    size_t left;        /* bytes */
    struct buf scratch; /* lines that were counted */
};

/* Takes the bytes of a subject from the space. False, and nothing is taken: it doesn't fit, or *st
 * says what failed. */
static bool take(struct space *space, enum prometheus_of of, bool parts,
                 const struct prometheus_subject *subject, enum status *st)
{
    const struct prometheus_table table = prometheus_families(of);
    buf_clear(&space->scratch);
    for (size_t i = 0; *st == ST_OK && i < table.count; i++) {
        if (parts) {
            *st = prometheus_put_parts(&table.list[i], of, subject, &space->scratch);
        } else {
            *st = prometheus_put_family(&table.list[i], of, subject, &space->scratch);
        }
        if (*st == ST_FULL || space->scratch.size > space->left) {
            *st = ST_OK;
            return false;
        }
    }
    space->left -= *st == ST_OK ? space->scratch.size : 0;
    return *st == ST_OK;
}

/* Returns how many of the jobs [from, to) fit, from the first one on. */
static size_t fit_jobs(const struct prometheus_plan *plan, size_t from, size_t to,
                       struct space *space, enum status *st)
{
    size_t i = from;
    for (; i < to; i++) {
        const struct prometheus_subject of = prometheus_job_subject(&plan->jobs.list[i]);
        if (!take(space, PROMETHEUS_OF_JOB, false, &of, st))
            break;
    }
    return i - from;
}

static size_t fit_nodes(const struct prometheus_plan *plan, struct space *space, enum status *st)
{
    size_t i = 0;
    for (; i < plan->nodes.count; i++) {
        const struct prometheus_subject of = prometheus_node_subject(&plan->nodes.list[i]);
        if (!take(space, PROMETHEUS_OF_NODE, false, &of, st))
            break;
    }
    return i;
}

static bool holds(const struct prometheus_listed *job)
{
    return prometheus_job_holds_workers(((const Cairn__V1__Job *)job->thing)->state);
}

static void fit_workers(struct prometheus_plan *plan, struct space *space, enum status *st)
{
    bool fits = true;
    for (size_t i = 0; *st == ST_OK && i < plan->jobs.count; i++) {
        const struct prometheus_subject of = prometheus_job_subject(&plan->jobs.list[i]);
        if (!holds(&plan->jobs.list[i]))
            continue;
        fits = fits && take(space, PROMETHEUS_OF_WORKER, true, &of, st);
        plan->jobs.list[i].parts = fits;
        plan->left_out.workers_size += fits ? 0 : of.job->n_workers;
    }
}

static void fit_gpus(struct prometheus_plan *plan, struct space *space, enum status *st)
{
    bool fits = true;
    for (size_t i = 0; *st == ST_OK && i < plan->nodes.count; i++) {
        const struct prometheus_subject of = prometheus_node_subject(&plan->nodes.list[i]);
        fits = fits && take(space, PROMETHEUS_OF_GPU, true, &of, st);
        plan->nodes.list[i].parts = fits;
        plan->left_out.gpus_size += fits ? 0 : of.node->n_gpus;
    }
}

/* Fits subjects in the order of prometheus.h. */
static enum status fit_all(struct prometheus_plan *plan, size_t live, struct space *space)
{
    enum status st = ST_OK;
    struct prometheus_list *jobs = &plan->jobs, *nodes = &plan->nodes;
    const size_t live_fit = fit_jobs(plan, 0, live, space, &st);
    const size_t nodes_fit = st == ST_OK ? fit_nodes(plan, space, &st) : 0;
    const size_t ended_fit = st == ST_OK ? fit_jobs(plan, live, jobs->count, space, &st) : 0;
    for (size_t i = live_fit; i < live; i++) {
        const Cairn__V1__Job *job = jobs->list[i].thing;
        plan->left_out.workers_size += holds(&jobs->list[i]) ? job->n_workers : 0;
    }
    for (size_t i = nodes_fit; i < nodes->count; i++)
        plan->left_out.gpus_size += ((const Cairn__V1__Node *)nodes->list[i].thing)->n_gpus;
    plan->left_out.jobs_size = jobs->count - live_fit - ended_fit;
    plan->left_out.nodes_size = nodes->count - nodes_fit;
    memmove(jobs->list + live_fit, jobs->list + live, ended_fit * sizeof(*jobs->list));
    jobs->count = live_fit + ended_fit;
    nodes->count = nodes_fit;
    fit_workers(plan, space, &st);
    fit_gpus(plan, space, &st);
    return st;
}

enum status prometheus_plan_make(const struct prometheus_view *view, size_t bytes,
                                 struct prometheus_plan *plan)
{
    size_t live = 0;
    memset(plan, 0, sizeof(*plan));
    plan->left_out.jobs_unseen = view->jobs_left_out;
    const size_t things = view->job_count + (view->nodes == NULL ? 0 : view->nodes->n_nodes);
    buf_init(&plan->texts, (things + 1) * PROMETHEUS_LABELS_BYTES);
    if (!view->up)
        return ST_OK;
    enum status st = list_all(view, plan, &live);
    if (st == ST_OK)
        st = label_jobs(&plan->jobs, &plan->texts);
    if (st == ST_OK)
        st = label_nodes(&plan->nodes, &plan->texts);
    if (st != ST_OK)
        return st;
    const char *texts = point_to_labels(&plan->jobs, plan->texts.data);
    (void)point_to_labels(&plan->nodes, texts);
    st = drop_twice(&plan->jobs, &plan->left_out.jobs_twice, &live);
    if (st == ST_OK)
        st = drop_twice(&plan->nodes, &plan->left_out.nodes_twice, NULL);
    struct space space = { .left = bytes };
    buf_init(&space.scratch, bytes);
    if (st == ST_OK)
        st = fit_all(plan, live, &space);
    buf_release(&space.scratch);
    return st;
}

void prometheus_plan_release(struct prometheus_plan *plan)
{
    free(plan->jobs.list);
    free(plan->nodes.list);
    buf_release(&plan->texts);
}
