/*
 * What the coordinator said at one time: its jobs, nodes, version. A snapshot never changes once it
 * is made, and is shared by everybody who looks.
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
    bool up;               /* the coordinator answered; else the rest is what it said last */
    char error[256];       /* why it didn't */
    double seen_unix_s;    /* when it answered last; 0: it never did */
    Cairn__V1__Job **jobs; /* newest first, without events; never NULL where there are some */
    size_t job_count;
    bool truncated;                         /* there are more */
    const Cairn__V1__ListNodesReply *nodes; /* NULL: it never answered; as version */
    const Cairn__V1__GetVersionReply *version;
};

/* snapshot_ref returns another reference, which keeps the snapshot alive until its snapshot_unref.
 * NULL is let through. */
const struct snapshot *snapshot_ref(const struct snapshot *snapshot);
void snapshot_unref(const struct snapshot *snapshot);

/* Returns the job of that id; NULL: the snapshot has none. Lives as long as the snapshot. */
const Cairn__V1__Job *snapshot_job(const struct snapshot *snapshot, const char *id);

/* {"jobs": [...], "truncated": bool} and ListNodesReply as one line of JSON each. Owned by the
 * snapshot, made when they are asked for first; NULL: no memory. */
const struct buf *snapshot_jobs_json(const struct snapshot *snapshot);
const struct buf *snapshot_nodes_json(const struct snapshot *snapshot);
/* Appends jobs like snapshot_jobs_json, but only those that `told` lacks or shows differently;
 * appends nothing if there are none. told: NULL for all. */
MUST_CHECK enum status snapshot_put_changes(const struct snapshot *snapshot,
                                            const struct snapshot *told, struct buf *out);

/* ---- for those who make snapshots ---- */

/* Makes a snapshot, which owns the messages and frees them. Replies may be NULL, and so may `last`,
 * the snapshot before it. NULL: no memory, and nothing was taken. */
struct snapshot *snapshot_new(Cairn__V1__ListJobsReply *const *pages, size_t page_count,
                              Cairn__V1__ListNodesReply *nodes, Cairn__V1__GetVersionReply *version,
                              const struct snapshot *last);
/* Makes a snapshot of what `last` shows, for a coordinator that doesn't answer. last may be
 * NULL. */
struct snapshot *snapshot_stale(const struct snapshot *last, const char *error);
