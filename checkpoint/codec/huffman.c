#include "checkpoint/codec/huffman.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint/codec/huffman_code.h"
#include "checkpoint/codec/planes_choose.h"

#define COUNT_MIN  1024u /* of a frame; a shorter one is no work for anybody */
#define BLOCK_MIN  256u  /* of a block that is coded */
#define FRAME_HEAD 9u    /* magic, descriptor, size of the content */
#define BLOCK_HEAD 3u
#define CODED_HEAD 5u /* of literals in four streams, 18 bits for each length */
#define JUMPS      6u /* lengths of the first three streams */

enum block_type { BLOCK_RAW = 0, BLOCK_SAME = 1, BLOCK_CODED = 2 };

struct huffman {
    const struct plane_loops *loops;
    uint8_t streams[4 * HUFFMAN_STREAM_ROOM];
};

struct huffman *huffman_new(void)
{
    struct huffman *huffman = calloc(1, sizeof(*huffman));
    if (huffman != NULL)
        huffman->loops = ckpt_loops();
    return huffman;
}

void huffman_free(struct huffman *huffman)
{
    free(huffman);
}

static void put_block_head(uint8_t *out, bool last, enum block_type type, size_t size)
{
    uint32_t head = (uint32_t)last | (uint32_t)type << 1 | (uint32_t)size << 3;
    memcpy(out, &head, BLOCK_HEAD);
}

static size_t put_raw_block(const uint8_t *bytes, size_t count, bool last, uint8_t *out,
                            size_t room)
{
    if (BLOCK_HEAD + count > room)
        return 0;
    put_block_head(out, last, BLOCK_RAW, count);
    memcpy(out + BLOCK_HEAD, bytes, count);
    return BLOCK_HEAD + count;
}

/* Literals, and no sequences. */
static size_t put_coded_block(struct huffman *huffman, const uint8_t *tree, size_t tree_size,
                              const size_t size[4], size_t count, bool last, uint8_t *out,
                              size_t room)
{
    size_t coded = tree_size + JUMPS + size[0] + size[1] + size[2] + size[3];
    size_t block = CODED_HEAD + coded + 1;
    if (block >= count || BLOCK_HEAD + block > room)
        return 0;
    put_block_head(out, last, BLOCK_CODED, block);
    out += BLOCK_HEAD;
    uint64_t head = 2 | 3u << 2 | (uint64_t)count << 4 | (uint64_t)coded << 22;
    memcpy(out, &head, CODED_HEAD);
    memcpy(out + CODED_HEAD, tree, tree_size);
    out += CODED_HEAD + tree_size;
    for (size_t k = 0; k < 3; k++) {
        out[2 * k] = (uint8_t)size[k];
        out[2 * k + 1] = (uint8_t)(size[k] >> 8);
    }
    out += JUMPS;
    for (size_t k = 0; k < 4; k++) {
        memcpy(out, huffman->streams + k * HUFFMAN_STREAM_ROOM, size[k]);
        out += size[k];
    }
    *out = 0;
    return BLOCK_HEAD + block;
}

static size_t put_block(struct huffman *huffman, const uint8_t *bytes, size_t count, bool last,
                        uint8_t *out, size_t room)
{
    if (count < BLOCK_MIN)
        return put_raw_block(bytes, count, last, out, room);
    uint32_t seen[256];
    huffman->loops->count(bytes, count, seen);
    if (seen[bytes[0]] == count) {
        if (room < BLOCK_HEAD + 1)
            return 0;
        put_block_head(out, last, BLOCK_SAME, count);
        out[BLOCK_HEAD] = bytes[0];
        return BLOCK_HEAD + 1;
    }
    struct huffman_code code;
    uint8_t tree[HUFFMAN_TREE_MAX];
    size_t tree_size = huffman_code(seen, &code, tree), size[4];
    if (tree_size == 0)
        return 0;
    huffman->loops->put_codes(&code, bytes, count, huffman->streams, size);
    size_t done = put_coded_block(huffman, tree, tree_size, size, count, last, out, room);
    return done > 0 ? done : put_raw_block(bytes, count, last, out, room);
}

size_t huffman_frame(struct huffman *huffman, const uint8_t *bytes, size_t count, uint8_t *out,
                     size_t room)
{
    if (count < COUNT_MIN || count > UINT32_MAX || room < FRAME_HEAD)
        return 0;
    /* The frame's head: one segment, four bytes of content size; no checksum, no dictionary. */
    const uint8_t head[5] = { 0x28, 0xb5, 0x2f, 0xfd, 0xa0 };
    const uint32_t size = (uint32_t)count;
    memcpy(out, head, sizeof(head));
    memcpy(out + sizeof(head), &size, sizeof(size));
    size_t done = FRAME_HEAD;
    for (size_t at = 0; at < count; at += HUFFMAN_BLOCK) {
        size_t part = count - at < HUFFMAN_BLOCK ? count - at : HUFFMAN_BLOCK;
        size_t block =
            put_block(huffman, bytes + at, part, at + part == count, out + done, room - done);
        if (block == 0)
            return 0;
        done += block;
    }
    return done;
}
