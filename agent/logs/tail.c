#include "agent/logs/tail.h"

#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"

#define TAIL_BYTES ((size_t)LIMIT_LAST_LINES * LIMIT_LOG_LINE)

/* Bytes of the well-formed sequence at text (RFC 3629), or 0. */
static size_t sequence_size(const unsigned char *text, size_t size)
{
    static const struct {
        unsigned char first_min, first_max, second_min, second_max;
        unsigned char size;
    } rows[] = {
        { 0x01, 0x7f, 0x00, 0x00, 1 }, { 0xc2, 0xdf, 0x80, 0xbf, 2 }, { 0xe0, 0xe0, 0xa0, 0xbf, 3 },
        { 0xe1, 0xec, 0x80, 0xbf, 3 }, { 0xed, 0xed, 0x80, 0x9f, 3 }, { 0xee, 0xef, 0x80, 0xbf, 3 },
        { 0xf0, 0xf0, 0x90, 0xbf, 4 }, { 0xf1, 0xf3, 0x80, 0xbf, 4 }, { 0xf4, 0xf4, 0x80, 0x8f, 4 },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (text[0] < rows[i].first_min || text[0] > rows[i].first_max)
            continue;
        if (rows[i].size > size)
            return 0;
        if (rows[i].size > 1 && (text[1] < rows[i].second_min || text[1] > rows[i].second_max))
            return 0;
        for (size_t j = 2; j < rows[i].size; j++) {
            if ((text[j] & 0xc0) != 0x80)
                return 0;
        }
        return rows[i].size;
    }
    return 0;
}

/* Replaces what isn't UTF-8 (and NUL) by '?', in place. */
static void make_utf8(char *text, size_t size)
{
    size_t at = 0;
    while (at < size) {
        size_t length = sequence_size((const unsigned char *)text + at, size - at);
        if (length == 0) {
            text[at] = '?';
            length = 1;
        }
        at += length;
    }
}

enum status log_piece_read(const struct io *io, const char *path, uint64_t offset, size_t size_max,
                           struct log_piece *out)
{
    struct io_stat info;
    enum status st = io->stat(io->self, path, &info);
    if (st == ST_NOT_FOUND) {
        *out = (struct log_piece){ .missing = true };
        return ST_OK;
    }
    if (st != ST_OK)
        return st;
    struct log_piece piece = { .file_size = info.size };
    piece.offset = offset <= info.size ? offset : 0;
    piece.size = size_max < LOG_PIECE_MAX ? size_max : LOG_PIECE_MAX;
    if (piece.size > info.size - piece.offset)
        piece.size = (size_t)(info.size - piece.offset);
    auto_free uint8_t *data = malloc(piece.size + 1);
    if (data == NULL)
        return ST_NO_MEMORY;
    int fd = -1;
    st = io->open(io->self, path, IO_READ, &fd);
    if (st != ST_OK)
        return st;
    st = io_read_all(io, fd, data, piece.size, piece.offset);
    (void)io->close(io->self, fd);
    if (st != ST_OK)
        return st;
    piece.data = TAKE_PTR(data);
    *out = piece;
    return ST_OK;
}

/* Returns where the line that ends before `end` begins; *end is moved before its line end. */
static size_t line_start(const char *text, size_t *end)
{
    if (*end > 0 && text[*end - 1] == '\n')
        (*end)--;
    size_t start = *end;
    while (start > 0 && text[start - 1] != '\n')
        start--;
    return start;
}

/* Ends the line with a NUL, at its end or before. */
static void cut_line(char *line, size_t size)
{
    if (size >= LIMIT_LOG_LINE) {
        size = LIMIT_LOG_LINE - 1;
        make_utf8(line, size); /* the cut may have gone through a character */
    }
    line[size] = '\0';
}

enum status log_tail_read(const struct io *io, const char *path, struct log_tail *out)
{
    struct log_piece piece;
    enum status st = log_piece_read(io, path, UINT64_MAX, 0, &piece); /* its size */
    if (st != ST_OK)
        return st;
    free(piece.data);
    uint64_t from = piece.file_size > TAIL_BYTES ? piece.file_size - TAIL_BYTES : 0;
    st = log_piece_read(io, path, from, TAIL_BYTES, &piece);
    if (st != ST_OK)
        return st;
    struct log_tail lines = { .count = 0 };
    char *text = piece.missing ? calloc(1, 1) : (char *)piece.data;
    if (text == NULL)
        return ST_NO_MEMORY;
    make_utf8(text, piece.size);
    size_t end = piece.size;
    while (end > 0 && lines.count < LIMIT_LAST_LINES) {
        size_t start = line_start(text, &end);
        if (start == 0 && from > 0 && lines.count > 0)
            break; /* its beginning wasn't read */
        cut_line(text + start, end - start);
        lines.lines[LIMIT_LAST_LINES - 1 - lines.count++] = text + start;
        end = start;
    }
    memmove(lines.lines, lines.lines + LIMIT_LAST_LINES - lines.count,
            lines.count * sizeof(lines.lines[0]));
    lines.text = text;
    *out = lines;
    return ST_OK;
}

void log_tail_release(struct log_tail *lines)
{
    free(lines->text);
    *lines = (struct log_tail){ .count = 0 };
}
