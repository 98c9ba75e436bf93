/*
 * Printing results: one list of rows, or one object, in the format asked for.
 */
#pragma once

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>

#include "client/base/client.h"
#include "common/buf.h"

#define CELL_BYTES 512

struct column {
    const char *title;
    bool right; /* aligned */
    bool wide;  /* only with -o wide */
    void (*cell)(const ProtobufCMessage *row, char *out, size_t capacity);
};

/* Rows of one message type, described by columns up to the one without title. The first column that
 * is `name` prints ids for -o name. */
struct listing {
    const struct column *columns;
    void (*name)(const ProtobufCMessage *row, char *out, size_t capacity);
};

/* A list: table, array, lines of JSON, or ids. A table is printed with its header even if empty. */
enum exit_code output_list(const struct client *client, const struct listing *listing,
                           ProtobufCMessage *const *rows, size_t count);

/* As output_list, but only the table, into a buffer (without header if !header). */
MUST_CHECK enum status output_table(const struct listing *listing, bool wide, bool header,
                                    ProtobufCMessage *const *rows, size_t count, struct buf *out);

/* A message as JSON; takes care of json and jsonl. */
enum exit_code output_message(const struct client *client, const ProtobufCMessage *message);

/* Takes over the value. */
enum exit_code output_json(const struct client *client, json_t *value);

/* Is the output for programs (json, jsonl)? */
bool output_is_json(const struct client *client);

/* Writes a buffer or text to standard output. */
enum exit_code output_text(const char *text);

/* A state in its colour, if there are colours. */
const char *output_color(const struct client *client, const char *state);
const char *output_color_off(const struct client *client);
