/*
 * Files that are plainly no stream of tokens of two bytes, though they have an even number of bytes
 * and numbers below the vocabulary: they would be trained on without a word.
 *
 * Thread: any.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/reason.h"
#include "common/status.h"

/* Checks a file without llm.c's header. ST_CONFIG: it looks like something else; the reason says
 * what, and the way out. */
MUST_CHECK enum status token_kind_check(const char *path, const uint8_t *bytes, size_t size,
                                        struct reason *reason);
/* Checks a text, where any bytes may be meant: refuses only what stands for another file. */
MUST_CHECK enum status token_kind_check_text(const char *path, const uint8_t *bytes, size_t size,
                                             struct reason *reason);
