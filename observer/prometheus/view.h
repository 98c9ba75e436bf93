/* The input of the text, and its bounds. (prometheus.h is the face of this folder.) */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cairn/v1/control.pb-c.h"

#define PROMETHEUS_BYTES_MAX   ((size_t)16 * 1024 * 1024) /* it is read every few seconds */
#define PROMETHEUS_ENDED_S     3600 /* long enough for every scraper to see how it ended */
#define PROMETHEUS_ENDED_MAX   100
#define PROMETHEUS_LABEL_BYTES 256 /* of one label's value, as written */

struct prometheus_view {
    /* Jobs as ListJobs or GetJob gives them; NULL ones are skipped. If the text would be too long,
     * the first ones are shown. */
    const Cairn__V1__Job *const *jobs;
    size_t job_count;
    uint32_t jobs_left_out;                    /* jobs there are which aren't among them */
    const Cairn__V1__ListNodesReply *nodes;    /* NULL: not known */
    const Cairn__V1__GetVersionReply *version; /* NULL: not known */
    bool up;                                   /* the coordinator answered when it was asked last */
    double seen_unix_s;                        /* the last answer; 0: there was none */
    double now_unix_s;
    /* the observer's own */
    const char *observer_version;
    double started_unix_s;
    uint32_t connections; /* open ones, of HTTP */
    uint32_t streams;     /* open ones, of the coordinator */
};
