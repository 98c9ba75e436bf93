#include "checkpoint/codec/chunk.h"

#include <string.h>

#include "checkpoint/format/hash.h"

void ckpt_chunk_settle(struct disk_chunk *head, uint64_t offset)
{
    const uint64_t data = offset + sizeof(*head);
    head->gap_size = (uint32_t)((DISK_ALIGN - data % DISK_ALIGN) % DISK_ALIGN);
    head->frame_size = (uint32_t)sizeof(*head) - DISK_FRAME_BYTES + head->gap_size;
    head->check = ckpt_check_of(head, offsetof(struct disk_chunk, check));
}

enum status ckpt_chunk_make(struct ckpt_codec *codec, const struct ckpt_chunk_place *place,
                            const void *raw, const void *base, uint64_t offset, uint8_t *out,
                            uint32_t *out_size)
{
    struct disk_chunk head = {
        .frame_magic = DISK_FRAME_CHUNK,
        .buffer = place->buffer,
        .index = place->index,
    };
    memcpy(head.magic, DISK_MAGIC_CHUNK, sizeof(head.magic));
    ckpt_chunk_settle(&head, offset);
    uint8_t *stored = out + sizeof(head) + head.gap_size;
    enum status st = ckpt_encode(codec, place->dtype, raw, base, place->raw_size, &head, stored);
    if (st != ST_OK)
        return st;
    head.raw_hash = ckpt_check_of(raw, head.raw_size);
    head.stored_hash = ckpt_check_of(stored, head.stored_size);
    ckpt_chunk_settle(&head, offset);
    memcpy(out, &head, sizeof(head));
    memset(out + sizeof(head), 0, head.gap_size);
    *out_size = (uint32_t)sizeof(head) + head.gap_size + head.stored_size;
    return ST_OK;
}

/* NULL: the header is whole and is that of place; else what is wrong. */
static const char *check_head(const struct disk_chunk *head, const struct ckpt_chunk_place *place,
                              const uint8_t *bytes, uint32_t size)
{
    if (head->check != ckpt_check_of(head, offsetof(struct disk_chunk, check)))
        return "the header doesn't match its hash";
    if (head->frame_magic != DISK_FRAME_CHUNK ||
        memcmp(head->magic, DISK_MAGIC_CHUNK, sizeof(head->magic)) != 0)
        return "this is no chunk";
    uint64_t room = sizeof(*head) + (uint64_t)head->gap_size + head->stored_size;
    if (head->gap_size > DISK_GAP_MAX || room != size ||
        head->frame_size != sizeof(*head) - DISK_FRAME_BYTES + head->gap_size)
        return "the header's lengths contradict the table of chunks";
    if (head->buffer != place->buffer || head->index != place->index ||
        head->dtype != (uint16_t)place->dtype || head->raw_size != place->raw_size)
        return "the header is that of another chunk";
    for (uint32_t i = 0; i < head->gap_size; i++) {
        if (bytes[sizeof(*head) + i] != 0)
            return "the gap after the header isn't zero";
    }
    return NULL;
}

enum status ckpt_chunk_read(struct ckpt_codec *codec, const struct ckpt_chunk_place *place,
                            const uint8_t *bytes, uint32_t size, const void *base, void *raw,
                            const char **what)
{
    struct disk_chunk head;
    *what = "the chunk is too short";
    if (size < sizeof(head))
        return ST_CORRUPT;
    memcpy(&head, bytes, sizeof(head));
    *what = check_head(&head, place, bytes, size);
    if (*what != NULL)
        return ST_CORRUPT;
    const uint8_t *stored = bytes + sizeof(head) + head.gap_size;
    *what = "the stored bytes don't match their hash";
    if (head.stored_hash != ckpt_check_of(stored, head.stored_size))
        return ST_CORRUPT;
    *what = "the stored bytes can't be decoded";
    enum status st = ckpt_decode(codec, &head, stored, base, raw);
    if (st == ST_INVALID)
        *what = "it is a difference to a checkpoint that isn't at hand";
    if (st != ST_OK)
        return st;
    *what = "the decoded bytes don't match their hash";
    if (head.raw_hash != ckpt_check_of(raw, head.raw_size))
        return ST_CORRUPT;
    *what = NULL;
    return ST_OK;
}

bool ckpt_chunk_needs_base(const uint8_t *bytes, uint32_t size)
{
    struct disk_chunk head;
    if (size < sizeof(head))
        return false;
    memcpy(&head, bytes, sizeof(head));
    return head.codec == DISK_DELTA;
}
