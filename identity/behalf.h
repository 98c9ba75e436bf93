/*
 * On whose behalf the observer calls the coordinator: a line of the call's metadata,
 *
 *     cairn-for: operator/alice 192.0.2.7         by a certificate
 *     cairn-for: viewer/session:3f2a9c 127.0.0.1  by a session of a browser, or a token
 *
 * with the role of who asks, who that is, and from where. It counts only on a call that may do
 * everything anyway (the coordinator's own socket), and takes rights away from it, never adds any.
 *
 * Thread: any.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "identity/identity.h"

#define IDENTITY_BEHALF_KEY     "cairn-for"
#define IDENTITY_BEHALF         (LIMIT_NAME + 80) /* bytes of the line, with the NUL */
#define IDENTITY_BEHALF_ADDRESS 46                /* bytes of an address, with the NUL */

struct identity_behalf {
    enum identity_role role; /* an operator or a viewer */
    char who[LIMIT_NAME];    /* a name, or one of more than a name's letters: with a ':' */
    char address[IDENTITY_BEHALF_ADDRESS];
};

/* Writes the line; behalf must be valid. */
void identity_behalf_text(const struct identity_behalf *behalf, char out[IDENTITY_BEHALF]);
/* Reads a line. False: the bytes are anything else, or more. */
bool identity_behalf_read(const void *text, size_t size, struct identity_behalf *out);
