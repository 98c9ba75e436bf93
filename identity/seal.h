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

/* Seals a token of 64 random digits: its last 32 become the authentication code of the first 32. */
void identity_seal(const char key[IDENTITY_TOKEN], char token[IDENTITY_TOKEN]);

/* Whether the token was sealed with this key. */
bool identity_sealed(const char key[IDENTITY_TOKEN], const char *token);

/* Reads a key, random digits in a file that only its owner may read; makes the file if there is
 * none.
 * Errors: ST_REFUSED  others may read it, or it isn't ours: reason says what to do */
MUST_CHECK enum status identity_key_at(const char *path, char out[IDENTITY_TOKEN],
                                       struct reason *reason);

/* Makes a new key, which replaces the file's. */
MUST_CHECK enum status identity_key_new(const char *path, char out[IDENTITY_TOKEN]);
