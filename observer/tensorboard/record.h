/*
 * Records of an event file, as TensorFlow frames them:
 *
 *     offset  bytes
 *     0       8      length of the data, little-endian
 *     8       4      masked CRC-32C of those eight bytes
 *     12      length data
 *     .       4      masked CRC-32C of the data
 *
 * The mask: rotated right by 15 bits, plus 0xa282ead8, so that a sum of what holds sums is no
 * special case.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/status.h"

#define TENSORBOARD_RECORD_HEAD 12 /* bytes before the data */
#define TENSORBOARD_RECORD_TAIL 4  /* and after */

uint32_t tensorboard_masked_crc(const void *data, size_t size);

/* Appends a record. Errors: those of a struct buf; out is then as it was. */
MUST_CHECK enum status tensorboard_record_put(struct buf *out, const void *data, size_t size);

/*
 * Finds the record at *at of a file's bytes and moves *at behind it; its data are borrowed from
 * the file's. False: there is no whole one, and *at stays; where *at is the file's size then, the
 * file is complete.
 */
bool tensorboard_record_next(const char *file, size_t size, size_t *at, const void **out_data,
                             size_t *out_size);
