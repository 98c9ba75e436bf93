#include "observer/export/export.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>

#include "common/clock.h"

#define WAIT_MS     5000
#define LAST_MS     2500 /* at the end, for what the coordinator has, and for webhooks to get it */
#define POLL_OUT_MS 20

struct export
{
    struct export_parts parts;
    struct curves *curves;
    struct notices *notices;
    pthread_t thread;
};

/* The coordinator may be about to end: what it knows is written and told now, as far as a moment
 * goes. What isn't is kept for the next start. */
static void look_last(struct export *export)
{
    const int64_t until = clock_mono_ms(clock_system()) + LAST_MS;
    const struct snapshot *last = poll_last(export->parts.poll, until);
    notices_look(export->notices, last);
    while (curves_look(export->curves, last, true) && clock_mono_ms(clock_system()) < until) {
    }
    while (notices_waiting(export->notices) > 0 && clock_mono_ms(clock_system()) < until)
        (void)poll(NULL, 0, POLL_OUT_MS);
    snapshot_unref(last);
}

static void *run(void *arg)
{
    struct export *export = arg;
    struct poll *asks = export->parts.poll;
    const struct snapshot *seen = poll_latest(asks);
    while (!poll_stopped(asks)) {
        notices_look(export->notices, seen);
        (void)curves_look(export->curves, seen, false);
        const struct snapshot *next = poll_wait(asks, seen, WAIT_MS);
        if (next == NULL)
            continue;
        snapshot_unref(seen);
        seen = next;
    }
    snapshot_unref(seen);
    look_last(export);
    return NULL;
}

enum status export_start(const struct export_parts *parts, struct export **out)
{
    struct export *export = calloc(1, sizeof(*export));
    if (export == NULL)
        return ST_NO_MEMORY;
    export->parts = *parts;
    enum status st = curves_new(parts->coordinator, parts->paths, parts->log, &export->curves);
    if (st == ST_OK)
        st = notices_new(parts->coordinator, parts->paths, parts->log, &export->notices);
    if (st == ST_OK)
        st = status_from_errno(pthread_create(&export->thread, NULL, run, export));
    if (st != ST_OK) {
        notices_free(export->notices);
        curves_free(export->curves);
        free(export);
        return st;
    }
    *out = export;
    return ST_OK;
}

void export_stop(struct export *export)
{
    if (export == NULL)
        return;
    (void)pthread_join(export->thread, NULL);
    notices_free(export->notices);
    curves_free(export->curves);
    free(export);
}
