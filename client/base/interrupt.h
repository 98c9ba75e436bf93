/*
 * -w: a reading command again and again, until Ctrl-C.
 */
#pragma once

#include "client/base/client.h"

/* Runs once, or with --watch every second until Ctrl-C or a failure. */
enum exit_code repeat(struct client *client, enum exit_code (*once)(struct client *client));

/* Waits, but no longer than until Ctrl-C; false: it was pressed. */
bool wait_interruptibly(const struct client *client, int64_t ms);
