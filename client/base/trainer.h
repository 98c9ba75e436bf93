/*
 * Becoming `cairn-trainer`, for what only that program can do: it alone links the mathematics.
 * The arguments are put together one by one; then this process becomes the program of that name
 * that lies beside its own file.
 */
#pragma once

#include <stddef.h>

#include "client/base/options.h"
#include "common/status.h"

#define TRAINER_ARGUMENTS_MAX (2 * ARGUMENTS_SETS_MAX + 16)

/* Zeroed is empty. Texts are borrowed. */
struct trainer_call {
    const char *arguments[TRAINER_ARGUMENTS_MAX];
    size_t count;
};

void trainer_add(struct trainer_call *call, const char *argument);
/* --set of each of the job file's settings. */
void trainer_add_sets(struct trainer_call *call, const struct arguments *args);

/* Finds the path of that program. ST_NOT_FOUND, ST_FULL */
MUST_CHECK enum status trainer_find(char *out, size_t capacity);
/* Comes back only with an error, which is reported. */
enum exit_code trainer_become(const struct trainer_call *call);
