/*
 * Ctrl-C (and SIGTERM) as something that a command sees and answers, and what waits until then.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/base/client.h"

/* Ctrl-C no longer ends the process from here on, but shows in interrupt_came. To be called before
 * the first call of the coordinator: gRPC's threads inherit the signals that are blocked. */
bool interrupt_catch(struct client *client);
bool interrupt_came(const struct client *client);

/* Waits, but no longer than until Ctrl-C; false: it was pressed. */
bool interrupt_wait(const struct client *client, int64_t ms);

/* Runs once, or with --watch every second until Ctrl-C or a failure. */
enum exit_code interrupt_repeat(struct client *client,
                                enum exit_code (*once)(struct client *client));
