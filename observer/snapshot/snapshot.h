/*
 * What the coordinator said at one time: its jobs, nodes, version. Never changes once it is made,
 * and is shared by everybody who looks.
 *
 * Thread: any.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cairn/v1/control.pb-c.h"
#include "common/buf.h"

struct snapshot {
    bool up;               /* it answered; else the rest is what it said last */
    char error[256];       /* why it didn't */
    double seen_unix_s;    /* when it answered last; 0: it never did */
    Cairn__V1__Job **jobs; /* newest first, without events; never NULL where there are some */
    size_t job_count;
    bool truncated;                         /* there are more */
    const Cairn__V1__ListNodesReply *nodes; /* NULL: it never answered; as version */
    const Cairn__V1__GetVersionReply *version;
};

/* A copy of the pointer that keeps it alive, and the end of one. NULL is let through. */
const struct snapshot *snapshot_ref(const struct snapshot *snapshot);
void snapshot_unref(const struct snapshot *snapshot);

/* The job of that id; NULL: it has none. Lives as long as the snapshot. */
const Cairn__V1__Job *snapshot_job(const struct snapshot *snapshot, const char *id);

/* {"jobs": [...], "truncated": bool} and ListNodesReply as one line of JSON each. Owned by the
 * snapshot, made when they are asked for first; NULL: no memory. */
const struct buf *snapshot_jobs_json(const struct snapshot *snapshot);
const struct buf *snapshot_nodes_json(const struct snapshot *snapshot);
/* As snapshot_jobs_json, of those jobs alone that `told` lacks or shows as they aren't any more;
 * nothing is appended where there are none. told: NULL for all. */
MUST_CHECK enum status snapshot_put_changes(const struct snapshot *snapshot,
                                            const struct snapshot *told, struct buf *out);

/* ---- for whoever makes them ---- */

/* Holds what it is given: messages are freed with it. Replies may be NULL, and so may last, the
 * one before it. NULL: no memory, and nothing was taken. */
struct snapshot *snapshot_new(Cairn__V1__ListJobsReply *const *pages, size_t page_count,
                              Cairn__V1__ListNodesReply *nodes, Cairn__V1__GetVersionReply *version,
                              const struct snapshot *last);
/* One that shows what `last` does, though the coordinator doesn't answer. last may be NULL. */
struct snapshot *snapshot_stale(const struct snapshot *last, const char *error);
