/*
 * Any bytes as a copy in memory, as they are and under a seal that is right: refused, or all that
 * it describes lies inside.
 */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/hash.h"
#include "common/check.h"
#include "session/copies/copy_file.h"
#include "tests/fuzz/fuzz.h"

static void read_all(const struct copy_view *view)
{
    struct ckpt_scalars scalars;
    copy_view_scalars(view, &scalars);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < scalars.skip_count; i++)
        sum += scalars.skip[i];
    for (uint32_t i = 0; i < view->head->blob_count; i++) {
        size_t size = 0;
        const uint8_t *blob = copy_view_blob(view, view->head->blobs[i].name, &size);
        CHECK(blob != NULL);
        for (size_t b = 0; b < size; b++)
            sum += blob[b];
    }
    for (uint32_t i = 0; i < view->head->extent_count; i++) {
        size_t size = 0;
        const void *data = copy_view_data(view, i, &size);
        const enum status st = copy_view_check_data(view, i, 0, data, size);
        CHECK(st == ST_OK || st == ST_CORRUPT);
    }
    volatile uint64_t kept = sum; /* it was read */
    (void)kept;
}

static void parse(const void *memory, size_t size)
{
    struct copy_view view;
    const enum status st = copy_view_parse(memory, size, size, &view);
    CHECK(st == ST_OK || st == ST_INCOMPLETE || st == ST_CORRUPT || st == ST_VERSION);
    if (st == ST_OK)
        read_all(&view);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *memory = aligned_alloc(COPY_ALIGN, size / COPY_ALIGN * COPY_ALIGN + COPY_ALIGN);
    CHECK(memory != NULL);
    if (size > 0)
        memcpy(memory, data, size);
    parse(memory, size);
    if (size >= COPY_BESIDE) {
        struct copy_seal *seal = (struct copy_seal *)(void *)memory;
        memcpy(seal->magic, "CAIRNMEM", sizeof(seal->magic));
        seal->version = COPY_VERSION;
        seal->features = 0;
        seal->file_size = size;
        if (seal->head_size < COPY_BESIDE || seal->head_size > size)
            seal->head_size = size;
        seal->head = ckpt_hash_of(memory + sizeof(*seal), seal->head_size - sizeof(*seal));
        seal->check = ckpt_check_of(seal, offsetof(struct copy_seal, check));
        parse(memory, size);
    }
    free(memory);
    return 0;
}
