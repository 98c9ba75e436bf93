/*
 * What the observer knows, as text for Prometheus (exposition format 0.0.4). docs/prometheus.md has
 * the table of all metrics; a test holds it against the code.
 *
 * What has series, in this order where room is short:
 *
 *   the observer and the coordinator   always
 *   jobs                               that are not over
 *   nodes
 *   jobs that ended                    in the last PROMETHEUS_ENDED_S, of them the newest
 *                                      PROMETHEUS_ENDED_MAX
 *   workers, by rank                   of jobs that hold some: forming, running, saving, recovering
 *   GPUs
 *
 * The text has PROMETHEUS_BYTES_MAX at most. The first of a kind that doesn't fit is left out with
 * all of its kind that follow; cairn_observer_left_out says how many of what, and why. While the
 * coordinator doesn't answer, jobs and nodes have none: nobody measures them.
 *
 * Labels are bounded: ids and names of what is shown, ranks, and words of fixed lists. What isn't
 * UTF-8 is replaced by U+FFFD, what is longer than PROMETHEUS_LABEL_BYTES is cut. Of jobs of one
 * id, nodes of one name, workers of one rank only the first has series: no two lines have the same
 * name and labels, whatever the messages hold. Values that aren't known (NaN) have no line.
 *
 * Counters are what the coordinator only ever adds to, and journals before it tells anybody:
 * Job.generation, recovery_count, CheckpointPlan.failures and .refused. So they don't go down while
 * a job lives, also when the coordinator is killed. Two that look like it are gauges: `restarts` is
 * taken back by one where no generation followed, and lost seconds move from replay to detect, and
 * those since the last record are lost with a coordinator that dies. Gpu.ecc_errors counts since
 * the node's boot.
 */
#pragma once

#include "common/buf.h"
#include "common/status.h"
#include "observer/prometheus/view.h"

#define PROMETHEUS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/*
 * Appends the text to `out`.
 *
 * Memory: the view is borrowed for the call. Takes a few bytes for each job and node beside `out`.
 * Thread: any; pure.
 * Errors: ST_FULL       `out` hasn't even room for what is always there (64 KiB)
 *         ST_NO_MEMORY
 *         In both cases `out` is as it was.
 */
MUST_CHECK enum status prometheus_write(const struct prometheus_view *view, struct buf *out);
