/*
 * Patterns over lines of text: PCRE2's, over bytes. No other file knows PCRE2.
 *
 * A pattern is from a user, and so are the lines: both are bounded. A pattern whose search passes a
 * bound isn't found in that line.
 *
 * Memory: the caller frees a pattern with pattern_free.
 * Thread: a pattern is one thread's at a time; different ones don't share anything.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/reason.h"
#include "common/status.h"

#define PATTERN_BYTES 1024 /* the longest text of one */

struct pattern;

/*
 * Compiles the text of a pattern. Letters count as their bytes: `.` is one byte, and (*UTF) is
 * refused.
 * Errors: ST_CONFIG     out_why says what is wrong with the text, *out_offset at which byte
 *         ST_NO_MEMORY
 */
MUST_CHECK enum status pattern_compile(const char *text, struct pattern **out, size_t *out_offset,
                                       struct reason *out_why);

/* Returns how many groups in parentheses the pattern has: 0, or its groups' numbers from 1 on. */
uint32_t pattern_groups(const struct pattern *pattern);

/*
 * Returns true if the pattern is found anywhere in a line of `size` bytes. out_group gets what
 * group 1 matched, cut to `capacity` bytes with the NUL; "" where it matched nothing or there is no
 * such group. out_group may be NULL; it is written only on true.
 */
bool pattern_find(const struct pattern *pattern, const char *line, size_t size, char *out_group,
                  size_t capacity);

void pattern_free(struct pattern *pattern); /* NULL is fine */
