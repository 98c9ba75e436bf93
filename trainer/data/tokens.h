/*
 * A stream of tokens out of mapped files: nothing is loaded, a batch reads the pages it touches.
 *
 * Formats
 *   text    any bytes, a token each; not compressed
 *   tokens  uint16, little-endian, with llm.c's header or without one; the header, 1024 bytes:
 *             0  i32  magic 20240520
 *             4  i32  version 1
 *             8  i32  number of tokens, which fill the rest of the file
 *
 * A path whose last part holds '*', '?' or '[', and which names no file, is a pattern (fnmatch).
 * Its files are one stream, in the order of their names by bytes; a window may cross from one file
 * to the next.
 *
 * Content: hashed by tokens_load, or its hashes are found (sums.h). From then on the blocks that a
 * reading lies in are checked before it, if they weren't yet, and it is followed by a look whether
 * the file was touched since; if so, they are checked once more: what was read is what was hashed,
 * or it is an error. A file that another one has taken the place of is read on as it was.
 *
 * Memory: the caller owns *out. A file must not be shortened while it is open (common/io.h, map).
 * Thread: reading by any number.
 * Errors: reason: one line "path: cause; way out"
 *         ST_CONFIG     the user must act: no such file, a file of another kind or cut short, a
 *                       pattern that fits no name, a token that is not below the vocabulary
 *         ST_CHANGED    a file is not what it was when it was hashed
 *         ST_IO, ST_NO_MEMORY
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/io.h"
#include "common/reason.h"
#include "common/status.h"

struct tokens;

struct tokens_options {
    const struct io *io;         /* borrowed for life */
    const char *path;            /* absolute */
    bool text;                   /* false: tokens of two bytes */
    bool watched;                /* after tokens_load, what is read must be what was hashed */
    const char *sums;            /* folder, borrowed for life: sums.h; NULL: nothing is kept */
    void (*progress)(void *arg); /* per MiB hashed; may be NULL */
    void *progress_arg;
};

MUST_CHECK enum status tokens_open(const struct tokens_options *options, struct tokens **out,
                                   struct reason *reason);
void tokens_close(struct tokens *tokens);

/* Hashes all files, or finds their hashes. Once. ST_CHANGED: one is being written */
MUST_CHECK enum status tokens_load(struct tokens *tokens, struct reason *reason);
/* After that: appends the identities of all files as JSON strings with commas; of more than
 * TOKENS_NAMED files one for all of them. */
#define TOKENS_NAMED 256
MUST_CHECK enum status tokens_print_identity(const struct tokens *tokens, struct buf *out);

uint64_t tokens_count(const struct tokens *tokens);

struct tokens_range {
    uint64_t at, count; /* within the stream */
    int64_t vocab;
};
/* Errors: ST_CONFIG   a token is not below vocab; reason names its file and its place there
 *         ST_CHANGED */
MUST_CHECK enum status tokens_read(struct tokens *tokens, const struct tokens_range *range,
                                   int32_t *out, struct reason *reason);
