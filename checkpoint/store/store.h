/*
 * Where checkpoints may be kept, behind one struct io: paths that begin with s3:// go to S3, all
 * others to the machine's files. Which S3 is meant, and by whom, is found in the environment
 * (docs/s3.md) when the first such path is met.
 *
 * Thread: any.
 */
#pragma once

#include <stdbool.h>

#include "common/io.h"

struct ckpt_store;

MUST_CHECK enum status ckpt_store_new(struct ckpt_store **out);
/* Calls on S3 that are in progress, wherever, end soon with ST_CLOSED; none may begin. */
void ckpt_store_close(struct ckpt_store *store);
/* Closes and waits for calls that are in progress. NULL is fine. */
void ckpt_store_free(struct ckpt_store *store);
/* Borrowed until ckpt_store_free. */
const struct io *ckpt_store_io(struct ckpt_store *store);

/* Whether a path names a place in an object store. */
bool ckpt_store_is_object(const char *path);
