/*
 * Messages as JSON, by their descriptors: the contract of `-o json`.
 *
 * All fields always, under the names of the .proto files; 64-bit integers as numbers; enum values
 * without the prefix of their type; what is absent and what is not finite is null. A list of
 * LostSeconds is an object {cause: seconds}; bytes are lower-case hex.
 */
#pragma once

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>

#include "common/buf.h"
#include "common/status.h"

/* A text as it is; where it isn't UTF-8, as paths needn't be, '?' for each byte that isn't ASCII.
 * Owned by the caller; NULL: no memory. */
json_t *json_from_text(const char *text);

/* The shortest decimal that is this float: 0.1 instead of 0.10000000149011612. */
double json_shortest(float value);

/* Owned by the caller (json_decref); NULL: no memory. */
json_t *json_from_message(const ProtobufCMessage *message);

/* A message as one line on standard output. */
MUST_CHECK enum status json_write_message(const ProtobufCMessage *message);

/* A value and a newline: several lines, or one. */
MUST_CHECK enum status json_print(const json_t *value, bool one_line, struct buf *out);

/* Prints as json_print does, to standard output. */
MUST_CHECK enum status json_write(const json_t *value, bool one_line);
