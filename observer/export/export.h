/*
 * Exports that run whether anybody looks or not: event files for TensorBoard, webhooks. A thread of
 * its own follows the snapshots.
 */
#pragma once

#include "observer/export/curves.h"
#include "observer/export/notices.h"
#include "observer/snapshot/poll.h"

struct export;

struct export_parts {
    struct coordinator *coordinator;
    struct poll *poll;
    const struct paths *paths;
    const struct log *log;
};

/* The parts are borrowed. */
MUST_CHECK enum status export_start(const struct export_parts *parts, struct export **out);
/* After poll_stop. NULL is let through. */
void export_stop(struct export *export);
