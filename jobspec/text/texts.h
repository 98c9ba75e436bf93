/*
 * Lists of texts in one array: each '\1', the text, '\0'; behind the last one '\0'. They are values
 * without pointers, and equal lists are equal bytes where the array was zero before.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/buf.h"

/* Returns the next text of a list after `before` (NULL: the first); NULL: no more. */
const char *texts_next(const char *texts, const char *before);

/* Appends a text to a list of capacity bytes, of which *used are used. False: it has no room. */
bool texts_append(char *texts, size_t capacity, size_t *used, const char *text);

/* True if a text holds a character that controls a terminal; tabs don't count, nor, with `lines`,
 * line ends. */
bool texts_hold_controls(const char *text, bool lines);

/* Writes a text as YAML in double quotes, with line ends and tabs as escapes. */
MUST_CHECK enum status texts_print_quoted(const char *text, struct buf *out);

/* Writes a list as YAML: ["a", "b"]. */
MUST_CHECK enum status texts_print_list(const char *texts, struct buf *out);
