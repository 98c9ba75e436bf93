/* Where in a copy file a save goes: read from the head that the worker wrote, every number checked,
 * since a save that is written beside its place would destroy the program's memory. */
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "library/client/internal.h"
#include "session/copies/copy_file.h"

/* ---- mapped files ---- */

static void unmap(struct library_map *map)
{
    if (map->memory != NULL)
        (void)munmap(map->memory, map->bytes);
    memset(map, 0, sizeof(*map));
}

void library_maps_close(struct cairn *c)
{
    for (uint32_t i = 0; i < LIBRARY_FILES_MAX; i++)
        unmap(&c->maps[i]);
}

/* Returns the place of that file; the oldest one's if there is none. */
static struct library_map *map_of(struct cairn *c, uint32_t file)
{
    struct library_map *unused = &c->maps[file % LIBRARY_FILES_MAX];
    for (uint32_t i = 0; i < LIBRARY_FILES_MAX; i++) {
        struct library_map *map = &c->maps[i];
        if (map->memory != NULL && map->file == file)
            return map;
        if (map->memory == NULL)
            unused = map;
    }
    return unused;
}

static int map_file(struct cairn *c, const struct wire_file *file, int fd, struct library_map **out)
{
    struct stat about;
    struct library_map *map = map_of(c, file->file);
    if (fstat(fd, &about) != 0 || about.st_size < 0 || (uint64_t)about.st_size != file->bytes ||
        file->bytes < COPY_BESIDE)
        return library_say(CAIRN_CHANGED, "the worker's copy file is not of the size it says");
    if (map->memory != NULL && map->file == file->file && map->device == about.st_dev &&
        map->inode == about.st_ino && map->bytes == file->bytes) {
        *out = map;
        return CAIRN_OK;
    }
    unmap(map);
    void *memory = mmap(NULL, (size_t)file->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return library_say(CAIRN_NO_MEMORY, "the worker's copy file can't be mapped");
    *map = (struct library_map){ .file = file->file,
                                 .device = about.st_dev,
                                 .inode = about.st_ino,
                                 .memory = memory,
                                 .bytes = (size_t)file->bytes };
    *out = map;
    return CAIRN_OK;
}

/* ---- the head ---- */

/* What is read: copies, for the worker could change the file itself meanwhile. */
struct tables {
    struct copy_head head;
    struct copy_extent extents[CKPT_EXTENTS_MAX];
    uint32_t
        buffer[CKPT_BUFFERS_MAX]; /* number of library/wire/place.h of each buffer of the file */
};

static bool is_inside(uint64_t offset, uint64_t size, uint64_t first, uint64_t end)
{
    return offset >= first && offset <= end && size <= end - offset;
}

static bool read_tables(const struct library_map *map, struct tables *out)
{
    memcpy(&out->head, map->memory + sizeof(struct copy_seal), sizeof(out->head));
    const struct copy_head *head = &out->head;
    const uint64_t bytes = head->extent_count * sizeof(struct copy_extent);
    if (head->extent_count > CKPT_EXTENTS_MAX || head->buffer_count > CKPT_BUFFERS_MAX ||
        head->data_offset > map->bytes ||
        !is_inside(head->extents, bytes, COPY_BESIDE, head->data_offset))
        return false;
    memcpy(out->extents, map->memory + head->extents, (size_t)bytes);
    return true;
}

/* Finds which buffer of library/wire/place.h each of the file's is, and compares their sizes; that of "ranks"
 * has the areas of other ranks, too. */
static bool name_buffers(const struct layout_places *places, struct tables *tables)
{
    for (uint32_t i = 0; i < tables->head.buffer_count; i++) {
        const struct copy_buffer *it = &tables->head.buffers[i];
        uint32_t b = 0;
        while (b < PLACE_BUFFERS && strncmp(place_buffer_name(b), it->name, sizeof(it->name)) != 0)
            b++;
        if (b == PLACE_BUFFERS || it->dtype != (uint32_t)place_buffer_dtype(b))
            return false;
        const uint64_t width = ckpt_dtype_size(place_buffer_dtype(b));
        if (b != PLACE_RANKS && it->elements != places->buffer_bytes[b] / width)
            return false;
        if (it->elements > UINT64_MAX / 16)
            return false;
        tables->buffer[i] = b;
    }
    return true;
}

/* Narrows the worker's areas to this process's: all of it, and nobody else's. */
static bool take_area(const struct cairn *c, uint64_t area, struct library_extent *extent)
{
    const uint64_t bytes = c->layout.places.buffer_bytes[PLACE_RANKS];
    if (!is_inside(area, bytes, 0, extent->size) || area % PIECE_ELEMENTS != 0 ||
        extent->data % PLACE_ALIGN != 0 || (c->processes == 1 && bytes != extent->size))
        return false;
    extent->first += area;
    extent->data += area;
    extent->hashes += area / PIECE_ELEMENTS * sizeof(struct ckpt_hash);
    extent->size = bytes;
    return true;
}

/* Narrows an extent to the pieces that this process of the worker's fills in. */
static void take_pieces(const struct cairn *c, struct library_extent *extent)
{
    const uint64_t local = c->info.rank % c->processes;
    const uint64_t piece = PIECE_ELEMENTS * ckpt_dtype_size(place_buffer_dtype(extent->buffer));
    const uint64_t pieces = (extent->size + piece - 1) / piece;
    const uint64_t first = pieces * local / c->processes;
    const uint64_t end = pieces * (local + 1) / c->processes;
    const uint64_t end_byte = end == pieces ? extent->size : end * piece;
    extent->first += first * piece;
    extent->data += first * piece;
    extent->hashes += first * sizeof(struct ckpt_hash);
    extent->size = first < end ? end_byte - first * piece : 0;
}

static bool take_extent(const struct cairn *c, const struct tables *tables, uint32_t i,
                        uint64_t area, struct library_target *out)
{
    const struct copy_extent *it = &tables->extents[i];
    if (it->buffer >= tables->head.buffer_count)
        return false;
    const uint32_t buffer = tables->buffer[it->buffer];
    const uint64_t width = ckpt_dtype_size(place_buffer_dtype(buffer));
    const uint64_t elements = tables->head.buffers[it->buffer].elements;
    if (it->count == 0 || !is_inside(it->first, it->count, 0, elements) ||
        it->first % PIECE_ELEMENTS != 0)
        return false;
    struct library_extent extent = { .buffer = buffer,
                                     .first = it->first * width,
                                     .size = it->count * width,
                                     .data = it->data,
                                     .hashes = it->hashes };
    const uint64_t hashes = ckpt_pieces(it->count) * sizeof(struct ckpt_hash);
    if (!is_inside(extent.data, extent.size, tables->head.data_offset, out->map->bytes) ||
        !is_inside(extent.hashes, hashes, COPY_BESIDE, tables->head.data_offset))
        return false;
    if (buffer != PLACE_RANKS) {
        take_pieces(c, &extent);
    } else if (out->area != NULL || !take_area(c, area, &extent)) {
        return false;
    } else {
        out->area = out->map->memory + extent.data;
        out->area_first = extent.first;
    }
    if (extent.size > 0)
        out->extents[out->count++] = extent;
    return true;
}

static bool take_tables(const struct cairn *c, struct tables *tables, uint64_t area,
                        struct library_target *out)
{
    if (!read_tables(out->map, tables) || !name_buffers(&c->layout.places, tables) ||
        tables->head.rank != c->info.rank / c->processes ||
        tables->head.size != c->info.size / c->processes || tables->head.step != c->save.step)
        return false;
    for (uint32_t i = 0; i < tables->head.extent_count; i++) {
        if (!take_extent(c, tables, i, area, out))
            return false;
    }
    return out->area != NULL;
}

int library_target_open(struct cairn *c, const struct wire_file *file, int fd,
                        struct library_target *out)
{
    struct tables tables = { .buffer = { 0 } };
    out->count = 0;
    out->area = NULL;
    const int status = map_file(c, file, fd, &out->map);
    (void)close(fd);
    if (status != CAIRN_OK)
        return status;
    if (!take_tables(c, &tables, file->area, out))
        return library_say(CAIRN_CHANGED, "the worker's copy file is for another state");
    return CAIRN_OK;
}
