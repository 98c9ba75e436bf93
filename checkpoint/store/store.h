/*
 * Stores of checkpoints, and the mark that says whose a store is.
 *
 * All stores are behind one struct io: paths that begin with s3:// go to S3, all others to the
 * machine's files. Where S3 is, and with which credentials, is found in the environment
 * (docs/s3.md) when the first such path is met.
 *
 * Thread: any.
 */
#pragma once

#include <stdbool.h>

#include "checkpoint/format/names.h" /* CKPT_MARK_NAME */
#include "common/io.h"

struct ckpt_store;

MUST_CHECK enum status ckpt_store_new(struct ckpt_store **out);
/* Calls on S3 that are in progress, wherever, end soon with ST_CLOSED; none may begin. */
void ckpt_store_close(struct ckpt_store *store);
/* Closes and waits for calls that are in progress. NULL is fine. */
void ckpt_store_free(struct ckpt_store *store);
/* Borrowed until ckpt_store_free. */
const struct io *ckpt_store_io(struct ckpt_store *store);

/* Are there settings and credentials with which an object store can be called? It is sent nothing.
 * Errors: explained by the table (io_explain); ST_CONFIG: something has to be set */
MUST_CHECK enum status ckpt_store_ready(struct ckpt_store *store);

/* Whether a path names a place in an object store. */
bool ckpt_store_is_object(const char *path);

/* ---- a store's mark ---- */

/*
 * The mark is the file `<store>/<job id>/store-mark` (docs/format.md; CKPT_MARK_NAME), written
 * once, before the job's first checkpoint. A place that lacks it, or holds another, isn't the store
 * that the job's checkpoints are in, whatever its path says: a folder that isn't mounted, another
 * bucket.
 */
#define CKPT_MARK 33 /* bytes: 32 lower-case hex digits and a NUL */

/* ST_NOT_FOUND: there is none. ST_CORRUPT: a file of that name holds something else. */
MUST_CHECK enum status ckpt_store_id_read(const struct io *io, const char *store, const char *job,
                                          char out[CKPT_MARK]);
/* Waits until another machine's mark, which is known to exist, is visible here, like ckpt_await. */
void ckpt_store_id_await(const struct io *io, const char *store, const char *job);
/* Makes the job's folder, too. Durable: on ST_OK. ST_EXISTS: there is one; it stays. */
MUST_CHECK enum status ckpt_store_id_write(const struct io *io, const char *store, const char *job,
                                           const char *mark);

/* ---- generations ---- */

/*
 * Returns the highest generation that a name in `<store>/<job id>/` speaks of. Names are those of
 * folders, also of those set aside and without a manifest, of temporary files, and of
 * ckpt_used_generation_write. 0: none, or there is no such folder.
 */
MUST_CHECK enum status ckpt_used_generation_max(const struct io *io, const char *store,
                                                const char *job, uint64_t *out);
/* Notes that no generation up to this one is to be formed again: for a caller that can't know of
 * generations that left no folder. Makes the job's folder, too. Durable: on ST_OK. Idempotent. */
MUST_CHECK enum status ckpt_used_generation_write(const struct io *io, const char *store,
                                                  const char *job, uint64_t generation);
