/*
 * Reading a trainer's output file while, or after, it is written.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/io.h"
#include "common/limits.h"

/*
 * The last LIMIT_LAST_LINES lines, oldest first, each cut to LIMIT_LOG_LINE - 1 bytes. Bytes that
 * aren't UTF-8, and NULs, are '?': the lines travel in text fields.
 */
struct log_tail {
    char *text; /* one allocation, owned */
    char *lines[LIMIT_LAST_LINES];
    size_t count;
};

/* No file: no lines. */
MUST_CHECK enum status log_tail_read(const struct io *io, const char *path, struct log_tail *out);
void log_tail_release(struct log_tail *lines);

/* A piece of the file, unchanged. */
struct log_piece {
    uint8_t *data; /* owned (free) */
    size_t size;
    uint64_t offset; /* of data: as asked for; 0 beyond the end, as the file began anew since */
    uint64_t file_size;
    bool missing; /* there is no such file */
};

/* Reads at most size_max bytes, and never more than LOG_PIECE_MAX. */
#define LOG_PIECE_MAX ((size_t)1024 * 1024)
MUST_CHECK enum status log_piece_read(const struct io *io, const char *path, uint64_t offset,
                                      size_t size_max, struct log_piece *out);
