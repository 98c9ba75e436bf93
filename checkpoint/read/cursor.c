#include "checkpoint/read/cursor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/names.h"
#include "common/check.h"
#include "common/io.h"

#define NO_FILE    UINT32_MAX
#define AHEAD_MAX  (UINT64_C(64) << 20) /* bytes of a file that are announced */
#define AHEAD_LEFT (UINT64_C(32) << 20) /* with less than that, more of them are */

/* A checkpoint of the chain: its open file, and the chunk that was read of it last. */
struct chain_level {
    const struct ckpt_reader *reader;
    uint32_t file; /* the file whose descriptor is open, or NO_FILE */
    int fd;
    bool object;       /* in an object store: told what comes */
    uint64_t expected; /* where what was told of the file ends */
    uint8_t *stored;   /* DISK_CHUNK_MAX */
};

struct ckpt_cursor {
    struct chain_level levels[DISK_CHAIN_MAX + 1]; /* the checkpoint, its parent, … */
    uint32_t level_count;
    struct ckpt_codec *codec;
    struct ckpt_upcoming upcoming;
    char file[LIMIT_REASON], what[LIMIT_REASON]; /* of the last damage */
};

enum status ckpt_cursor_new(const struct ckpt_reader *reader, struct ckpt_cursor **out)
{
    struct ckpt_cursor *cursor = calloc(1, sizeof(*cursor));
    if (cursor == NULL)
        return ST_NO_MEMORY;
    enum status st = ckpt_codec_new(CKPT_DEFAULT, &cursor->codec);
    for (; reader != NULL && st == ST_OK; reader = reader->parent) {
        CHECK(cursor->level_count <= DISK_CHAIN_MAX); /* opening has bounded the chain */
        struct chain_level *level = &cursor->levels[cursor->level_count++];
        *level = (struct chain_level){ .reader = reader, .file = NO_FILE, .fd = -1 };
        level->object = reader->io->expect != NULL && io_is_object(reader->io, reader->dir);
        level->stored = malloc(DISK_CHUNK_MAX);
        if (level->stored == NULL)
            st = ST_NO_MEMORY;
    }
    if (st != ST_OK) {
        ckpt_cursor_free(cursor);
        return st;
    }
    *out = cursor;
    return ST_OK;
}

static void close_file(struct chain_level *level)
{
    const struct io *io = level->reader->io;
    if (level->file != NO_FILE)
        (void)io->close(io->self, level->fd);
    level->file = NO_FILE;
}

void ckpt_cursor_free(struct ckpt_cursor *cursor)
{
    if (cursor == NULL)
        return;
    for (uint32_t i = 0; i < cursor->level_count; i++) {
        close_file(&cursor->levels[i]);
        free(cursor->levels[i].stored);
    }
    ckpt_codec_free(cursor->codec);
    free(cursor);
}

/* Describes damage of a chunk for ckpt_cursor_damage; returns st. A parent's file is named with its
 * folder. */
static enum status found_damage(struct ckpt_cursor *cursor, const struct chain_level *level,
                                const struct ckpt_place *place, enum status st, const char *what)
{
    const struct ckpt_reader *reader = level->reader;
    const char *file = reader->manifest.files[place->file].name;
    char base[LIMIT_PATH], chunk[256];
    if (level == cursor->levels || ckpt_basename(reader->dir, base) != ST_OK) {
        (void)snprintf(cursor->file, sizeof(cursor->file), "%s", file);
    } else {
        (void)snprintf(cursor->file, sizeof(cursor->file), "%.200s/%s", base, file);
    }
    if (reader->set.shards[place->file].size == 0) {
        (void)snprintf(chunk, sizeof(chunk), "at byte %" PRIu64, place->reference.offset);
    } else {
        ckpt_shard_describe(&reader->set.shards[place->file].footer, &place->reference, chunk);
    }
    (void)snprintf(cursor->what, sizeof(cursor->what), "%s: %.200s", chunk, what);
    return st;
}

static enum status open_file(struct chain_level *level, uint32_t file)
{
    if (level->file == file)
        return ST_OK;
    close_file(level);
    const struct ckpt_reader *reader = level->reader;
    char path[LIMIT_PATH];
    enum status st = ckpt_path(reader->dir, reader->manifest.files[file].name, path);
    if (st == ST_OK)
        st = reader->io->open(reader->io->self, path, IO_READ, &level->fd);
    if (st == ST_OK)
        level->file = file;
    level->expected = 0;
    return st;
}

/* ---- what comes ---- */

void ckpt_cursor_expect(struct ckpt_cursor *cursor, const struct ckpt_upcoming *upcoming)
{
    cursor->upcoming = upcoming == NULL ? (struct ckpt_upcoming){ 0 } : *upcoming;
    for (uint32_t i = 0; upcoming == NULL && i < cursor->level_count; i++)
        cursor->levels[i].expected = 0;
}

