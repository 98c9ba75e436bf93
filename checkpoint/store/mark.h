/*
 * A store's mark: the file `<store>/<job id>/store-mark` (docs/format.md), written once, before the
 * job's first checkpoint. A place that lacks it, or holds another, isn't the store that the job's
 * checkpoints are in, whatever its path says: a folder that isn't mounted, another bucket.
 */
#pragma once

#include "common/io.h"

#define CKPT_MARK_NAME "store-mark"
#define CKPT_MARK      33 /* bytes: 32 lower-case hex digits and a NUL */

/* ST_NOT_FOUND: there is none. ST_CORRUPT: a file of that name holds something else. */
MUST_CHECK enum status ckpt_mark_read(const struct io *io, const char *store, const char *job,
                                      char out[CKPT_MARK]);
/* Makes the job's folder, too. Durable: on ST_OK. ST_EXISTS: there is one; it stays. */
MUST_CHECK enum status ckpt_mark_write(const struct io *io, const char *store, const char *job,
                                       const char *mark);
