/* A state in copies in memory: the copy files of all shares (session/copies/copy_file.h). */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "library/stored/stored.h"
#include "session/copies/copy_file.h"

/* One rank's copy. */
struct share {
    struct copy_view file; /* mapped; its data */
    void *head;            /* owned: the file's first bytes, which nobody changes any more */
    struct copy_view view; /* of head */
};

/* An extent of any of them. */
struct held {
    uint32_t buffer;
    uint32_t share, extent;
    uint64_t first, size; /* bytes */
};

struct copies {
    struct share *shares;
    uint32_t count;
    struct held *held; /* ascending */
    uint64_t held_count;
};

static void close_copies(void *self)
{
    struct copies *copies = self;
    for (uint32_t i = 0; i < copies->count; i++) {
        copy_view_unmap(&copies->shares[i].file);
        free(copies->shares[i].head);
    }
    free(copies->shares);
    free(copies->held);
    free(copies);
}

static uint64_t width_of(const struct copy_view *view, uint32_t buffer)
{
    return ckpt_dtype_size((enum ckpt_dtype)view->head->buffers[buffer].dtype);
}

/* Returns the extent that has a byte of a buffer; NULL: nobody has it. */
static const struct held *find_held(const struct copies *copies, uint32_t buffer, uint64_t byte)
{
    uint64_t low = 0, high = copies->held_count;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        const struct held *it = &copies->held[middle];
        if (it->buffer < buffer || (it->buffer == buffer && it->first + it->size <= byte)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const struct held *it = &copies->held[low];
    return low < copies->held_count && it->buffer == buffer && it->first <= byte ? it : NULL;
}

/* A stored_source's read. */
static enum status read_copies(void *self, uint32_t buffer, uint64_t first, uint64_t size,
                               void *out, struct reason *out_why)
{
    const struct copies *copies = self;
    uint8_t *to = out;
    while (size > 0) {
        const struct held *held = find_held(copies, buffer, first);
        if (held == NULL) {
            reason_set(out_why, "no rank's copy in memory has some of the state");
            return ST_CORRUPT;
        }
        const struct share *share = &copies->shares[held->share];
        const uint64_t at = first - held->first;
        const struct copy_extent *extent = &copy_view_extents(&share->view)[held->extent];
        /* A piece at a time: it is compared while it is in the cache. */
        const uint64_t piece = PIECE_ELEMENTS * width_of(&share->view, buffer);
        uint64_t part = held->size - at < size ? held->size - at : size;
        part = part < piece ? part : piece;
        memcpy(to, share->file.memory + extent->data + at, (size_t)part);
        if (copy_view_check_data(&share->view, held->extent, at, to, (size_t)part) != ST_OK) {
            reason_set(out_why, "the copy in memory of rank %u is damaged", held->share);
            return ST_CORRUPT;
        }
        first += part;
        size -= part;
        to += part;
    }
    return ST_OK;
}

/* ---- open ---- */

/* Maps a copy and takes its head, which is checked again: the file might get another copy. */
static enum status open_share(const char *path, struct share *out)
{
    enum status st = copy_view_map(path, &out->file);
    if (st != ST_OK)
        return st;
    const uint64_t size = out->file.seal->head_size;
    if (size > out->file.size)
        return ST_INCOMPLETE;
    out->head = aligned_alloc(COPY_ALIGN, (size + COPY_ALIGN - 1) / COPY_ALIGN * COPY_ALIGN);
    if (out->head == NULL)
        return ST_NO_MEMORY;
    memcpy(out->head, out->file.memory, (size_t)size);
    return copy_view_parse(out->head, (size_t)size, out->file.size, &out->view);
}

/* Whether the copy of a rank is of the same state as rank 0's. */
static bool belongs(const struct copies *copies, uint32_t rank)
{
    const struct copy_head *a = copies->shares[0].view.head;
    const struct copy_head *b = copies->shares[rank].view.head;
    return b->rank == rank && b->size == copies->count && b->step == a->step &&
           b->generation == a->generation && strcmp(a->job, b->job) == 0 &&
           a->buffer_count == b->buffer_count &&
           memcmp(a->buffers, b->buffers, sizeof(a->buffers)) == 0;
}

static int compare_held(const void *a, const void *b)
{
    const struct held *x = a, *y = b;
    if (x->buffer != y->buffer)
        return x->buffer < y->buffer ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

static enum status list_held(struct copies *copies)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < copies->count; i++)
        count += copies->shares[i].view.head->extent_count;
    copies->held = calloc(count + 1, sizeof(*copies->held));
    if (copies->held == NULL)
        return ST_NO_MEMORY;
    for (uint32_t i = 0; i < copies->count; i++) {
        const struct copy_view *view = &copies->shares[i].view;
        for (uint32_t e = 0; e < view->head->extent_count; e++) {
            const struct copy_extent *it = &copy_view_extents(view)[e];
            const uint64_t width = width_of(view, it->buffer);
            copies->held[copies->held_count++] =
                (struct held){ it->buffer, i, e, it->first * width, it->count * width };
        }
    }
    qsort(copies->held, copies->held_count, sizeof(*copies->held), compare_held);
    return ST_OK;
}

