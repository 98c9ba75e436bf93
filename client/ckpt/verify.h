/*
 * Verifying checkpoints' folders, for the commands that do: findings as they come, then a verdict.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "client/base/client.h"
#include "common/io.h"

/*
 * Reads the checkpoint at path and says what was found: lines on standard output, or with JSON an
 * object at the end of results. progress: a line of it stands on the terminal and is wiped first.
 */
enum exit_code verify_folder(const struct client *client, const struct io *io, const char *path,
                             bool progress, json_t *results);

/* Prints results as JSON: one array, or an object per line. Takes them over. */
enum exit_code verify_print(const struct client *client, json_t *results);
