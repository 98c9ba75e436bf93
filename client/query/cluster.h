/*
 * What `cairn top` knows: jobs, nodes and the newest events, as the coordinator said last.
 *
 * A look asks for the newest CLUSTER_JOBS jobs, all nodes, and, as lists have no events, for one
 * job: one that something happened to since it was asked for, else, now and then, the one that was
 * not asked for the longest. What happens to nodes is seen by comparing. Nothing grows: what a look
 * brings takes the place of what the last one brought, and events have CLUSTER_EVENTS places.
 */
#pragma once

#include "cairn/v1/control.pb-c.h"
#include "client/base/client.h"
#include "rpc/rpc.h"

#define CLUSTER_JOBS   1000 /* one page of ListJobs */
#define CLUSTER_EVENTS 32

/* An event as one line; texts that are too long are cut. */
struct cluster_event {
    int64_t wall_ms;
    char about[40]; /* a job's name, or a node's */
    char kind[16];
    char text[200];
};

struct cluster_job; /* what was last known of a job, and when its events were asked for */

struct cluster {
    Cairn__V1__ListJobsReply *jobs; /* newest first; never NULL after the first look */
    Cairn__V1__ListNodesReply *nodes;
    Cairn__V1__GetVersionReply *version;
    struct cluster_event events[CLUSTER_EVENTS]; /* in the order of their times */
    size_t event_count;
    int64_t lost_ms; /* monotonic: since when the coordinator is away; 0: it is there */
    enum rpc_code lost_code;
    struct cluster_job *known; /* CLUSTER_JOBS of them */
    size_t known_count;
    int64_t asked_ms; /* for events of a job that nothing happened to */
};

/* The first look, which reports its failure. */
enum exit_code cluster_open(struct client *client, struct cluster *out);
void cluster_release(struct cluster *cluster);

/* Looks again, silently; where that fails, what was known stays. */
void cluster_look(struct client *client, struct cluster *cluster);

/* ---- the parts, for tests ---- */

/* Puts an event where its time is; one that is there already changes nothing, nor does one that is
 * older than all of a full list. */
void cluster_add_event(struct cluster *cluster, const struct cluster_event *event);

/* The newest events of a job, as GetJob has them, but for saves and audits that found nothing:
 * there are many of them. */
void cluster_add_events(struct cluster *cluster, const Cairn__V1__Job *job);

/* Takes a list over, in the place of the one before. False: no memory; nothing changed. */
bool cluster_take_jobs(struct cluster *cluster, Cairn__V1__ListJobsReply *jobs);
/* Like cluster_take_jobs, for nodes; makes events of what changed. */
void cluster_take_nodes(struct cluster *cluster, Cairn__V1__ListNodesReply *nodes);

/* The job whose events are to be asked for at now_ms (monotonic), which then count as asked for;
 * NULL: none. Borrowed from the list. */
const char *cluster_next_job(struct cluster *cluster, int64_t now_ms);
