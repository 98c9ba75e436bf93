/* The bytes of a save: copied from where the program has them, and hashed. */
#include <string.h>
#include <sys/mman.h>

#include "checkpoint/format/hash.h"
#include "library/client/internal.h"

/* Bytes [first, first + size) of a buffer, which go to `to`. */
struct stretch {
    uint64_t first, size;
    uint8_t *to;
};

/* Returns the part of a stretch that bytes [offset, offset + size) of its buffer have; false: none.
 */
static bool part_of(const struct stretch *it, uint64_t offset, uint64_t size, uint64_t *out_first,
                    uint64_t *out_size)
{
    const uint64_t first = offset > it->first ? offset : it->first;
    const uint64_t end =
        offset + size < it->first + it->size ? offset + size : it->first + it->size;
    *out_first = first;
    *out_size = first < end ? end - first : 0;
    return first < end;
}

/* ---- what is copied at once ---- */

/* Where a tensor begins in its buffer. */
static uint64_t offset_of(const struct cairn *c, uint32_t tensor)
{
    const struct place *place = &c->layout.places.places[tensor];
    return place->offset + (place->buffer == PLACE_RANKS ? c->save.target.area_first : 0);
}

static void copy_now(struct cairn *c, uint32_t tensor)
{
    const struct library_target *target = &c->save.target;
    const struct place *place = &c->layout.places.places[tensor];
    const uint64_t offset = offset_of(c, tensor);
    const uint8_t *from = c->layout.data[tensor];
    for (uint32_t i = 0; i < target->count; i++) {
        const struct library_extent *extent = &target->extents[i];
        const struct stretch all = { extent->first, extent->size, NULL };
        uint64_t first = 0, size = 0;
        if (extent->buffer == place->buffer && part_of(&all, offset, place->bytes, &first, &size)) {
            memcpy(target->map->memory + extent->data + (first - extent->first),
                   from + (first - offset), (size_t)size);
        }
    }
}

void library_fill_now(struct cairn *c)
{
    for (uint64_t i = 0; i < c->layout.count; i++) {
        if ((c->layout.flags[i] & CAIRN_COPY_NOW) != 0)
            copy_now(c, (uint32_t)i);
    }
}

/* ---- beside what the program does ---- */

/* Returns the number in the list of the first tensor that ends behind a byte of the buffer. */
static uint32_t find_tensor(const struct cairn *c, const struct library_list *list, uint64_t byte)
{
    uint32_t low = 0, high = list->count;
    while (low < high) {
        const uint32_t middle = (low + high) / 2, tensor = list->tensors[middle];
        if (offset_of(c, tensor) + c->layout.places.places[tensor].bytes <= byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Copies what a stretch has of one source. */
static void copy_part(const struct stretch *it, uint64_t offset, const void *from, uint64_t bytes)
{
    uint64_t first = 0, size = 0;
    if (part_of(it, offset, bytes, &first, &size)) {
        const uint8_t *at = (const uint8_t *)from + (first - offset);
        memcpy(it->to + (first - it->first), at, (size_t)size);
    }
}

static void zero_part(const struct stretch *it, uint64_t offset, uint64_t end)
{
    uint64_t first = 0, size = 0;
    if (end > offset && part_of(it, offset, end - offset, &first, &size))
        memset(it->to + (first - it->first), 0, (size_t)size);
}

/* Copies the tensors of a stretch, and zeroes what lies between them. at: where they begin. */
static void copy_tensors(const struct cairn *c, uint32_t buffer, const struct stretch *it,
                         uint64_t at)
{
    const struct library_list *list = &c->layout.in[buffer];
    const uint64_t end = it->first + it->size;
    if (at < it->first)
        at = it->first;
    for (uint32_t i = find_tensor(c, list, at); i < list->count && at < end; i++) {
        const uint32_t tensor = list->tensors[i];
        const struct place *place = &c->layout.places.places[tensor];
        const uint64_t offset = offset_of(c, tensor);
        zero_part(it, at, offset);
        if ((c->layout.flags[tensor] & CAIRN_COPY_NOW) == 0 && place->bytes > 0)
            copy_part(it, offset, c->layout.data[tensor], place->bytes);
        at = offset + place->bytes;
    }
    zero_part(it, at, end);
}

static void copy_stretch(const struct cairn *c, uint32_t buffer, const struct stretch *it)
{
    const struct library_layout *layout = &c->layout;
    const uint64_t area = c->save.target.area_first;
    if (buffer == PLACE_RANKS) {
        copy_part(it, area + layout->places.entries, layout->entries,
                  layout->count * sizeof(*layout->entries));
        copy_tensors(c, buffer, it, area + layout->places.data);
    } else {
        copy_tensors(c, buffer, it, 0);
    }
}

static void fill_extent(struct cairn *c, const struct library_extent *extent,
                        void (*between)(struct cairn *c))
{
    uint8_t *memory = c->save.target.map->memory;
    const uint64_t piece = PIECE_ELEMENTS * ckpt_dtype_size(place_buffer_dtype(extent->buffer));
    uint8_t *hashes = memory + extent->hashes;
    for (uint64_t at = 0; at < extent->size; at += piece) {
        const uint64_t size = extent->size - at < piece ? extent->size - at : piece;
        const struct stretch it = { extent->first + at, size, memory + extent->data + at };
        copy_stretch(c, extent->buffer, &it);
        /* The piece is still in the cache. */
        const struct ckpt_hash hash = ckpt_hash_of(it.to, (size_t)size);
        memcpy(hashes, &hash, sizeof(hash));
        hashes += sizeof(hash);
        between(c);
    }
}

void library_fill(struct cairn *c, void (*between)(struct cairn *c))
{
    struct library_target *target = &c->save.target;
#ifdef MADV_POPULATE_WRITE
    if (!target->map->touched) /* once, in place of a fault for each page */
        (void)madvise(target->map->memory, target->map->bytes, MADV_POPULATE_WRITE);
#endif
    target->map->touched = true;
    for (uint32_t i = 0; i < target->count; i++)
        fill_extent(c, &target->extents[i], between);
}
