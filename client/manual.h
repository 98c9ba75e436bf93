/*
 * The manual pages: cairn(1) from the table of commands, those of other programs from what they
 * print as their help. The build makes them (client/CMakeLists.txt).
 */
#pragma once

#include "client/base/client.h"
#include "common/buf.h"

/* cairn(1), in roff. Errors: ST_NO_MEMORY, ST_FULL */
MUST_CHECK enum status manual_of_table(const struct command_table *table, struct buf *out);

/*
 * NAME(8) of a program's help: "usage: …" up to an empty line, then paragraphs, and lines
 * "  --option VALUE  text" which more indented ones go on. summary: as in "NAME - summary".
 * Errors: ST_NO_MEMORY, ST_FULL
 */
MUST_CHECK enum status manual_of_help(const char *name, const char *summary, const char *help,
                                      struct buf *out);

/* `cairn manual [PROGRAM SUMMARY]`: the first, or the second of standard input. */
enum exit_code cmd_manual(struct client *client);
