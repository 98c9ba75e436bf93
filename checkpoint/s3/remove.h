/* Removing many objects by one request, DeleteObjects, which not every store has. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/s3/client.h"
#include "checkpoint/s3/url.h"

/*
 * Removes the objects folder/names[0], …, IO_UNLINK_MAX at most. On ST_OK out_gone[i] says whether
 * number i is gone, or was never there; to learn why one isn't, remove it alone. After an error,
 * none is known to be gone.
 * Errors: ST_INVALID  this store has no such request
 *         others as s3_client_call
 */
MUST_CHECK enum status s3_remove_many(struct s3_client *client, const struct s3_place *folder,
                                      const char *const *names, uint32_t count, bool *out_gone);
