/*
 * `-h`: the table of commands as text, on standard output.
 */
#pragma once

#include "client/base/options.h"

/* `cairn -h`: all commands; `cairn ckpt -h`: those of a noun; `cairn ckpt ls -h`: one. */
void help_all(const struct command_table *table);
void help_noun(const struct command_table *table, const char *noun);
void help_command(const struct command_table *table, const struct command *command);
