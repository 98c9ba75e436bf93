/* A box of a tensor, put together from all boxes that hold parts of it. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "library/stored/stored.h"
#include "library/stored/why.h"

#define REGIONS_MAX 65536u /* parts of a box that are still to be read */

/* Elements [start, end) in each dimension. */
struct region {
    uint64_t start[CAIRN_DIMS], end[CAIRN_DIMS];
};

struct regions {
    struct region *at; /* owned */
    uint32_t count, room;
};

static enum status add_region(struct regions *list, const struct region *region)
{
    if (list->count == list->room) {
        const uint32_t room = list->room > 0 ? 2 * list->room : 16;
        if (room > REGIONS_MAX)
            return ST_FULL;
        struct region *more = realloc(list->at, room * sizeof(*list->at));
        if (more == NULL)
            return ST_NO_MEMORY;
        list->at = more;
        list->room = room;
    }
    list->at[list->count++] = *region;
    return ST_OK;
}

/* false: they have nothing in common. */
static bool intersect(const struct region *a, const struct region *b, uint32_t ndim,
                      struct region *out)
{
    for (uint32_t d = 0; d < ndim; d++) {
        out->start[d] = a->start[d] > b->start[d] ? a->start[d] : b->start[d];
        out->end[d] = a->end[d] < b->end[d] ? a->end[d] : b->end[d];
        if (out->start[d] >= out->end[d])
            return false;
    }
    return true;
}

/* Adds what `all` has beside `part`, which lies in it. */
static enum status add_rest(struct regions *list, struct region all, const struct region *part,
                            uint32_t ndim)
{
    enum status st = ST_OK;
    for (uint32_t d = 0; d < ndim && st == ST_OK; d++) {
        struct region side = all;
        side.end[d] = part->start[d];
        if (side.start[d] < side.end[d])
            st = add_region(list, &side);
        side.start[d] = part->end[d];
        side.end[d] = all.end[d];
        if (st == ST_OK && side.start[d] < side.end[d])
            st = add_region(list, &side);
        all.start[d] = part->start[d];
        all.end[d] = part->end[d];
    }
    return st;
}

static struct region region_of(const struct wire_entry *entry)
{
    struct region region;
    for (uint32_t d = 0; d < CAIRN_DIMS; d++) {
        region.start[d] = entry->start[d];
        region.end[d] = entry->start[d] + entry->extent[d];
    }
    return region;
}

/* ---- bytes ---- */

/* Where a region's elements lie in a box, row-major. */
struct walk {
    uint64_t stride[CAIRN_DIMS]; /* bytes */
    uint64_t at;                 /* of the region's first element */
};

static struct walk walk_of(const struct region *box, const struct region *part, uint32_t ndim,
                           uint64_t width)
{
    struct walk walk = { .at = 0 };
    uint64_t stride = width;
    for (uint32_t d = ndim; d-- > 0;) {
        walk.stride[d] = stride;
        walk.at += (part->start[d] - box->start[d]) * stride;
        stride *= box->end[d] - box->start[d];
    }
    return walk;
}

/* Reads a part of a tensor's box to its place in out, which is the box `wanted`: one run of bytes
 * after the other. */
static enum status read_part(struct cairn_state *state, const struct stored_tensor *tensor,
                             const struct region *wanted, const struct region *part, uint8_t *out)
{
    const uint32_t ndim = tensor->entry.ndim;
    const struct region box = region_of(&tensor->entry);
    uint64_t run = cairn_dtype_size((int)tensor->entry.dtype);
    struct walk from = walk_of(&box, part, ndim, run), to = walk_of(wanted, part, ndim, run);
    uint32_t outer = ndim; /* dimensions that a run doesn't cover */
    for (bool whole = true; outer > 0 && whole; outer--) {
        const uint32_t d = outer - 1;
        const uint64_t extent = part->end[d] - part->start[d];
        run *= extent;
        whole = extent == box.end[d] - box.start[d] && extent == wanted->end[d] - wanted->start[d];
    }
    uint64_t index[CAIRN_DIMS] = { 0 };
    for (;;) {
        const enum status st =
            stored_read(state, tensor->buffer, tensor->offset + from.at, run, out + to.at);
        if (st != ST_OK)
            return st;
        uint32_t d = outer;
        while (d > 0) { /* the next index; behind the last one d is 0 */
            const uint64_t extent = part->end[d - 1] - part->start[d - 1];
            from.at += from.stride[d - 1];
            to.at += to.stride[d - 1];
            if (++index[d - 1] < extent)
                break;
            from.at -= from.stride[d - 1] * extent;
            to.at -= to.stride[d - 1] * extent;
            index[--d] = 0;
        }
        if (d == 0)
            return ST_OK;
    }
}

