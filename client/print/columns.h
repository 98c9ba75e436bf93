/*
 * Columns by their names, as people choose them and put rows in order by them. The name of a column
 * is its title in lower case, with '-' for a blank; of a table only those with an `about` can be
 * named. Mistakes are reported on standard error.
 */
#pragma once

#include "client/print/output.h"

#define COLUMNS_KEYS_MAX 8

/* The keys by which rows are ordered: the first key, and where that is equal the next. */
struct order {
    const struct column *keys[COLUMNS_KEYS_MAX]; /* borrowed from the table */
    bool reverse[COLUMNS_KEYS_MAX];
    size_t count; /* 0: as they come */
};

/* The names of a table, each with `between` before it but the first. */
void columns_names(const struct column *columns, const char *between, char *out, size_t capacity);

/* "id,name" as a table of its own. option: that they were said with, for messages.
 * Errors: EXIT_USAGE  one is unknown, or they are too many */
enum exit_code columns_choose(const struct column *columns, const char *option, const char *words,
                              struct column out[OUTPUT_COLUMNS_MAX + 1]);

/* "state,-loss": '-' turns a key round. Errors: as columns_choose */
enum exit_code columns_order(const struct column *columns, const char *option, const char *words,
                             struct order *out);

/*
 * Reads a listing's --columns and --sort. *columns holds all columns; a table shows those without
 * `asked`. If --columns names some, *columns becomes `chosen`.
 * Errors: EXIT_USAGE  one is unknown, or the format has no columns to choose
 */
enum exit_code columns_of_call(const struct client *client, const struct column **columns,
                               struct column chosen[OUTPUT_COLUMNS_MAX + 1], struct order *order);

/* Was the list of names asked for ("help" for either)? */
bool columns_asked(const struct client *client);
/* Prints it. */
enum exit_code columns_help(const struct column *columns);

/* Puts rows in order; equal ones stay as they were. What isn't known comes last, either way round.
 * Errors: ST_NO_MEMORY */
MUST_CHECK enum status columns_sort(const struct order *order, ProtobufCMessage **rows,
                                    size_t count);
