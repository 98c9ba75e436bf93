/*
 * One line for a person: why something failed, and the way out.
 *
 * A function that can fail for reasons of its own takes a struct reason last and fills it in before
 * it returns an error; where it leaves it as it was, status_string says all there is. On ST_OK it
 * stays as it was.
 *
 * Memory: LIMIT_REASON bytes, with the NUL; what is longer is cut, never within a character.
 * Thread: as any struct.
 */
#pragma once

#include <stdarg.h>

#include "common/limits.h"

struct reason {
    char text[LIMIT_REASON]; /* UTF-8; "": none */
};

/* Mends a text in place: each sequence that is no whole UTF-8 character, such as a character that
 * was cut, becomes '?', or nothing at the end. Readers may refuse such a text, or show all of it as
 * something else. */
void reason_mend(char *text);

void reason_set(struct reason *reason, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void reason_set_list(struct reason *reason, const char *format, va_list list)
    __attribute__((format(printf, 2, 0)));
