/*
 * One call for each of many files of a store, several at a time: a store that is far away takes as
 * long for sixteen as for one.
 *
 * Calls of one folder that only look go side by side on file systems, too. Those that take names
 * out of it don't: Linux locks the folder from before such a call until its answer has come, from
 * an NFS server, too.
 *
 * Thread: any.
 */
#pragma once

#include <stdint.h>

#include "common/status.h"

#define CKPT_AT_ONCE    16
#define CKPT_EACH_LEAST 8 /* items that a thread is worth */

/* May be called for an item twice, and for two at the same time. */
typedef enum status (*ckpt_file_fn)(void *arg, uint32_t item);
/*
 * Calls fn for the items 0 to count - 1, in no order. Few are done one after the other, in order.
 * ST_OK: all were. Otherwise what came of one, and no further were begun: the call that said so was
 * made by this thread, so that io_explain knows why.
 */
MUST_CHECK enum status ckpt_each_file(uint32_t count, ckpt_file_fn fn, void *arg);