/* Returns the place of that chunk in the level; NULL: the level doesn't have it. */
static const struct ckpt_place *upcoming_at(const struct ckpt_cursor *cursor,
                                            const struct chain_level *level, size_t number)
{
    const struct ckpt_place *place = cursor->upcoming.at(cursor->upcoming.arg, number);
    if (level == cursor->levels || place == NULL)
        return place;
    if ((place->reference.buffer & DISK_BLOB) != 0)
        return NULL;
    return ckpt_reader_place(level->reader, place->reference.buffer, place->reference.index);
}

/* Tells the file of a level, which is open, how far from place on it will be read without a gap. */
static void tell_upcoming(const struct ckpt_cursor *cursor, struct chain_level *level,
                          const struct ckpt_place *place)
{
    const struct ckpt_upcoming *upcoming = &cursor->upcoming;
    const uint64_t first = place->reference.offset;
    if (!level->object || upcoming->next >= upcoming->end ||
        level->expected >= first + AHEAD_LEFT + place->reference.size)
        return;
    uint64_t end = first;
    for (size_t i = upcoming->next; i < upcoming->end && end < first + AHEAD_MAX; i++) {
        const struct ckpt_place *it = upcoming_at(cursor, level, i);
        if (it == NULL || it->file != place->file || it->reference.offset != end)
            break;
        end += it->reference.size;
    }
    const uint64_t from = level->expected > first ? level->expected : first;
    if (end > from)
        io_expect(level->reader->io, level->fd, from, end);
    level->expected = end > from ? end : level->expected;
}

static enum status fetch_at(struct ckpt_cursor *cursor, struct chain_level *level,
                            const struct ckpt_place *place)
{
    const struct disk_reference *it = &place->reference;
    CHECK(it->size <= DISK_CHUNK_MAX);
    CHECK(place->file < level->reader->manifest.file_count);
    enum status st = open_file(level, place->file);
    if (st == ST_NOT_FOUND) /* it was there when the reader opened it */
        return found_damage(cursor, level, place, ST_INCOMPLETE, "the file is gone");
    if (st == ST_OK)
        tell_upcoming(cursor, level, place);
    if (st == ST_OK)
        st = io_read_all(level->reader->io, level->fd, level->stored, it->size, it->offset);
    if (st == ST_INCOMPLETE)
        return found_damage(cursor, level, place, st, "the file has become shorter");
    return st == ST_INVALID ? ST_IO : st; /* a call's: only decoding says so of the bytes */
}

static enum status decode_at(struct ckpt_cursor *cursor, const struct chain_level *level,
                             const struct ckpt_place *place, const void *base, void *raw)
{
    const struct ckpt_footer *footer = &level->reader->set.shards[place->file].footer;
    struct ckpt_chunk_place want = ckpt_shard_place(footer, &place->reference);
    const char *what = NULL;
    enum status st = ckpt_chunk_read(cursor->codec, &want, level->stored, place->reference.size,
                                     base, raw, &what);
    if (ckpt_is_finding(st) || st == ST_INVALID)
        return found_damage(cursor, level, place, st, what);
    return st;
}

enum status ckpt_cursor_fetch(struct ckpt_cursor *cursor, const struct ckpt_place *place,
                              const uint8_t **out)
{
    enum status st = fetch_at(cursor, &cursor->levels[0], place);
    if (st == ST_OK)
        *out = cursor->levels[0].stored;
    return st;
}

enum status ckpt_cursor_decode(struct ckpt_cursor *cursor, const struct ckpt_place *place,
                               void *raw)
{
    const struct ckpt_place *places[DISK_CHAIN_MAX + 1] = { place }; /* by level */
    bool blob = (place->reference.buffer & DISK_BLOB) != 0;
    uint32_t last = 0;
    while (!blob && last + 1 < cursor->level_count &&
           ckpt_chunk_needs_base(cursor->levels[last].stored, places[last]->reference.size)) {
        struct chain_level *below = &cursor->levels[++last];
        places[last] =
            ckpt_reader_place(below->reader, place->reference.buffer, place->reference.index);
        enum status st = fetch_at(cursor, below, places[last]);
        if (st != ST_OK)
            return st;
    }
    enum status st = decode_at(cursor, &cursor->levels[last], places[last], NULL, raw);
    while (st == ST_OK && last-- > 0)
        st = decode_at(cursor, &cursor->levels[last], places[last], raw, raw);
    return st;
}

enum status ckpt_cursor_read(struct ckpt_cursor *cursor, const struct ckpt_place *place, void *raw)
{
    const uint8_t *stored = NULL;
    enum status st = ckpt_cursor_fetch(cursor, place, &stored);
    if (st == ST_OK)
        st = ckpt_cursor_decode(cursor, place, raw);
    return st == ST_INVALID ? ST_CORRUPT : st;
}

void ckpt_cursor_damage(const struct ckpt_cursor *cursor, const char **file, const char **what)
{
    *file = cursor->file;
    *what = cursor->what;
}
