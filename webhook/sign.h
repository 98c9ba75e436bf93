/*
 * What a receiver can rely on: the signature shows that a message is ours and recent, the delivery
 * that it was received before.
 *
 * Thread: any.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

#define WEBHOOK_SIGNATURE 96 /* "t=UNIX,v1=64 digits", with the NUL */
#define WEBHOOK_DELIVERY  33 /* 32 digits, with the NUL */

/*
 * The value of X-Cairn-Signature: the HMAC-SHA-256 of "UNIX.BODY", UNIX being the time in seconds,
 * so that nobody sends an old message again. Errors: ST_NO_MEMORY
 */
MUST_CHECK enum status webhook_sign(const char *secret, size_t secret_size, int64_t unix_s,
                                    const char *body, size_t body_size,
                                    char out[WEBHOOK_SIGNATURE]);

/* Makes the identifier of a delivery: the same parts give the same one, in this run and in others.
 * Errors: ST_NO_MEMORY */
MUST_CHECK enum status webhook_delivery(const char *hook, const char *job, const char *what,
                                        char out[WEBHOOK_DELIVERY]);
/* Makes a new, random identifier of a delivery.
 * Errors: ST_IO  the machine has no random numbers */
MUST_CHECK enum status webhook_delivery_new(char out[WEBHOOK_DELIVERY]);
