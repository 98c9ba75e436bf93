/*
 * A job's id: "j-" and 10 digits to the base of 32, which the coordinator makes of the order of
 * submission. It names folders.
 */
#pragma once

#include <stdbool.h>
#include <string.h>

#define JOB_ID_DIGITS "0123456789abcdefghjkmnpqrstvwxyz"

static inline bool job_id_valid(const char *text)
{
    return strnlen(text, 13) == 12 && text[0] == 'j' && text[1] == '-' &&
           strspn(text + 2, JOB_ID_DIGITS) == 10;
}
