/*
 * Tokens that show by themselves who made them: half of one is random, the other half an
 * authentication code of the first (HMAC-SHA256, 128 bits of it) under a key that only its maker
 * has. So a token is told from a guess without a look at what it is for.
 *
 * Thread: any.
 */
#pragma once

#include <stdbool.h>

#include "common/reason.h"
#include "common/status.h"

#define IDENTITY_TOKEN 65 /* bytes of a token or of a key: 64 hexadecimal digits and the NUL */

/* Of 64 random digits the last 32 become the code of the first. */
void identity_seal(const char key[IDENTITY_TOKEN], char token[IDENTITY_TOKEN]);

/* Whether that was done to it, with this key. */
bool identity_sealed(const char key[IDENTITY_TOKEN], const char *token);

/* Random digits that are kept in a file, which only its owner may read: made once.
 * Errors: ST_REFUSED  others may read it, or it isn't ours: reason says what to do */
MUST_CHECK enum status identity_key_at(const char *path, char out[IDENTITY_TOKEN],
                                       struct reason *reason);

/* The same, made anew. */
MUST_CHECK enum status identity_key_new(const char *path, char out[IDENTITY_TOKEN]);
