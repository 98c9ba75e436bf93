/*
 * Asks the coordinator once a second what there is, and has the newest answer for everybody: what
 * is looked at costs the coordinator the same, whoever looks. Takes at most a twentieth of the
 * time: where an answer takes long, the next question comes later, but within ten seconds: an
 * answer that took seconds once was a disk's or a machine's moment.
 *
 * Thread: one of its own asks; the rest from any.
 */
#pragma once

#include "common/log.h"
#include "observer/coordinator/coordinator.h"
#include "observer/snapshot/snapshot.h"

#define POLL_MS       1000
#define POLL_MOST_MS  10000 /* between an answer and the next question */
#define POLL_JOBS_MAX 1000  /* newest; more are said to be there */

struct poll;

/* Starts asking. coordinator and log are borrowed. */
MUST_CHECK enum status poll_start(struct coordinator *coordinator, const struct log *log,
                                  struct poll **out);
/* Wakes whoever waits, and ends the polling for good. It asks a last time, if it was answered
 * before. */
void poll_stop(struct poll *poll);
/* To be called after poll_stop: waits for that last answer, or until that moment of clock_mono_ms;
 * then like poll_latest. */
const struct snapshot *poll_last(struct poll *poll, int64_t until_ms);
/* After poll_stop, when nobody uses it any more. */
void poll_free(struct poll *poll);

/* Returns the newest answer, never NULL; snapshot_unref. Before the first answer: a snapshot that
 * isn't up. */
const struct snapshot *poll_latest(struct poll *poll);

/* Waits, timeout_ms at most, until there is another than `last` (borrowed); then as poll_latest.
 * NULL: there is none, or poll_stop was called. */
const struct snapshot *poll_wait(struct poll *poll, const struct snapshot *last,
                                 int32_t timeout_ms);
/* Waits until that moment of clock_mono_ms, or until poll_stop was called. */
void poll_nap(struct poll *poll, int64_t until_ms);
bool poll_stopped(struct poll *poll);
