/*
 * Any bytes as the only shard file of a checkpoint, which may be a difference to a good one:
 * refused by verify, and refused or read by a restore. Hashes would keep a fuzzer out of everything
 * behind them, so that each input is also taken with its hashes repaired: header, footer, chunk
 * headers and stored bytes, as far as the lengths allow.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/format/disk.h"
#include "checkpoint/format/hash.h"
#include "common/check.h"
#include "tests/crash/ckpt_sample.h"
#include "tests/crash/memory_io.h"
#include "tests/fuzz/fuzz.h"

#define DIR      SAMPLE_STORE "/" SAMPLE_JOB "/step-000000000040.g2"
#define FILE     DIR "/shard-00000-of-00001.cairn"
#define ELEMENTS 200 /* of the base's buffers; fuzz_ckpt_seeds.c has the same */

static void repair_chunks(uint8_t *bytes, size_t end)
{
    size_t at = DISK_HEADER_SIZE;
    struct disk_chunk chunk;
    while (at + sizeof(chunk) <= end) {
        memcpy(&chunk, bytes + at, sizeof(chunk));
        uint64_t stored = at + sizeof(chunk) + (uint64_t)chunk.gap_size;
        if (stored + chunk.stored_size > end)
            break;
        chunk.stored_hash = ckpt_check_of(bytes + stored, chunk.stored_size);
        chunk.check = ckpt_check_of(&chunk, offsetof(struct disk_chunk, check));
        memcpy(bytes + at, &chunk, sizeof(chunk));
        at = (size_t)stored + chunk.stored_size;
    }
}

static void repair(uint8_t *bytes, size_t size)
{
    struct disk_trailer trailer;
    if (size < DISK_HEADER_SIZE + sizeof(trailer))
        return;
    const uint32_t place[2] = { 0, 1 };
    memcpy(bytes + offsetof(struct disk_header, rank), place, sizeof(place));
    uint64_t check = ckpt_check_of(bytes, offsetof(struct disk_header, check));
    memcpy(bytes + offsetof(struct disk_header, check), &check, sizeof(check));
    memcpy(&trailer, bytes + size - sizeof(trailer), sizeof(trailer));
    if (trailer.footer_offset > size - sizeof(trailer))
        return;
    repair_chunks(bytes, (size_t)trailer.footer_offset);
    size_t at = (size_t)trailer.footer_offset;
    size_t hashed = size - sizeof(trailer) + offsetof(struct disk_trailer, hash) - at;
    struct ckpt_hash hash = ckpt_hash_of(bytes + at, hashed);
    memcpy(bytes + at + hashed, hash.byte, sizeof(hash.byte));
}

/* What the footer says of its raw bytes: the manifest says the same, so that this isn't the end. */
static uint64_t raw_size_of(const uint8_t *bytes, size_t size)
{
    struct disk_trailer trailer;
    struct disk_footer footer;
    if (size < DISK_HEADER_SIZE + sizeof(trailer) + sizeof(footer))
        return 0;
    memcpy(&trailer, bytes + size - sizeof(trailer), sizeof(trailer));
    if (trailer.footer_offset > size - sizeof(footer))
        return 0;
    memcpy(&footer, bytes + trailer.footer_offset, sizeof(footer));
    return footer.raw_size & INT64_MAX;
}

/* What the header says of its parent, likewise. */
static void parent_text(const uint8_t *bytes, size_t size, char *out, size_t capacity)
{
    struct disk_header head;
    out[0] = '\0';
    if (size < sizeof(head))
        return;
    memcpy(&head, bytes, sizeof(head));
    if (head.features == DISK_DIFFERS) {
        (void)snprintf(out, capacity,
                       "\"parent_step\":%" PRIu64 ",\"parent_generation\":%" PRIu64 ",",
                       head.parent_step, head.parent_generation);
    }
}

static void put_manifest(struct memory_io *memory, const uint8_t *bytes, size_t size)
{
    char text[1024], hex[33], parent[128];
    struct ckpt_hash hash = ckpt_hash_of(bytes, size);
    ckpt_hash_text(&hash, hex);
    parent_text(bytes, size, parent, sizeof(parent));
    int used =
        snprintf(text, sizeof(text),
                 "{\"cairn_checkpoint\":2,\"job\":\"j-0123456789\",\"step\":40,"
                 "\"generation\":2,%s\"created_at\":\"now\",\"digest\":\"%032d\","
                 "\"raw_bytes\":%" PRIu64 ",\"files\":[{\"name\":\"shard-00000-of-00001.cairn\","
                 "\"size\":%zu,\"xxh3_128\":\"%s\"}]",
                 parent, 0, raw_size_of(bytes, size), size, hex);
    hash = ckpt_hash_of(text, (size_t)used);
    ckpt_hash_text(&hash, hex);
    used += snprintf(text + used, sizeof(text) - (size_t)used, ",\"xxh3_128\":\"%s\"}\n", hex);
    memory_io_put(memory, DIR "/manifest.json", text, (size_t)used);
}

static void restore(const struct io *io)
{
    struct ckpt_reader *reader = NULL;
    if (ckpt_open(io, DIR, NULL, NULL, &reader) != ST_OK)
        return;
    const struct ckpt_buffer *buffers = NULL;
    uint32_t count = ckpt_reader_buffers(reader, &buffers);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t part = buffers[i].count < 1000 ? buffers[i].count : 1000;
        char *out = malloc(8000);
        CHECK(out != NULL);
        (void)!ckpt_read_buffer(reader, buffers[i].name, buffers[i].count - part, part, out, NULL);
        free(out);
    }
    CHECK(ckpt_read_state(reader, NULL, NULL) != ST_OK); /* the digest is of nothing */
    char *blob = NULL;
    size_t blob_size = 0;
    if (ckpt_read_blob(reader, "job.yaml", &blob, &blob_size) == ST_OK)
        free(blob);
    ckpt_close(reader);
}

/* A store with the base, made once: this is a process of its own. */
static struct memory_io *store_with_base(void)
{
    static struct memory_io *store;
    if (store == NULL) {
        struct sample sample;
        store = memory_io_new();
        sample_init(&sample, ELEMENTS, 20, 1);
        CHECK(sample_save(memory_io_table(store), &sample, 1, NULL, NULL) == ST_OK);
        CHECK(io_mkdir_all(memory_io_table(store), DIR) == ST_OK);
        sample_release(&sample);
    }
    return memory_io_clone(store);
}

static void feed(const uint8_t *data, size_t size, bool repaired)
{
    struct memory_io *memory = store_with_base();
    const struct io *io = memory_io_table(memory);
    memory_io_put(memory, FILE, data, size);
    uint8_t *bytes = memory_io_bytes(memory, FILE, &size);
    if (repaired)
        repair(bytes, size);
    put_manifest(memory, bytes, size);
    CHECK(ckpt_verify(io, DIR, NULL, NULL, NULL) != ST_OK);
    restore(io);
    CHECK(memory_io_open_files(memory) == 0);
    memory_io_free(memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    feed(data, size, false);
    feed(data, size, true);
    return 0;
}
