/*
 * What a receiver can rely on: that a message is ours and of now (its signature), and that it is
 * one it has had already (its delivery).
 *
 * Thread: any.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

#define HOOK_SIGNATURE 96 /* "t=UNIX,v1=64 digits", with the NUL */
#define HOOK_DELIVERY  33 /* 32 digits, with the NUL */

/*
 * The value of X-Cairn-Signature: the HMAC-SHA-256 of "UNIX.BODY", UNIX being the time in seconds,
 * so that nobody sends an old message again. Errors: ST_NO_MEMORY
 */
MUST_CHECK enum status hook_sign(const char *secret, size_t secret_size, int64_t unix_s,
                                 const char *body, size_t body_size, char out[HOOK_SIGNATURE]);

/* What a delivery is known by: the same for the same parts, in this run or another one.
 * Errors: ST_NO_MEMORY */
MUST_CHECK enum status hook_delivery(const char *hook, const char *job, const char *what,
                                     char out[HOOK_DELIVERY]);
/* One that there was never before. Errors: ST_IO  the machine has no random numbers */
MUST_CHECK enum status hook_delivery_new(char out[HOOK_DELIVERY]);
