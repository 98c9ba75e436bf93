/*
 * What may be secret, taken out of all that goes into a bundle. This is the one place that does it:
 * client/bundle/parcel.c, through which everything goes, calls nothing else.
 *
 *   known values       those that were named (client/bundle/secrets.h), wherever they stand
 *   private keys       from BEGIN ... PRIVATE KEY to its END
 *   addresses          the user and the password of any; of http and https all behind the host:
 *                      webhooks and signed links have their secret there
 *   values by name     password: x, "api_key": "x", AWS_SECRET_ACCESS_KEY=x, --token x, a header
 *   env:               all values below such a key of a YAML text
 *   values by shape    64 hexadecimal digits, as Cairn's own tokens have; AKIA..., ghp_..., hf_...,
 *                      sk-..., xoxb-..., eyJ...: those of well-known services
 *
 * What stands in its place is REDACTED.
 */
#pragma once

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/buf.h"
#include "common/status.h"

#define REDACTED         "[secret]"
#define REDACT_KNOWN_MIN 8 /* bytes: a shorter value would be found in words that are none */
#define REDACT_KNOWN_MAX 4096

struct redact;

MUST_CHECK enum status redact_new(struct redact **out);
/* Known values are overwritten first. NULL is fine. */
void redact_free(struct redact *redact);

/* Names a value; shorter ones than REDACT_KNOWN_MIN are left alone. Errors: ST_NO_MEMORY,
 * ST_FULL */
MUST_CHECK enum status redact_know(struct redact *redact, const char *value, size_t size);

/* True for the name of something whose value is secret: of a key, a variable, a header, a field. */
bool redact_is_secret_name(const char *name, size_t size);

/* Appends a text without what may be secret. Errors: those of buf_append */
MUST_CHECK enum status redact_text(const struct redact *redact, const char *text, size_t size,
                                   struct buf *out);
/* Does the same to all texts of a message, and of the messages in it. Errors: ST_NO_MEMORY */
MUST_CHECK enum status redact_message(const struct redact *redact, ProtobufCMessage *message);
/* Does the same to all texts in a value. Errors: ST_NO_MEMORY */
MUST_CHECK enum status redact_json(const struct redact *redact, json_t *value);

/* True if a known value stands in the bytes. */
bool redact_leaks(const struct redact *redact, const void *data, size_t size);
