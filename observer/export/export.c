#include "observer/export/export.h"

#include <pthread.h>
#include <stdlib.h>

#define WAIT_MS 5000

struct export
{
    struct export_parts parts;
    struct curves *curves;
    struct notices *notices;
    pthread_t thread;
};

static void *run(void *arg)
{
    struct export *export = arg;
    struct poll *poll = export->parts.poll;
    const struct snapshot *seen = poll_latest(poll);
    while (!poll_stopped(poll)) {
        notices_look(export->notices, seen);
        curves_look(export->curves, seen);
        const struct snapshot *next = poll_wait(poll, seen, WAIT_MS);
        if (next == NULL)
            continue;
        snapshot_unref(seen);
        seen = next;
    }
    snapshot_unref(seen);
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