static enum status open_copies(struct copies *copies, const char *paths, struct reason *out_why)
{
    for (uint32_t i = 0; i < copies->count; i++) {
        const enum status st = open_share(paths, &copies->shares[i]);
        if (st != ST_OK) {
            reason_set(out_why, "the copy in memory of rank %u: %s", i,
                       st == ST_INCOMPLETE ? "it is not complete" : status_string(st));
            return st;
        }
        if (!belongs(copies, i)) {
            reason_set(out_why, "the copy in memory of rank %u is of another state", i);
            return ST_CORRUPT;
        }
        paths += strlen(paths) + 1;
    }
    return list_held(copies);
}

static void describe(struct cairn_state *state, const struct copy_view *view)
{
    const struct copy_head *head = view->head;
    memcpy(state->info.job, head->job, strnlen(head->job, sizeof(state->info.job) - 1));
    state->info.step = head->step;
    state->buffer_count = head->buffer_count;
    for (uint32_t i = 0; i < head->buffer_count; i++) {
        struct stored_buffer *it = &state->buffers[i];
        memcpy(it->name, head->buffers[i].name, sizeof(it->name));
        it->width = width_of(view, i);
        it->bytes = head->buffers[i].elements * it->width;
        it->block = PIECE_ELEMENTS * it->width;
    }
}

enum status stored_open_memory(const char *paths, uint32_t count, struct cairn_state **out,
                               struct reason *out_why)
{
    struct cairn_state *state = NULL;
    if (count == 0 || count > LIMIT_RANKS)
        return ST_INVALID;
    enum status st = stored_state_new(&state);
    if (st != ST_OK)
        return st;
    struct copies *copies = calloc(1, sizeof(*copies));
    state->source = (struct stored_source){ copies, read_copies, close_copies };
    if (copies != NULL)
        copies->shares = calloc(count, sizeof(*copies->shares));
    if (copies == NULL || copies->shares == NULL) {
        stored_state_free(state);
        return ST_NO_MEMORY;
    }
    copies->count = count;
    st = open_copies(copies, paths, out_why);
    if (st == ST_OK) {
        size_t size = 0;
        const struct copy_view *first = &copies->shares[0].view;
        const void *sizes = copy_view_blob(first, PLACE_AREAS, &size);
        describe(state, first);
        st = stored_areas_load(state, sizes, sizes != NULL ? size : 0);
        *out_why = state->why;
    }
    if (st == ST_OK)
        st = stored_state_sort(state, out_why);
    if (st == ST_OK) {
        *out = state;
    } else {
        stored_state_free(state);
    }
    return st;
}
