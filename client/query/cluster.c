#include "client/query/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ask/call.h"
#include "client/print/format.h"
#include "common/clock.h"
#include "proto/text/job_state.h"

#define CALL_MS    2000  /* a key waits */
#define PROBE_MS   300   /* for a coordinator that is away */
#define AGAIN_MS   10000 /* between two looks for events that no change tells of */
#define JOB_EVENTS 8     /* the newest of one job */
#define FIRST_JOBS 4     /* whose events the first picture has */

struct cluster_job {
    char id[LIMIT_NAME];
    Cairn__V1__JobState state;
    uint32_t generation, restarts;
    bool changed;     /* since its events were asked for */
    int64_t asked_ms; /* monotonic; 0: never */
};

void cluster_release(struct cluster *cluster)
{
    cairn__v1__list_jobs_reply__free_unpacked(cluster->jobs, NULL);
    cairn__v1__list_nodes_reply__free_unpacked(cluster->nodes, NULL);
    cairn__v1__get_version_reply__free_unpacked(cluster->version, NULL);
    free(cluster->known);
    *cluster = (struct cluster){ 0 };
}

/* ---- events ---- */

static bool is_same(const struct cluster_event *a, const struct cluster_event *b)
{
    return a->wall_ms == b->wall_ms && strcmp(a->about, b->about) == 0 &&
           strcmp(a->kind, b->kind) == 0 && strcmp(a->text, b->text) == 0;
}

void cluster_add_event(struct cluster *cluster, const struct cluster_event *event)
{
    struct cluster_event *all = cluster->events;
    size_t at = cluster->event_count;
    while (at > 0 && all[at - 1].wall_ms > event->wall_ms)
        at--;
    for (size_t i = at; i > 0 && all[i - 1].wall_ms == event->wall_ms; i--) {
        if (is_same(&all[i - 1], event))
            return;
    }
    if (cluster->event_count < CLUSTER_EVENTS) {
        memmove(all + at + 1, all + at, (cluster->event_count - at) * sizeof(*all));
        cluster->event_count++;
    } else if (at > 0) {
        memmove(all, all + 1, (at - 1) * sizeof(*all));
        at--;
    } else {
        return;
    }
    all[at] = *event;
}

/* There are many of these, and they tell that all is well. */
static bool is_usual(const char *kind)
{
    return strcmp(kind, "saved") == 0 || strcmp(kind, "audit-passed") == 0;
}

void cluster_add_events(struct cluster *cluster, const Cairn__V1__Job *job)
{
    size_t taken = 0;
    for (size_t i = job->n_events; i > 0 && taken < JOB_EVENTS; i--) {
        const Cairn__V1__Event *row = job->events[i - 1];
        struct cluster_event event = { .wall_ms = 0 };
        if (is_usual(row->kind) || !format_read_time(row->time, &event.wall_ms))
            continue;
        (void)snprintf(event.about, sizeof(event.about), "%s", job->name);
        (void)snprintf(event.kind, sizeof(event.kind), "%s", row->kind);
        (void)snprintf(event.text, sizeof(event.text), "%s", row->message);
        cluster_add_event(cluster, &event);
        taken++;
    }
}

/* ---- jobs ---- */

static const struct cluster_job *find_known(const struct cluster *cluster, const char *id,
                                            size_t *from)
{
    for (size_t i = 0; i < cluster->known_count; i++) { /* lists keep their order: the next one */
        const size_t at = (*from + i) % cluster->known_count;
        if (strcmp(cluster->known[at].id, id) == 0) {
            *from = at + 1;
            return &cluster->known[at];
        }
    }
    return NULL;
}

static void compare_job(const struct cluster_job *before, const Cairn__V1__Job *job,
                        struct cluster_job *out)
{
    *out = before == NULL ? (struct cluster_job){ .changed = true } : *before;
    if (out->state != job->state || out->generation != job->generation ||
        out->restarts != job->restarts)
        out->changed = true;
    (void)snprintf(out->id, sizeof(out->id), "%s", job->id);
    out->state = job->state;
    out->generation = job->generation;
    out->restarts = job->restarts;
}

