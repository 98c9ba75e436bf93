/*
 * `cairn bundle`: what support needs, in one file without secrets. What it takes and does is said
 * in client/commands.c, as `cairn bundle -h` prints it.
 */
#pragma once

#include "client/base/client.h"

enum exit_code cmd_bundle(struct client *client);
