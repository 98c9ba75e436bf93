/*
 * A job file's bytes, wherever they come from: a file, a pipe (`<(…)`, /dev/stdin), "-".
 */
#pragma once

#include <limits.h>
#include <stddef.h>

#include "common/reason.h"
#include "common/status.h"

struct jobspec_input {
    char *text; /* owned, NUL-terminated */
    size_t size;
    char base_dir[PATH_MAX]; /* of relative paths: the file's folder, for a pipe the current one */
};

/*
 * free(out->text).
 * Errors: ST_CONFIG     why says what is wrong with it, name first
 *         ST_NO_MEMORY  the same
 */
MUST_CHECK enum status jobspec_input_read(const char *name, struct jobspec_input *out,
                                          struct reason *why);