/* Reads what a tensor's box has of the regions; out_left gets those that remain. */
static enum status read_from(struct cairn_state *state, const struct stored_tensor *tensor,
                             const struct region *wanted, const struct regions *regions,
                             struct regions *out_left, uint8_t *out)
{
    const struct region box = region_of(&tensor->entry);
    const uint32_t ndim = tensor->entry.ndim;
    for (uint32_t i = 0; i < regions->count; i++) {
        struct region part;
        enum status st = ST_OK;
        if (intersect(&regions->at[i], &box, ndim, &part)) {
            st = read_part(state, tensor, wanted, &part, out);
            if (st == ST_OK)
                st = add_rest(out_left, regions->at[i], &part, ndim);
        } else {
            st = add_region(out_left, &regions->at[i]);
        }
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

/* Reads the wanted box from tensors [first, first + count) of by_name. */
static enum status read_box(struct cairn_state *state, uint64_t first, uint64_t count,
                            const struct region *wanted, uint8_t *out)
{
    struct regions now = { .count = 0 }, left = { .count = 0 };
    enum status st = add_region(&now, wanted);
    for (uint64_t i = first; i < first + count && st == ST_OK && now.count > 0; i++) {
        left.count = 0;
        st = read_from(state, &state->tensors[state->by_name[i]], wanted, &now, &left, out);
        const struct regions swapped = now;
        now = left;
        left = swapped;
    }
    if (st == ST_OK && now.count > 0) {
        reason_set(&state->why, "some of it was saved by nobody");
        st = ST_NOT_FOUND;
    }
    free(now.at);
    free(left.at);
    return st;
}

/* Narrows [*first, *first + *count) to the private one of that rank. */
static bool find_rank(const struct cairn_state *state, uint32_t rank, uint64_t *first,
                      uint64_t *count)
{
    for (uint64_t i = *first; i < *first + *count; i++) {
        if (state->tensors[state->by_name[i]].rank == rank) {
            *first = i;
            *count = 1;
            return true;
        }
    }
    return false;
}

/* The box that is asked for. false: it lies outside of the tensor. */
static bool make_wanted(const struct wire_entry *entry, const uint64_t *start,
                        const uint64_t *extent, struct region *out, bool *out_empty)
{
    *out_empty = false;
    memset(out, 0, sizeof(*out));
    for (uint32_t d = 0; d < entry->ndim; d++) {
        const uint64_t from = start != NULL ? start[d] : 0;
        const uint64_t size = extent != NULL ? extent[d] : entry->shape[d];
        if (from > entry->shape[d] || size > entry->shape[d] - from)
            return false;
        out->start[d] = from;
        out->end[d] = from + size;
        *out_empty = *out_empty || size == 0;
    }
    return true;
}

int cairn_state_read(struct cairn_state *state, const char *name, uint32_t rank,
                     const uint64_t *start, const uint64_t *extent, void *out)
{
    uint64_t first = 0, count = 0;
    struct region wanted;
    bool empty = false;
    if (!stored_state_find(state, name, &first, &count))
        return library_say(CAIRN_NOT_FOUND, "there is no tensor named %s", name);
    if (state->tensors[state->by_name[first]].entry.kind == CAIRN_PRIVATE &&
        !find_rank(state, rank, &first, &count))
        return library_say(CAIRN_NOT_FOUND, "rank %u saved no tensor named %s", rank, name);
    const struct wire_entry *entry = &state->tensors[state->by_name[first]].entry;
    if ((start == NULL) != (extent == NULL) || !make_wanted(entry, start, extent, &wanted, &empty))
        return library_say(CAIRN_INVALID, "tensor %s has no such box", name);
    if (empty)
        return CAIRN_OK;
    const enum status st = read_box(state, first, count, &wanted, out);
    if (st == ST_OK)
        return CAIRN_OK;
    return library_say(library_status(st), "tensor %s: %s", name,
                       state->why.text[0] != '\0' ? state->why.text : status_string(st));
}
