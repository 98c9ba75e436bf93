/* The areas of all ranks: which tensors and blobs a state has, and where they lie. The bytes come
 * from a file, so that every number is checked. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/hash.h"
#include "common/cleanup.h"
#include "library/stored/stored.h"

/* ---- one area ---- */

static bool is_inside(uint64_t offset, uint64_t size, uint64_t first, uint64_t end)
{
    return offset >= first && offset <= end && size <= end - offset;
}

static bool is_sound_head(const struct place_area *head, uint64_t size, uint64_t area_bytes)
{
    return head->bytes == area_bytes && head->data <= size && head->data <= area_bytes &&
           head->data % PLACE_ALIGN == 0 && head->rank < head->ranks &&
           head->ranks <= LIMIT_RANKS && head->entry_count <= CAIRN_TENSORS_MAX &&
           head->blob_count <= PLACE_BLOBS_MAX && head->entries % 8 == 0 && head->blobs % 8 == 0 &&
           is_inside(head->entries, head->entry_count * sizeof(struct wire_entry), sizeof(*head),
                     head->data) &&
           is_inside(head->blobs, head->blob_count * sizeof(struct place_blob), sizeof(*head),
                     head->data);
}

static bool are_sound_blobs(const struct stored_area *area)
{
    for (uint32_t i = 0; i < area->head.blob_count; i++) {
        const struct place_blob *blob = &area->blobs[i];
        if (blob->name[0] == '\0' || memchr(blob->name, '\0', sizeof(blob->name)) == NULL ||
            !is_inside(blob->offset, blob->size, sizeof(area->head), area->head.data))
            return false;
        for (uint32_t other = 0; other < i; other++) {
            if (strcmp(blob->name, area->blobs[other].name) == 0)
                return false;
        }
    }
    return true;
}

/* Moves the places in the area to where its own data begins, and checks that they fit. */
static bool move_places(struct stored_area *area)
{
    struct layout_places *places = &area->places;
    for (uint64_t i = 0; i < places->count; i++) {
        struct place *place = &places->places[i];
        if (place->buffer != PLACE_RANKS)
            continue;
        place->offset = place->offset - places->data + area->head.data;
        if (!is_inside(place->offset, place->bytes, area->head.data, area->head.bytes))
            return false;
    }
    return true;
}

enum status stored_area_parse(const void *bytes, uint64_t size, uint64_t area_bytes,
                              struct stored_area *out, struct reason *out_why)
{
    struct stored_area area;
    memset(&area, 0, sizeof(area));
    const bool has_head = size >= sizeof(area.head);
    if (has_head)
        memcpy(&area.head, bytes, sizeof(area.head));
    if (!has_head || memcmp(area.head.magic, "CAIRNARE", sizeof(area.head.magic)) != 0) {
        reason_set(out_why, "a rank's area is none");
        return ST_CORRUPT;
    }
    if (area.head.version != 1) {
        reason_set(out_why, "a rank's area is of version %u, this library reads 1",
                   area.head.version);
        return ST_VERSION;
    }
    if (!is_sound_head(&area.head, size, area_bytes)) {
        reason_set(out_why, "a rank's area has numbers that can't be");
        return ST_CORRUPT;
    }
    const uint8_t *from = bytes;
    area.entries = (const struct wire_entry *)(const void *)(from + area.head.entries);
    area.blobs = (const struct place_blob *)(const void *)(from + area.head.blobs);
    struct reason why = { .text = "" };
    enum status st = are_sound_blobs(&area) ? ST_OK : ST_CORRUPT;
    if (st == ST_OK)
        st = layout_places_make(area.entries, area.head.entry_count, 0, &area.places, &why);
    if (st == ST_OK && !move_places(&area)) {
        layout_places_release(&area.places);
        st = ST_CORRUPT;
    }
    if (st == ST_NO_MEMORY)
        return st;
    if (st != ST_OK) {
        reason_set(out_why, "the area of rank %u is damaged%s%s", area.head.rank,
                   why.text[0] != '\0' ? ": " : "", why.text);
        return ST_CORRUPT;
    }
    *out = area;
    return ST_OK;
}

void stored_area_release(struct stored_area *area)
{
    layout_places_release(&area->places);
}

/* ---- all of them ---- */

/* What the ranks' areas have to agree on. */
struct loading {
    struct cairn_state *state;
    uint32_t ranks;
    uint32_t buffer[PLACE_BUFFERS]; /* of the state; CKPT_BUFFERS_MAX: it has none */
    struct ckpt_hash replicated;
};

static void add_tensor(struct loading *loading, const struct stored_area *area, uint64_t i,
                       uint64_t first)
{
    struct cairn_state *state = loading->state;
    const struct place *place = &area->places.places[i];
    struct stored_tensor *tensor = &state->tensors[state->info.tensors];
    const bool is_shared = place->buffer != PLACE_RANKS;
    if (is_shared && area->head.rank != 0)
        return; /* the same ones as rank 0's */
    tensor->entry = area->entries[i];
    tensor->rank = area->head.rank;
    tensor->buffer = loading->buffer[place->buffer];
    tensor->offset = place->offset + (is_shared ? 0 : first);
    tensor->bytes = place->bytes;
    state->info.tensors++;
}

