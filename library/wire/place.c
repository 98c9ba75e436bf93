#include "library/wire/place.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/hash.h"
#include "common/check.h"

/* Most bytes of a buffer or an area: what a checkpoint has room for of one rank. */
#define BYTES_MAX LIMIT_SHARE_BYTES

static const struct {
    const char *name;
    enum ckpt_dtype dtype;
} buffers[PLACE_BUFFERS] = {
    { "float32", CKPT_F32 }, { "bfloat16", CKPT_BF16 }, { "float16", CKPT_F16 },
    { "int32", CKPT_I32 },   { "int64", CKPT_I64 },     { "uint8", CKPT_U8 },
    { "bytes", CKPT_U8 },    { "ranks", CKPT_U8 },
};

const char *place_buffer_name(uint32_t buffer)
{
    CHECK(buffer < PLACE_BUFFERS);
    return buffers[buffer].name;
}

enum ckpt_dtype place_buffer_dtype(uint32_t buffer)
{
    CHECK(buffer < PLACE_BUFFERS);
    return buffers[buffer].dtype;
}

size_t cairn_dtype_size(int dtype)
{
    static const uint8_t size[] = {
        [CAIRN_F32] = 4, [CAIRN_BF16] = 2,        [CAIRN_F16] = 2,         [CAIRN_I32] = 4,
        [CAIRN_I64] = 8, [CAIRN_U8] = 1,          [CAIRN_F64] = 8,         [CAIRN_I8] = 1,
        [CAIRN_I16] = 2, [CAIRN_BOOL] = 1,        [CAIRN_F8_E4M3FN] = 1,   [CAIRN_F8_E5M2] = 1,
        [CAIRN_C64] = 8, [CAIRN_C128] = 16,       [CAIRN_U16] = 2,         [CAIRN_U32] = 4,
        [CAIRN_U64] = 8, [CAIRN_F8_E4M3FNUZ] = 1, [CAIRN_F8_E5M2FNUZ] = 1, [CAIRN_F8_E8M0FNU] = 1,
    };
    const bool known = dtype > 0 && (size_t)dtype < sizeof(size) / sizeof(size[0]);
    return known ? size[dtype] : 0;
}

/* ---- one entry ---- */

static bool is_name(const char name[CAIRN_NAME])
{
    const char *end = memchr(name, '\0', CAIRN_NAME);
    if (end == NULL || end == name)
        return false;
    for (const char *c = name; c < end; c++) {
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            return false;
    }
    for (; end < name + CAIRN_NAME; end++) { /* all of it is hashed */
        if (*end != '\0')
            return false;
    }
    return true;
}

