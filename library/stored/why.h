/*
 * What the last call of a thread that failed said, and how our statuses become the public ones.
 *
 * Thread: any; each has its own text.
 */
#pragma once

#include <stdarg.h>

#include "common/status.h"
#include "library/cairn.h"

/* Keeps the text for cairn_why and returns status. */
MUST_CHECK int library_say(int status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Returns the text, "" if there is none yet. */
const char *library_why(void);
/* Returns the enum cairn_status that a program is told for st. */
int library_status(enum status st);
