/*
 * Any bytes as the first ones of a rank's area, as they are and with a head that fits them:
 * refused, or all that it describes lies inside.
 */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "library/stored/stored.h"
#include "tests/fuzz/fuzz.h"

static void use(const struct stored_area *area, uint64_t size, uint64_t area_bytes)
{
    const uint64_t *bytes = area->places.buffer_bytes;
    CHECK(area->places.count == area->head.entry_count);
    for (uint64_t i = 0; i < area->head.entry_count; i++) {
        const struct place *place = &area->places.places[i];
        CHECK(memchr(area->entries[i].name, '\0', CAIRN_NAME) != NULL);
        CHECK(place->buffer < PLACE_BUFFERS);
        const uint64_t end = place->buffer == PLACE_RANKS ? area_bytes : bytes[place->buffer];
        CHECK(place->offset <= end && place->bytes <= end - place->offset);
    }
    for (uint32_t i = 0; i < area->head.blob_count; i++) {
        const struct place_blob *blob = &area->blobs[i];
        CHECK(memchr(blob->name, '\0', CAIRN_NAME) != NULL);
        CHECK(blob->offset <= size && blob->size <= size - blob->offset);
    }
}

static void parse(const uint8_t *memory, uint64_t size, uint64_t area_bytes)
{
    struct stored_area area;
    struct reason why = { .text = "" };
    const enum status st = stored_area_parse(memory, size, area_bytes, &area, &why);
    CHECK(st == ST_OK || ((st == ST_CORRUPT || st == ST_VERSION) && why.text[0] != '\0'));
    if (st == ST_OK) {
        use(&area, size, area_bytes);
        stored_area_release(&area);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *memory = aligned_alloc(PLACE_ALIGN, size / PLACE_ALIGN * PLACE_ALIGN + PLACE_ALIGN);
    struct place_area head;
    CHECK(memory != NULL);
    if (size > 0)
        memcpy(memory, data, size);
    parse(memory, size, size);
    if (size >= sizeof(head)) {
        memcpy(&head, memory, sizeof(head));
        memcpy(head.magic, "CAIRNARE", sizeof(head.magic));
        head.version = 1;
        head.ranks = head.ranks % LIMIT_RANKS + 1;
        head.rank %= head.ranks;
        head.entries = sizeof(head);
        head.entry_count %= (size - sizeof(head)) / sizeof(struct wire_entry) + 1;
        head.blobs = head.entries + head.entry_count * sizeof(struct wire_entry);
        head.blob_count %= (uint32_t)((size - head.blobs) / sizeof(struct place_blob) + 1);
        head.data = size / PLACE_ALIGN * PLACE_ALIGN;
        head.bytes = size + (1u << 20);
        memcpy(memory, &head, sizeof(head));
        parse(memory, size, head.bytes);
    }
    free(memory);
    return 0;
}
