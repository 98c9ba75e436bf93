/*
 * How long silence lasts before somebody is called silent: options of cairnd, for networks that are
 * slow. Each has to leave room for the one before it: several beats before a node is lost, and a
 * node is lost before its workers are said to hang.
 *
 *   beat < lost-after < hang (CAIRN_HANG_MS)
 */
#pragma once

#include <stdint.h>

#include "common/reason.h"
#include "common/status.h"

#define TIMES_BEAT_MIN_MS 1000
#define TIMES_BEAT_MAX_MS 60000
#define TIMES_BEATS_MIN   4    /* beats that may get lost */
#define TIMES_LOST_MIN_MS 3000 /* others are asked meanwhile, which takes 1.5 s */
#define TIMES_HANG_MS     30000

/* The times of silence; 0: the core's own. */
struct times {
    int64_t beat_ms, lost_ms, hang_ms;
};

/*
 * beat, lost_after: seconds as text, of the options; NULL: CAIRN_BEAT, CAIRN_LOST_AFTER, where they
 * are set.
 * Errors: ST_CONFIG  no such time, or they don't fit each other; reason says what to change
 */
MUST_CHECK enum status times_read(const char *beat, const char *lost_after, struct times *out,
                                  struct reason *reason);
