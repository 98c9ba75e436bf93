/*
 * Files that hold secrets: read only if nobody but their owner can.
 *
 * Thread: any.
 */
#pragma once

#include <stddef.h>

#include "common/reason.h"
#include "common/status.h"

#define WEBHOOK_SECRET_MIN 16 /* bytes of a secret: a shorter one can be guessed */
#define WEBHOOK_SECRET_MAX 1024

/*
 * Reads a secret: the file's bytes without white space around them, WEBHOOK_SECRET_MIN of them at
 * least. The caller wipes it (webhook_secret_free).
 * Errors: those of private_read; ST_INVALID, too, if it is short
 */
MUST_CHECK enum status webhook_secret_read(const char *path, char **out, size_t *out_size,
                                           struct reason *reason);
/* NULL is fine. */
void webhook_secret_free(char *secret, size_t size);
