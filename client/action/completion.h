/*
 * What TAB offers in a shell: every command and option of the table.
 */
#pragma once

#include "client/base/options.h"
#include "common/buf.h"

/* The script for "bash", "zsh" or "fish"; ST_NOT_FOUND: another shell. */
MUST_CHECK enum status completion_script(const struct command_table *table, const char *shell,
                                         struct buf *out);