/* Returns what is wrong with the numbers of an entry; NULL: nothing. out_bytes: of its box. */
static const char *find_mistake(const struct wire_entry *entry, uint64_t *out_bytes)
{
    uint64_t bytes = cairn_dtype_size((int)entry->dtype), whole = bytes;
    if (bytes == 0)
        return "its dtype is unknown";
    if (entry->kind < CAIRN_REPLICATED || entry->kind > CAIRN_PRIVATE)
        return "its kind is unknown";
    if (entry->ndim > CAIRN_DIMS || entry->zero != 0)
        return "it has too many dimensions";
    for (uint32_t d = 0; d < CAIRN_DIMS; d++) {
        const uint64_t shape = entry->shape[d], start = entry->start[d], extent = entry->extent[d];
        const bool is_whole = start == 0 && extent == shape;
        if (d >= entry->ndim && (shape != 0 || start != 0 || extent != 0))
            return "numbers stand behind its last dimension";
        if (d >= entry->ndim)
            continue;
        if (start > shape || extent > shape - start)
            return "its box is outside of it";
        if (entry->kind != CAIRN_SHARDED && !is_whole)
            return "only a sharded one can be a part";
        if (__builtin_mul_overflow(whole, shape > 0 ? shape : 1, &whole) ||
            whole > BYTES_MAX * 4096)
            return "it is too large";
        bytes *= extent; /* no more than the whole */
    }
    *out_bytes = bytes;
    return bytes > BYTES_MAX ? "it is too large" : NULL;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* ST_INVALID: two entries have the same name. */
static enum status check_names(const struct wire_entry *entries, uint64_t count,
                               struct reason *out_why)
{
    enum status st = ST_OK;
    const char **names = calloc(count > 0 ? count : 1, sizeof(*names));
    if (names == NULL)
        return ST_NO_MEMORY;
    for (uint64_t i = 0; i < count && st == ST_OK; i++) {
        names[i] = entries[i].name;
        if (!is_name(entries[i].name)) {
            reason_set(out_why, "tensor %llu has no proper name", (unsigned long long)i);
            st = ST_INVALID;
        }
    }
    if (st == ST_OK)
        qsort(names, count, sizeof(*names), compare_names);
    for (uint64_t i = 1; i < count && st == ST_OK; i++) {
        if (strcmp(names[i - 1], names[i]) == 0) {
            reason_set(out_why, "two tensors are named %s", names[i]);
            st = ST_INVALID;
        }
    }
    free(names);
    return st;
}

/* ---- places ---- */

static uint32_t buffer_of(const struct wire_entry *entry)
{
    if (entry->kind != CAIRN_REPLICATED)
        return PLACE_RANKS;
    return entry->dtype <= CAIRN_U8 ? entry->dtype - CAIRN_F32 : PLACE_BYTES;
}

static uint64_t round_up(uint64_t bytes, uint64_t to)
{
    return (bytes + to - 1) / to * to;
}

/* Sets the offsets of what an area begins with. */
static void place_tables(struct layout_places *out, uint64_t blob_bytes)
{
    out->entries = sizeof(struct place_area);
    out->blobs = out->entries + out->count * sizeof(struct wire_entry);
    out->blobs_end = out->blobs + PLACE_BLOBS_MAX * (sizeof(struct place_blob) + 8) + blob_bytes;
    out->data = round_up(out->blobs_end, PLACE_ALIGN);
}

static enum status place_all(const struct wire_entry *entries, struct layout_places *out,
                             struct reason *out_why)
{
    uint64_t *at = out->buffer_bytes;
    at[PLACE_RANKS] = out->data;
    for (uint64_t i = 0; i < out->count; i++) {
        struct place *place = &out->places[i];
        const char *mistake = find_mistake(&entries[i], &place->bytes);
        if (mistake != NULL) {
            reason_set(out_why, "tensor %s: %s", entries[i].name, mistake);
            return ST_INVALID;
        }
        place->buffer = buffer_of(&entries[i]);
        if (place->buffer == PLACE_RANKS)
            at[PLACE_RANKS] = round_up(at[PLACE_RANKS], PLACE_ALIGN);
        place->offset = at[place->buffer];
        at[place->buffer] += place->bytes;
        if (at[place->buffer] > BYTES_MAX) {
            reason_set(out_why, "all tensors together are too large");
            return ST_FULL;
        }
    }
    at[PLACE_RANKS] = round_up(at[PLACE_RANKS], ckpt_chunk_elements(CKPT_U8));
    return ST_OK;
}

enum status layout_places_make(const struct wire_entry *entries, uint64_t count,
                               uint64_t blob_bytes, struct layout_places *out,
                               struct reason *out_why)
{
    struct layout_places places = { .count = count };
    if (count > CAIRN_TENSORS_MAX || blob_bytes > BYTES_MAX) {
        reason_set(out_why, "%llu tensors, %llu bytes of blobs: too much",
                   (unsigned long long)count, (unsigned long long)blob_bytes);
        return ST_FULL;
    }
    enum status st = check_names(entries, count, out_why);
    if (st != ST_OK)
        return st;
    places.places = calloc(count > 0 ? count : 1, sizeof(*places.places));
    if (places.places == NULL)
        return ST_NO_MEMORY;
    place_tables(&places, blob_bytes);
    st = place_all(entries, &places, out_why);
    if (st == ST_OK) {
        *out = places;
    } else {
        layout_places_release(&places);
    }
    return st;
}

void layout_places_release(struct layout_places *places)
{
    free(places->places);
    places->places = NULL;
}

struct ckpt_hash layout_hash(const struct wire_entry *entries, uint64_t count)
{
    struct ckpt_hash hash = ckpt_hash_of("", 0);
    for (uint64_t i = 0; i < count; i++) {
        struct ckpt_hash both[2] = { hash, hash };
        if (entries[i].kind != CAIRN_REPLICATED)
            continue;
        both[1] = ckpt_hash_of(&entries[i], sizeof(entries[i]));
        hash = ckpt_hash_of(both, sizeof(both));
    }
    return hash;
}
