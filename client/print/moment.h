/*
 * Moments as people read them. On a terminal in its own time, with the offset from UTC, and with
 * the date where it isn't today's: "17:40:55+01:00", "2026-11-29 17:40:55+01:00". Elsewhere, where
 * nobody knows who reads it when, as RFC 3339 in UTC: "2026-11-29T16:40:55Z".
 */
#pragma once

#include "client/base/client.h"

enum moment_form {
    MOMENT_UTC,
    MOMENT_LOCAL,
    MOMENT_SHORT, /* local, without the offset: it stands beside */
};

/* Returns the form for standard output. */
enum moment_form moment_form_of(const struct client *client);

/* Unix milliseconds; with `fine` they show. now_ms: what is today. Returns out. */
#define MOMENT_BYTES 40
char *moment_text(int64_t ms, enum moment_form form, bool fine, int64_t now_ms,
                  char out[MOMENT_BYTES]);

/* A text of the coordinator's, each RFC 3339 time of UTC in it as that form has it. free(); NULL:
 * no memory. */
char *moment_rewrite(const char *text, enum moment_form form, int64_t now_ms);
