/*
 * Peaks that were measured, kept in a folder of the node: a worker that comes in a recovery takes
 * what is there, as it must not measure.
 *
 * One file holds one peak. KEY is a line that says all that it depends on: program version, device,
 * precision, threads, processors.
 *
 *     cairn peak 1\n
 *     KEY\n
 *     operations a second, as a decimal\n
 *     XXH3-128 of all before, 32 hexadecimal digits\n
 *
 * The file is called by the first byte of the key's hash: there are 256 at most, and of two keys
 * with the same name the later one counts. It counts if all of it fits, else there is none. It is
 * replaced whole, so of several workers that keep one at once any may win.
 *
 * Thread: any.
 */
#pragma once

#include "common/io.h"
#include "common/status.h"

#define PEAK_KEY_BYTES 1024 /* of a key, with its NUL */

struct peak_place {
    const struct io *io;
    const char *folder; /* made when it is needed; NULL: nothing is kept */
    const char *key;    /* one line, shorter than PEAK_KEY_BYTES */
};

/* Errors: ST_NOT_FOUND  there is none of that key
 *         ST_CORRUPT    damaged: as if there were none
 *         others        of io */
MUST_CHECK enum status peak_find(const struct peak_place *place, double *out_flops);
/* Errors: ST_INVALID  the key is no line, or the peak isn't above 0 and finite; others of io */
MUST_CHECK enum status peak_keep(const struct peak_place *place, double flops);