bool cluster_take_jobs(struct cluster *cluster, Cairn__V1__ListJobsReply *jobs)
{
    size_t from = 0;
    struct cluster_job *known = malloc(CLUSTER_JOBS * sizeof(*known));
    if (known == NULL) {
        cairn__v1__list_jobs_reply__free_unpacked(jobs, NULL);
        return false;
    }
    while (jobs->n_jobs > CLUSTER_JOBS) /* that weren't asked for */
        cairn__v1__job__free_unpacked(jobs->jobs[--jobs->n_jobs], NULL);
    for (size_t i = 0; i < jobs->n_jobs; i++)
        compare_job(find_known(cluster, jobs->jobs[i]->id, &from), jobs->jobs[i], &known[i]);
    free(cluster->known);
    cluster->known = known;
    cluster->known_count = jobs->n_jobs;
    cairn__v1__list_jobs_reply__free_unpacked(cluster->jobs, NULL);
    cluster->jobs = jobs;
    return true;
}

/* The sooner, the higher: those that something happened to, of these those that live. */
static int urgency(const struct cluster_job *job)
{
    return 2 * job->changed + !job_is_over(job->state);
}

const char *cluster_next_job(struct cluster *cluster, int64_t now_ms)
{
    size_t chosen = 0;
    for (size_t i = 1; i < cluster->known_count; i++) {
        const struct cluster_job *best = &cluster->known[chosen], *job = &cluster->known[i];
        if (urgency(job) > urgency(best) ||
            (urgency(job) == urgency(best) && job->asked_ms < best->asked_ms))
            chosen = i;
    }
    if (cluster->known_count == 0)
        return NULL;
    struct cluster_job *job = &cluster->known[chosen];
    if (!job->changed && (job_is_over(job->state) || now_ms - cluster->asked_ms < AGAIN_MS))
        return NULL;
    cluster->asked_ms = now_ms;
    job->changed = false;
    job->asked_ms = now_ms;
    return cluster->jobs->jobs[chosen]->id;
}

/* ---- nodes ---- */

static void compare_node(struct cluster *cluster, const Cairn__V1__Node *before,
                         const Cairn__V1__Node *node)
{
    struct cluster_event event = { .wall_ms = clock_wall_ms(clock_system()), .kind = "node" };
    if (before != NULL && strcmp(before->state, node->state) == 0)
        return;
    (void)snprintf(event.about, sizeof(event.about), "%s", node->name);
    (void)snprintf(event.text, sizeof(event.text), "%s%s%s", node->state,
                   node->reason[0] == '\0' ? "" : ": ", node->reason);
    cluster_add_event(cluster, &event);
}

static const Cairn__V1__Node *find_node(const Cairn__V1__ListNodesReply *list, size_t guess,
                                        const char *name)
{
    if (guess < list->n_nodes && strcmp(list->nodes[guess]->name, name) == 0)
        return list->nodes[guess];
    for (size_t i = 0; i < list->n_nodes; i++) {
        if (strcmp(list->nodes[i]->name, name) == 0)
            return list->nodes[i];
    }
    return NULL;
}

void cluster_take_nodes(struct cluster *cluster, Cairn__V1__ListNodesReply *nodes)
{
    Cairn__V1__ListNodesReply *before = cluster->nodes;
    for (size_t i = 0; before != NULL && i < nodes->n_nodes; i++) {
        const Cairn__V1__Node *node = nodes->nodes[i];
        compare_node(cluster, find_node(before, i, node->name), node);
    }
    cairn__v1__list_nodes_reply__free_unpacked(before, NULL);
    cluster->nodes = nodes;
}

/* ---- looking ---- */

static enum rpc_code look_at_jobs(struct client *client, struct cluster *cluster)
{
    Cairn__V1__ListJobsRequest request = CAIRN__V1__LIST_JOBS_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    request.page_size = CLUSTER_JOBS;
    const enum rpc_code code = client_try(client, "ListJobs", &request.base, CALL_MS, &reply);
    if (code == RPC_OK && !cluster_take_jobs(cluster, (Cairn__V1__ListJobsReply *)reply))
        return RPC_RESOURCE_EXHAUSTED;
    return code;
}

