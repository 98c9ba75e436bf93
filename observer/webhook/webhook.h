/*
 * Tells people, by HTTP, what happened to jobs: HOME/webhooks.yaml says whom and of what
 * (docs/webhooks.md).
 *
 * Whoever follows the coordinator hands over jobs as GetJob gives them. What is new in one is
 * queued for each webhook that wants it (job_news.h, queue.h); a thread of this sends, to all
 * webhooks side by side, so that one that is slow holds no other up. What was handled and what
 * waits is in a file (state.h): after a restart each event is delivered at least once, under the
 * same name of its delivery. The list of webhooks is read again when it changes; one with mistakes
 * is told in the log, and the former one stays.
 *
 * Thread: any, side by side, but webhook_open and webhook_close.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cairn/v1/control.pb-c.h"
#include "common/log.h"
#include "common/paths.h"
#include "common/status.h"

struct webhooks;

struct webhook_options {
    const struct paths *paths; /* both borrowed until webhook_close */
    const struct log *log;
    int64_t retry_ms;   /* before the second try; 0: 5 s */
    int64_t timeout_ms; /* of a request; 0: 10 s */
};

/*
 * Reads the list and what was handled, and begins to send. No list, or one with mistakes, is no
 * error: it is looked for every second. curl_global_init is called here.
 * Errors: ST_NO_MEMORY; ST_FULL  the home's path is too long
 */
MUST_CHECK enum status webhook_open(const struct webhook_options *options, struct webhooks **out);
/* Cuts off the requests that are on their way; all messages that aren't delivered are kept for the
 * next run. NULL is fine. */
void webhook_close(struct webhooks *webhooks);

/* True if a webhook is listed. If none is, nobody need ask for jobs. */
bool webhook_wanted(struct webhooks *webhooks);

/*
 * Takes what is new of a job: with its events and recoveries, as GetJob gives them. Never waits for
 * the network. To be called when its state, health, reason, generation or number of recoveries has
 * changed, and every now and then while it runs; once more doesn't matter.
 */
void webhook_job(struct webhooks *webhooks, const Cairn__V1__Job *job);

/* Messages that aren't delivered yet, of all webhooks. */
size_t webhook_waiting(struct webhooks *webhooks);
