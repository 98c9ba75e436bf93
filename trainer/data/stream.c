#include "trainer/data/stream.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "common/cleanup.h"

#define BLOCK_BYTES ((size_t)1024 * 1024)

struct byte_stream {
    struct byte_stream_options options;
    int fd;
    bool gzip;
    bool file_ended;
    bool member_open;  /* between the first byte of a gzip member and its checked trailer */
    uint64_t at;       /* of the next block in the file */
    size_t begin, end; /* unread bytes of block */
    z_stream inflate;
    struct identity_maker *identity; /* owned */
    uint8_t block[BLOCK_BYTES];
};

/* Fills the block when it is used up. */
static enum status read_block(struct byte_stream *s)
{
    if (s->begin < s->end || s->file_ended)
        return ST_OK;
    const struct io *io = s->options.io;
    size_t got = 0;
    while (got < BLOCK_BYTES) {
        size_t n = 0;
        enum status st = io->pread(io->self, s->fd, s->block + got, BLOCK_BYTES - got, s->at, &n);
        if (st == ST_AGAIN)
            continue;
        if (st != ST_OK)
            return st;
        if (n == 0) {
            s->file_ended = true;
            break;
        }
        got += n;
        s->at += n;
    }
    s->begin = 0;
    s->end = got;
    if (s->options.progress != NULL && got > 0)
        s->options.progress(s->options.progress_arg);
    return ST_OK;
}

enum status byte_stream_open(const struct byte_stream_options *options, struct byte_stream **out)
{
    struct byte_stream *s = malloc(sizeof(*s));
    if (s == NULL)
        return ST_NO_MEMORY;
    memset(s, 0, offsetof(struct byte_stream, block));
    s->options = *options;
    s->fd = -1;
    enum status st = identity_maker_new(&s->identity);
    if (st == ST_OK)
        st = options->io->open(options->io->self, options->path, IO_READ, &s->fd);
    if (st == ST_OK)
        st = read_block(s);
    if (st == ST_OK && s->end >= 2 && s->block[0] == 0x1f && s->block[1] == 0x8b) {
        s->gzip = true;
        st = inflateInit2(&s->inflate, 15 + 16) == Z_OK ? ST_OK : ST_NO_MEMORY;
        if (st != ST_OK)
            s->gzip = false; /* nothing to end */
        s->member_open = true;
    }
    if (st != ST_OK) {
        byte_stream_close(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

void byte_stream_close(struct byte_stream *stream)
{
    if (stream == NULL)
        return;
    if (stream->gzip)
        (void)inflateEnd(&stream->inflate);
    if (stream->fd >= 0)
        (void)stream->options.io->close(stream->options.io->self, stream->fd);
    identity_maker_free(stream->identity);
    free(stream);
}

static enum status read_plain(struct byte_stream *s, uint8_t *out, size_t size)
{
    while (size > 0) {
        enum status st = read_block(s);
        if (st != ST_OK)
            return st;
        size_t n = s->end - s->begin;
        if (n == 0)
            return ST_INCOMPLETE;
        n = n < size ? n : size;
        memcpy(out, s->block + s->begin, n);
        s->begin += n;
        out += n;
        size -= n;
    }
    return ST_OK;
}

/* Opens the next gzip member if one follows. Zeros before it, or behind the last, are padding. */
static enum status next_member(struct byte_stream *s)
{
    enum status st = read_block(s);
    while (st == ST_OK && s->begin < s->end && s->block[s->begin] == 0) {
        s->begin++;
        st = read_block(s);
    }
    if (st != ST_OK || s->begin == s->end || s->block[s->begin] != 0x1f)
        return st;
    if (inflateReset(&s->inflate) != Z_OK)
        return ST_CORRUPT;
    s->member_open = true;
    return ST_OK;
}

/* Inflates up to size bytes; *out_size is 0 only at the end of the last member. */
static enum status inflate_some(struct byte_stream *s, uint8_t *out, size_t size, size_t *out_size)
{
    size_t part = size < (1u << 30) ? size : (1u << 30);
    *out_size = 0;
    while (*out_size == 0) {
        enum status st = s->member_open ? read_block(s) : next_member(s);
        if (st != ST_OK || !s->member_open)
            return st;
        if (s->begin == s->end)
            return ST_INCOMPLETE;
        s->inflate.next_in = s->block + s->begin;
        s->inflate.avail_in = (uInt)(s->end - s->begin);
        s->inflate.next_out = out;
        s->inflate.avail_out = (uInt)part;
        int rc = inflate(&s->inflate, Z_NO_FLUSH);
        s->begin = s->end - s->inflate.avail_in;
        *out_size = part - s->inflate.avail_out;
        if (rc == Z_STREAM_END) {
            s->member_open = false;
        } else if (rc == Z_MEM_ERROR) {
            return ST_NO_MEMORY;
        } else if (rc != Z_OK && rc != Z_BUF_ERROR) {
            return ST_CORRUPT;
        }
    }
    return ST_OK;
}

static enum status read_inflated(struct byte_stream *s, uint8_t *out, size_t size)
{
    while (size > 0) {
        size_t n = 0;
        enum status st = inflate_some(s, out, size, &n);
        if (st != ST_OK)
            return st;
        if (n == 0)
            return ST_INCOMPLETE;
        out += n;
        size -= n;
    }
    return ST_OK;
}

enum status byte_stream_read(struct byte_stream *stream, void *out, size_t size)
{
    enum status st =
        stream->gzip ? read_inflated(stream, out, size) : read_plain(stream, out, size);
    if (st == ST_OK)
        identity_maker_add(stream->identity, out, size);
    return st;
}

struct data_identity byte_stream_identity(const struct byte_stream *stream)
{
    return identity_maker_result(stream->identity);
}

enum status byte_stream_at_end(struct byte_stream *stream, bool *out)
{
    if (!stream->gzip) {
        enum status st = read_block(stream);
        if (st == ST_OK)
            *out = stream->begin == stream->end;
        return st;
    }
    uint8_t byte;
    size_t n = 0;
    enum status st = inflate_some(stream, &byte, 1, &n);
    if (st == ST_OK)
        *out = n == 0 && stream->begin == stream->end;
    return st;
}