static enum rpc_code look_at_nodes(struct client *client, struct cluster *cluster)
{
    Cairn__V1__ListNodesRequest request = CAIRN__V1__LIST_NODES_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    const enum rpc_code code = client_try(client, "ListNodes", &request.base, CALL_MS, &reply);
    if (code == RPC_OK)
        cluster_take_nodes(cluster, (Cairn__V1__ListNodesReply *)reply);
    return code;
}

/* Again after it was away: it may be another one. */
static enum rpc_code look_at_version(struct client *client, struct cluster *cluster)
{
    Cairn__V1__GetVersionRequest request = CAIRN__V1__GET_VERSION_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    if (cluster->version != NULL && cluster->lost_ms == 0)
        return RPC_OK;
    const enum rpc_code code = client_try(client, "GetVersion", &request.base, CALL_MS, &reply);
    if (code == RPC_OK) {
        cairn__v1__get_version_reply__free_unpacked(cluster->version, NULL);
        cluster->version = (Cairn__V1__GetVersionReply *)reply;
    }
    return code;
}

/* A job that is gone meanwhile, or can't be read, is no failure. */
static enum rpc_code look_at_events(struct client *client, struct cluster *cluster)
{
    Cairn__V1__JobRequest request = CAIRN__V1__JOB_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    request.job = (char *)cluster_next_job(cluster, clock_mono_ms(clock_system()));
    if (request.job == NULL)
        return RPC_OK;
    const enum rpc_code code = client_try(client, "GetJob", &request.base, CALL_MS, &reply);
    if (code != RPC_OK)
        return code == RPC_UNAVAILABLE || code == RPC_DEADLINE_EXCEEDED ? code : RPC_OK;
    cluster_add_events(cluster, (const Cairn__V1__Job *)reply);
    protobuf_c_message_free_unpacked(reply, NULL);
    return RPC_OK;
}

void cluster_look(struct client *client, struct cluster *cluster)
{
    uint32_t agents = 0;
    enum rpc_code code = RPC_OK;
    if (cluster->lost_ms != 0) /* only who waits for it connects again */
        code = client_probe(client, PROBE_MS, &agents);
    if (code == RPC_OK)
        code = look_at_version(client, cluster);
    if (code == RPC_OK)
        code = look_at_jobs(client, cluster);
    if (code == RPC_OK)
        code = look_at_nodes(client, cluster);
    if (code == RPC_OK)
        code = look_at_events(client, cluster);
    if (code == RPC_OK) {
        cluster->lost_ms = 0;
    } else if (cluster->lost_ms == 0) {
        cluster->lost_ms = clock_mono_ms(clock_system());
    }
    cluster->lost_code = code;
}

enum exit_code cluster_open(struct client *client, struct cluster *out)
{
    Cairn__V1__ListJobsRequest jobs = CAIRN__V1__LIST_JOBS_REQUEST__INIT;
    Cairn__V1__ListNodesRequest nodes = CAIRN__V1__LIST_NODES_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    *out = (struct cluster){ 0 };
    jobs.page_size = CLUSTER_JOBS;
    enum exit_code code = client_call(client, "ListJobs", &jobs.base, 0, &reply);
    if (code == EXIT_DONE && !cluster_take_jobs(out, (Cairn__V1__ListJobsReply *)reply)) {
        client_error("%s", status_string(ST_NO_MEMORY));
        code = EXIT_INTERNAL;
    }
    if (code == EXIT_DONE)
        code = client_call(client, "ListNodes", &nodes.base, 0, &reply);
    if (code == EXIT_DONE)
        cluster_take_nodes(out, (Cairn__V1__ListNodesReply *)reply);
    for (size_t i = 0; code == EXIT_DONE && i < FIRST_JOBS; i++) {
        if (look_at_events(client, out) != RPC_OK)
            break;
    }
    if (code == EXIT_DONE)
        (void)look_at_version(client, out);
    return code;
}