static enum status add_area(struct loading *loading, const struct stored_area *area, uint64_t first)
{
    struct cairn_state *state = loading->state;
    const enum status st = stored_state_grow(state, area->head.entry_count, area->head.blob_count);
    if (st != ST_OK)
        return st;
    for (uint64_t i = 0; i < area->head.entry_count; i++)
        add_tensor(loading, area, i, first);
    for (uint32_t i = 0; i < area->head.blob_count; i++) {
        struct stored_blob *blob = &state->blobs[state->info.blobs++];
        memcpy(blob->name, area->blobs[i].name, sizeof(blob->name));
        blob->rank = area->head.rank;
        blob->offset = first + area->blobs[i].offset;
        blob->size = area->blobs[i].size;
    }
    return ST_OK;
}

/* Whether the buffers of replicated tensors are as large as an area says. */
static bool fits_buffers(const struct loading *loading, const struct layout_places *places)
{
    for (uint32_t b = 0; b < PLACE_RANKS; b++) {
        const uint32_t number = loading->buffer[b];
        const uint64_t bytes =
            number < CKPT_BUFFERS_MAX ? loading->state->buffers[number].bytes : 0;
        if (bytes != places->buffer_bytes[b])
            return false;
    }
    return true;
}

/* Compares an area with what the others said. */
static bool agrees(struct loading *loading, const struct stored_area *area, uint32_t rank)
{
    const struct ckpt_hash hash = layout_hash(area->entries, area->head.entry_count);
    if (area->head.rank != rank || area->head.ranks != loading->ranks)
        return false;
    if (rank == 0)
        loading->replicated = hash;
    return ckpt_hash_equal(&hash, &loading->replicated) && fits_buffers(loading, &area->places);
}

static enum status load_area(struct loading *loading, uint32_t rank, uint64_t first, uint64_t bytes)
{
    struct cairn_state *state = loading->state;
    struct place_area head;
    if (bytes < sizeof(head))
        return ST_CORRUPT;
    enum status st = stored_read(state, state->areas, first, sizeof(head), &head);
    if (st != ST_OK)
        return st;
    const uint64_t size =
        head.data >= sizeof(head) && head.data <= bytes ? head.data : sizeof(head);
    auto_free void *copy = malloc(size);
    if (copy == NULL)
        return ST_NO_MEMORY;
    st = stored_read(state, state->areas, first, size, copy);
    struct stored_area area;
    if (st == ST_OK)
        st = stored_area_parse(copy, size, bytes, &area, &state->why);
    if (st != ST_OK)
        return st;
    if (agrees(loading, &area, rank)) {
        st = add_area(loading, &area, first);
    } else {
        reason_set(&state->why, "the area of rank %u is of another state", rank);
        st = ST_CORRUPT;
    }
    stored_area_release(&area);
    return st;
}

static void find_buffers(struct loading *loading)
{
    for (uint32_t b = 0; b < PLACE_BUFFERS; b++) {
        loading->buffer[b] = CKPT_BUFFERS_MAX;
        for (uint32_t i = 0; i < loading->state->buffer_count; i++) {
            const struct stored_buffer *it = &loading->state->buffers[i];
            if (strcmp(it->name, place_buffer_name(b)) == 0 &&
                it->width == ckpt_dtype_size(place_buffer_dtype(b)))
                loading->buffer[b] = i;
        }
    }
}

enum status stored_areas_load(struct cairn_state *state, const void *sizes, size_t sizes_bytes)
{
    struct loading loading = { .state = state };
    struct place_areas head = { 0 };
    if (sizes_bytes >= sizeof(head))
        memcpy(&head, sizes, sizeof(head));
    find_buffers(&loading);
    state->areas = loading.buffer[PLACE_RANKS];
    loading.ranks = head.ranks;
    if (head.version > 1)
        return ST_VERSION;
    if (head.version != 1 || head.ranks == 0 || head.ranks > LIMIT_RANKS ||
        sizes_bytes != sizeof(head) + head.ranks * sizeof(uint64_t) ||
        state->areas == CKPT_BUFFERS_MAX) {
        reason_set(&state->why, "the table of the ranks' areas is damaged");
        return ST_CORRUPT;
    }
    state->info.ranks = head.ranks;
    uint64_t first = 0;
    const uint64_t end = state->buffers[state->areas].bytes;
    enum status st = ST_OK;
    for (uint32_t rank = 0; rank < head.ranks && st == ST_OK; rank++) {
        uint64_t bytes = 0;
        memcpy(&bytes, (const uint8_t *)sizes + sizeof(head) + rank * sizeof(bytes), sizeof(bytes));
        st = is_inside(first, bytes, 0, end) ? load_area(&loading, rank, first, bytes) : ST_CORRUPT;
        first += bytes;
    }
    if (st == ST_OK && first != end)
        st = ST_CORRUPT;
    if (st == ST_CORRUPT && state->why.text[0] == '\0')
        reason_set(&state->why, "the ranks' areas don't fill their buffer");
    return st;
}
