/*
 * Printing results: one list of rows, or one object, in the format asked for.
 */
#pragma once

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>

#include "client/base/client.h"
#include "common/buf.h"

#define OUTPUT_CELL_BYTES  512
#define OUTPUT_COLUMNS_MAX 40

/* Rows are messages of one type. A column shows one member of it, or of a message in it. */
struct column {
    const char *title; /* in lower case also its name (client/print/columns.h) */
    size_t part;   /* place of a pointer to a message that holds the member; if it is NULL, the cell
                      is "-"; 0: the row itself holds it */
    size_t offset; /* place of the member; 0: the cell is made of the whole message */
    void (*cell)(const void *member, char *out, size_t capacity);
    /* The value by which rows are ordered, of the same member; NaN: not known. NULL: the cell's
     * text. */
    double (*value)(const void *member);
    const char *about; /* one line; NULL where nobody can choose */
    size_t most;       /* cells, but with -o wide: a longer text is cut; 0: any */
    unsigned less; /* where a table has to fit: the higher, the sooner it's left out; 0: never */
    bool right;    /* aligned */
    bool wide;     /* only with -o wide */
    bool asked;    /* only where it is named */
    bool state;    /* in the colour of its text */
};

/* A list: table, array, lines of JSON, or names (-o name: the first column). A table is printed
 * with its header even if empty. The column without a title ends the columns. */
enum exit_code output_list(const struct client *client, const struct column *columns,
                           ProtobufCMessage *const *rows, size_t count);

/* Like output_list, but only the table, into a buffer (without header if !header). */
MUST_CHECK enum status output_table(const struct column *columns, bool wide, bool header,
                                    ProtobufCMessage *const *rows, size_t count, struct buf *out);

/* Like output_table, for a terminal of `width` cells: columns that matter less are left out until
 * the others fit, but for the end of the last one. In colours, if the client has some. */
MUST_CHECK enum status output_fitted(const struct client *client, const struct column *columns,
                                     size_t width, ProtobufCMessage *const *rows, size_t count,
                                     struct buf *out);

/* The cell of a row. What would move a terminal's cursor shows as '?', what would steer it
 * otherwise as plain_text has it. */
void output_cell(const struct column *column, const ProtobufCMessage *row,
                 char out[OUTPUT_CELL_BYTES]);

/* A message as JSON; takes care of json and jsonl. */
enum exit_code output_message(const struct client *client, const ProtobufCMessage *message);

/* Prints a value, and takes it over. */
enum exit_code output_json(const struct client *client, json_t *value);

/* True if the output is for programs (json, jsonl). */
bool output_is_json(const struct client *client);

/* Did who reads standard output leave, as `head` does? Then there is nothing to complain of. */
bool output_unread(void);

/* printf to standard output; on a terminal what it made is plain (client/base/plain.h). For words
 * that come in no message: of files, of paths, out of JSON. */
int output_printf(const struct client *client, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Writes a text (NULL: nothing more) to standard output. */
enum exit_code output_text(const char *text);
/* Like output_text; with -w on a terminal the text is cut to its size, so that the beginning stays
 * in view. */
enum exit_code output_screen(const struct client *client, const char *text);

/* Like output_text, with each line cut to so many cells. */
enum exit_code output_cut(const struct client *client, size_t columns, const char *text);

/* A state in its colour, if there are colours. */
const char *output_color(const struct client *client, const char *state);
const char *output_color_off(const struct client *client);
