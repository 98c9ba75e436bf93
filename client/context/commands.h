/*
 * The commands of `cairn context`: each prints its result and returns the exit code. What they take
 * and do is said in client/commands.c, as `cairn context COMMAND -h` prints it. None needs a
 * coordinator.
 */
#pragma once

#include "client/base/client.h"

enum exit_code cmd_context_add(struct client *client);
enum exit_code cmd_context_use(struct client *client);
enum exit_code cmd_context_ls(struct client *client);
enum exit_code cmd_context_rm(struct client *client);
enum exit_code cmd_context_show(struct client *client);
