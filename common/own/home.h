/*
 * The home of an instance (common/paths.h): ours, and closed to others. Whoever else could write
 * to it could exchange every file in it; whoever could read it could read what jobs write, and lock
 * what is locked there.
 *
 * Thread: any.
 */
#pragma once

#include "common/paths.h"
#include "common/reason.h"
#include "common/status.h"

/*
 * Makes the home (0700), or takes the rights to read it from others, and says so in done; else that
 * is "".
 * Errors: ST_REFUSED  somebody else's, or others may write to it: why names its owner and mode
 *         ST_NOT_FOUND, ST_IO, ...
 */
MUST_CHECK enum status private_home_claim(const struct paths *paths, struct reason *done,
                                          struct reason *why);
