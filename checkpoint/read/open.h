/*
 * Opening a checkpoint by parts, for those that do more than read it: verifying, which goes on
 * after damage, and writing differences.
 *
 * Thread: one at a time.
 */
#pragma once

#include "checkpoint/read/cursor.h"

/* An empty reader of dir. ST_FULL: the path is too long. */
MUST_CHECK enum status ckpt_reader_start(struct ckpt_reader *reader, const struct io *io,
                                         const char *dir, ckpt_finding_fn fn, void *arg);
/* Frees what the fields own. */
void ckpt_reader_release(struct ckpt_reader *reader);

/*
 * Joins the set of a reader whose manifest is read and whose set is open and undamaged. Describes
 * the state, and opens the parent that the manifest names, with its parents. Damage of a parent is
 * damage of this checkpoint; it is reported with the folder that it lies in.
 */
MUST_CHECK enum status ckpt_reader_join(struct ckpt_reader *reader);

/* Sees to it that the reader's first `count` cursors are there, CKPT_CREW_MAX at most: one for each
 * thread that will read. They are kept until it is closed. */
MUST_CHECK enum status ckpt_reader_need_cursors(struct ckpt_reader *reader, uint32_t count);
