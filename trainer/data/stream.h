/*
 * The bytes of a data file from its start, inflated where the file is gzip: its first bytes say so,
 * not its name. Several gzip members in a row are one stream.
 *
 * Thread: one per stream.
 * Errors: ST_INCOMPLETE  the file ends early
 *         ST_CORRUPT     the gzip data are damaged
 *         and those of io
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/io.h"
#include "common/status.h"
#include "trainer/data/identity.h"

struct byte_stream;

struct byte_stream_options {
    const struct io *io; /* borrowed for life */
    const char *path;
    void (*progress)(void *arg); /* per MiB read from the file; may be NULL */
    void *progress_arg;
};

MUST_CHECK enum status byte_stream_open(const struct byte_stream_options *options,
                                        struct byte_stream **out);
void byte_stream_close(struct byte_stream *stream);

/* Reads exactly size bytes. */
MUST_CHECK enum status byte_stream_read(struct byte_stream *stream, void *out, size_t size);

/* Tells whether nothing is left; checks the gzip trailer on the way. */
MUST_CHECK enum status byte_stream_at_end(struct byte_stream *stream, bool *out);

/* Returns the size and hash of what was read so far. */
struct data_identity byte_stream_identity(const struct byte_stream *stream);
