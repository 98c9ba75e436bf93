/*
 * Event files of one job, in a folder of its own, for `tensorboard --logdir`.
 *
 *     FOLDER/events.out.tfevents.TIME.cairn.NNNNNN    TIME: of the first row, in seconds; 000001, …
 *
 * One clean curve, whatever happened to the job, to us and to the machine:
 *
 *  - A row that isn't beyond the last one (the job went back) begins a branch: what was written of
 *    its step and later ones counts no more (curve.h).
 *  - What has been written is never changed: a TensorBoard that runs has perhaps read it, half a
 *    record too. A file whose last record is torn (the machine stopped) is left as it is, and a new
 *    one begun, which readers go on with; a whole one is appended to. Readers want file names in
 *    the order of their rows and are never led back to an older file.
 *  - What was written last is found in the newest file: every one begins with a START that tells
 *    what was before. Nothing else is kept anywhere.
 *  - What can't be written (the disk is full) stays in memory and goes on where it ended.
 *
 * Of more than TENSORBOARD_ROWS steps later ones are thinned, to every second, from twice as many
 * on to every fourth and so on, but for those with an evaluation: a step takes 330 bytes, and
 * TensorBoard shows a thousand points of a curve.
 *
 * Nothing is synced: rows that a crash takes are asked for again (tensorboard_next_step).
 *
 * Thread: any, one at a time.
 */
#pragma once

#include <stdint.h>

#include "cairn/v1/common.pb-c.h"
#include "common/log.h"
#include "common/status.h"

#define TENSORBOARD_ROWS         65536                 /* that many steps all have a row */
#define TENSORBOARD_FILE_BYTES   (UINT64_C(16) << 20)  /* then the next file; it is read at open */
#define TENSORBOARD_BUFFER_BYTES (UINT64_C(256) << 10) /* rows that wait to be written: some 700 */
#define TENSORBOARD_FLUSH_BYTES  (UINT64_C(64) << 10)  /* so many are written without being asked */

struct tensorboard;

/*
 * Opens the files of a folder, which needs not be there (it is made with the first row), or goes on
 * with them. Both texts of log are borrowed, as is log itself; out is the caller's to close.
 * Errors: ST_EXISTS  another process writes there
 *         ST_INVALID the path is too long; else those of reading files
 */
MUST_CHECK enum status tensorboard_open(const char *folder, const struct log *log,
                                        struct tensorboard **out);

/* The first step whose row is wanted: the one after the last row's; 1: there is none. */
uint64_t tensorboard_next_step(const struct tensorboard *tb);
/*
 * The generation of the last row; 0: there is none. If the job is in a later one by now, it may
 * have gone back meanwhile: then rows are wanted from where that generation begins.
 */
uint32_t tensorboard_generation(const struct tensorboard *tb);

/*
 * Takes a row. It is written when many have come, or by tensorboard_flush.
 * Errors: ST_INVALID  its step is 0 or beyond INT64_MAX
 *         ST_FULL     what waits can't be written, and there is no more room: this row is not
 *                     taken, and is wanted later (tensorboard_next_step)
 *         ST_CLOSED   as tensorboard_flush
 *         ST_NO_MEMORY
 */
MUST_CHECK enum status tensorboard_add(struct tensorboard *tb, const Cairn__V1__MetricRow *row);

/*
 * Writes what waits. What can't be written is kept and tried again with the next call, to be made
 * once in a while; that it can't is logged once, and that it was then.
 * Errors: ST_CLOSED  the file was removed or changed by others: close and open again
 *         else       those of making and writing a file
 */
MUST_CHECK enum status tensorboard_flush(struct tensorboard *tb);

/* Writes what waits, as far as it can, and frees tb, which may be NULL. */
void tensorboard_close(struct tensorboard *tb);
