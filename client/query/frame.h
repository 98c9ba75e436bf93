/*
 * One picture of `cairn top`: text of so many lines and cells, from what is known of the cluster.
 *
 *   cairn 0.3.0  14:03:22  unix:/…        one line; where the coordinator is away, since when
 *   slots 3/8  nodes 2 ready  jobs …      one line, or two where they don't fit
 *     NAME  STATE  …                      jobs, as many as there is room for; '>' is the chosen one
 *   NODE  STATE  …                        nodes; those that aren't ready first
 *   EVENTS                                the newest last
 *   q ends  …                             keys
 */
#pragma once

#include "client/print/output.h"
#include "client/query/cluster.h"

#define FRAME_ANY SIZE_MAX /* cells, lines: no bound */

struct frame {
    const struct client *client;
    const struct cluster *cluster;
    const struct column *columns;  /* of jobs */
    ProtobufCMessage *const *jobs; /* in the order in which they are shown */
    size_t job_count;
    const char *order; /* the name of that order */
    size_t width, height;
    bool keys;               /* somebody can press some: a job is chosen, and a last line */
    bool help;               /* shows what the keys do, instead of jobs and nodes */
    size_t chosen;           /* of the jobs */
    size_t first;            /* the first job that is seen; changed so that the chosen one is */
    int64_t now_ms, wall_ms; /* monotonic, and by the clock */
};

MUST_CHECK enum status frame_write(struct frame *frame, struct buf *out);

/* Lines of each part, its title and an empty line before it counted; 0: it isn't there. Together
 * they are at most `height`. */
struct frame_layout {
    size_t jobs, nodes, events;
    bool gaps; /* empty lines between the parts */
};
struct frame_layout frame_layout(size_t height, size_t jobs, size_t nodes, size_t events);

/* "tiny 2, other 1": jobs and how many processes of them a node has. */
void frame_runs(const struct cluster *cluster, const char *node, char *out, size_t capacity);
