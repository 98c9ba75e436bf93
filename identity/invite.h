/*
 * An invite: a file with which a machine joins a cluster. Where the coordinator is, the authority
 * by which it is known, and a secret that the coordinator takes so many times and so long.
 *
 *     # what it is
 *     address HOST:PORT       one to IDENTITY_ADDRESSES of them
 *     secret 64 hexadecimal digits
 *     until 2026-11-23T15:04:05Z
 *     -----BEGIN CERTIFICATE-----
 *
 * Thread: any.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/limits.h"
#include "common/status.h"

#define IDENTITY_ADDRESSES    8
#define IDENTITY_ADDRESS      272 /* bytes, with the NUL */
#define IDENTITY_SECRET       65  /* bytes, with the NUL */
#define IDENTITY_SECRET_HASH  32
#define IDENTITY_INVITE_BYTES ((size_t)32 << 10)

struct identity_invite {
    char addresses[IDENTITY_ADDRESSES][IDENTITY_ADDRESS];
    size_t address_count;
    char secret[IDENTITY_SECRET];
    int64_t until_s; /* Unix time; for people: who takes the secret decides */
    char *ca;        /* PEM; owned */
};

/* The secret is overwritten. A zeroed one is fine. */
void identity_invite_release(struct identity_invite *invite);

/* The file's text; the caller's. Errors: ST_NO_MEMORY */
MUST_CHECK enum status identity_invite_text(const struct identity_invite *invite, char **out);
/* Errors: ST_CONFIG  it is no invite; ST_NO_MEMORY */
MUST_CHECK enum status identity_invite_read(const char *text, struct identity_invite *out);

/* A new secret from random bytes, and what is kept of one where it is checked. */
void identity_secret_make(const uint8_t bytes[32], char out[IDENTITY_SECRET]);
MUST_CHECK enum status identity_secret_hash(const char *secret, uint8_t out[IDENTITY_SECRET_HASH]);
