/*
 * The commands that look at jobs and change nothing: each prints its result and returns the exit
 * code. What they take and do is said in client/commands.c, as `cairn COMMAND -h` prints it.
 */
#pragma once

#include "client/base/client.h"

enum exit_code cmd_ps(struct client *client);
enum exit_code cmd_top(struct client *client);
enum exit_code cmd_show(struct client *client);
enum exit_code cmd_watch(struct client *client);
enum exit_code cmd_logs(struct client *client);
enum exit_code cmd_metrics(struct client *client);
enum exit_code cmd_why(struct client *client);
enum exit_code cmd_debug_job(struct client *client);
