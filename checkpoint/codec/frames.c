#define ZSTD_STATIC_LINKING_ONLY /* ZSTD_c_literalCompressionMode, ZSTD_findFrameCompressedSize */
#include "checkpoint/codec/frames.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "checkpoint/codec/huffman.h"
#include "checkpoint/codec/planes_choose.h"
#include "common/check.h"

/*
 * A plane of nibbles is a sequence of blocks, each of NIBBLE_BLOCK bytes of the plane (the last may
 * have fewer):
 *
 *     offset    what
 *     0         the code's top
 *     1         zero
 *     2         number of escapes, 16 bits
 *     4         codes, then escapes: struct plane_loops
 */
#define NIBBLE_BLOCK 32768u
#define NIBBLE_HEAD  4u
#define NIBBLE_ROOM  (NIBBLE_HEAD + NIBBLE_BLOCK / 2 + NIBBLE_BLOCK + CKPT_NIBBLE_SLACK)

struct frames {
    const struct plane_loops *loops;
    struct huffman *huffman;
    ZSTD_CCtx *entropy, *sparse, *bytes;
    ZSTD_DCtx *decoder;
    uint8_t block[NIBBLE_ROOM];
};

struct setting {
    ZSTD_cParameter parameter;
    int value;
};

static ZSTD_CCtx *new_coder(const struct setting *settings, size_t count)
{
    ZSTD_CCtx *coder = ZSTD_createCCtx();
    if (coder == NULL)
        return NULL;
    for (size_t i = 0; i < count; i++) { /* constants that this libzstd either knows or not */
        size_t done = ZSTD_CCtx_setParameter(coder, settings[i].parameter, settings[i].value);
        CHECK(ZSTD_isError(done) == 0);
    }
    return coder;
}

enum status frames_new(struct frames **out)
{
    static const struct setting entropy[] = {
        { ZSTD_c_strategy, ZSTD_fast },
        { ZSTD_c_targetLength, 131072 }, /* the match finder's step: past all of a block */
        { ZSTD_c_hashLog, 6 },
        { ZSTD_c_chainLog, 6 },
        { ZSTD_c_minMatch, 7 },
        { ZSTD_c_windowLog, 15 },
        { ZSTD_c_literalCompressionMode, ZSTD_ps_enable },
        { ZSTD_c_checksumFlag, 0 },
        { ZSTD_c_dictIDFlag, 0 },
    };
    static const struct setting sparse[] = {
        { ZSTD_c_compressionLevel, 1 },
        { ZSTD_c_windowLog, 17 },
        { ZSTD_c_checksumFlag, 0 },
    };
    static const struct setting bytes[] = {
        { ZSTD_c_compressionLevel, 3 },
        { ZSTD_c_checksumFlag, 0 },
    };
    struct frames *frames = calloc(1, sizeof(*frames));
    if (frames == NULL)
        return ST_NO_MEMORY;
    frames->loops = ckpt_loops();
    frames->huffman = huffman_new();
    frames->entropy = new_coder(entropy, sizeof(entropy) / sizeof(entropy[0]));
    frames->sparse = new_coder(sparse, sizeof(sparse) / sizeof(sparse[0]));
    frames->bytes = new_coder(bytes, sizeof(bytes) / sizeof(bytes[0]));
    frames->decoder = ZSTD_createDCtx();
    if (frames->huffman == NULL || frames->entropy == NULL || frames->sparse == NULL ||
        frames->bytes == NULL || frames->decoder == NULL) {
        frames_free(frames);
        return ST_NO_MEMORY;
    }
    *out = frames;
    return ST_OK;
}

void frames_free(struct frames *frames)
{
    if (frames == NULL)
        return;
    huffman_free(frames->huffman);
    (void)ZSTD_freeCCtx(frames->entropy);
    (void)ZSTD_freeCCtx(frames->sparse);
    (void)ZSTD_freeCCtx(frames->bytes);
    (void)ZSTD_freeDCtx(frames->decoder);
    free(frames);
}

/* The top of the 15 values in a row that have most of a sample of the bytes. */
static uint8_t choose_top(const uint8_t *bytes, size_t count)
{
    uint16_t seen[256] = { 0 };
    size_t stride = count >= 4096 ? count / 16 : 256;
    for (size_t at = 0; at < count; at += stride) {
        size_t end = count - at < 64 ? count : at + 64;
        for (size_t i = at; i < end; i++)
            seen[bytes[i]]++;
    }
    unsigned within = 0, most = 0, top = 14;
    for (unsigned i = 0; i < 256; i++) {
        within += seen[i];
        if (i >= 15)
            within -= seen[i - 15];
        if (i >= 14 && within > most) {
            most = within;
            top = i;
        }
    }
    return (uint8_t)top;
}

/* Returns the size at out, 0: it has more than room bytes. */
static size_t put_nibbles(struct frames *frames, const uint8_t *data, size_t size, uint8_t *out,
                          size_t room)
{
    size_t done = 0;
    for (size_t at = 0; at < size; at += NIBBLE_BLOCK) {
        size_t count = size - at < NIBBLE_BLOCK ? size - at : NIBBLE_BLOCK;
        size_t codes = ckpt_nibble_size(count);
        bool fits = room - done >= NIBBLE_ROOM;
        uint8_t *block = fits ? out + done : frames->block;
        uint8_t top = choose_top(data + at, count);
        size_t escapes = frames->loops->nibbles(data + at, count, top, block + NIBBLE_HEAD,
                                                block + NIBBLE_HEAD + codes);
        const uint8_t head[NIBBLE_HEAD] = { top, 0, (uint8_t)escapes, (uint8_t)(escapes >> 8) };
        memcpy(block, head, sizeof(head));
        size_t block_size = NIBBLE_HEAD + codes + escapes;
        if (block_size > room - done)
            return 0;
        if (!fits)
            memcpy(out + done, block, block_size);
        done += block_size;
    }
    return done;
}

static bool get_nibbles(const struct frames *frames, const uint8_t *in, size_t in_size,
                        uint8_t *bytes, size_t count)
{
    for (size_t at = 0; at < count; at += NIBBLE_BLOCK) {
        size_t size = count - at < NIBBLE_BLOCK ? count - at : NIBBLE_BLOCK;
        size_t codes = ckpt_nibble_size(size);
        if (in_size < NIBBLE_HEAD + codes || in[1] != 0)
            return false;
        size_t escapes = in[2] | (size_t)in[3] << 8;
        const uint8_t *code = in + NIBBLE_HEAD;
        if (escapes > in_size - NIBBLE_HEAD - codes ||
            !frames->loops->unnibbles(code, code + codes, escapes, size, in[0], bytes + at))
            return false;
        in += NIBBLE_HEAD + codes + escapes;
        in_size -= NIBBLE_HEAD + codes + escapes;
    }
    return in_size == 0;
}

static void put_skippable(uint8_t *out, uint32_t size)
{
    const uint32_t head[2] = { DISK_FRAME_PLANE, size };
    memcpy(out, head, sizeof(head));
}

/* NULL: zstd isn't asked for such a plane. */
static ZSTD_CCtx *zstd_of(const struct frames *frames, enum coder coder)
{
    switch (coder) {
    case CODER_ENTROPY:
        return frames->entropy;
    case CODER_SPARSE:
        return frames->sparse;
    case CODER_BYTES:
        return frames->bytes;
    case CODER_RAW:
    case CODER_NIBBLES:
        break;
    }
    return NULL;
}

void frames_put(struct frames *frames, enum coder coder, const uint8_t *data, uint32_t size,
                struct disk_chunk *chunk, uint8_t *out)
{
    CHECK(chunk->plane_count < DISK_PLANES);
    uint8_t p = chunk->plane_count++;
    uint8_t *at = out + chunk->stored_size;
    size_t done = 0;
    ZSTD_CCtx *zstd = zstd_of(frames, coder);
    enum disk_mode mode = coder == CODER_NIBBLES ? DISK_NIBBLES : DISK_ZSTD;
    if (coder == CODER_NIBBLES) {
        done = put_nibbles(frames, data, size, at + DISK_FRAME_BYTES, size);
        put_skippable(at, (uint32_t)done);
        done += done > 0 ? DISK_FRAME_BYTES : 0;
    } else if (coder == CODER_ENTROPY) {
        done = huffman_frame(frames->huffman, data, size, at, size);
    }
    if (done == 0 && zstd != NULL) {
        done = ZSTD_compress2(zstd, at, size, data, size);
        done = ZSTD_isError(done) ? 0 : done; /* isn't smaller */
    }
    if (done == 0) {
        if (data != at + DISK_FRAME_BYTES)
            memcpy(at + DISK_FRAME_BYTES, data, size);
        put_skippable(at, size);
        done = size + DISK_FRAME_BYTES;
        mode = DISK_RAW;
    }
    chunk->plane_mode[p] = (uint8_t)mode;
    chunk->plane_size[p] = (uint32_t)done;
    chunk->stored_size += (uint32_t)done;
}

/* The content of a skippable frame of ours that fills frame_size. */
static const uint8_t *content_of(const uint8_t *frame, size_t frame_size)
{
    uint32_t head[2];
    if (frame_size < sizeof(head))
        return NULL;
    memcpy(head, frame, sizeof(head));
    bool whole = head[0] == DISK_FRAME_PLANE && head[1] == frame_size - DISK_FRAME_BYTES;
    return whole ? frame + DISK_FRAME_BYTES : NULL;
}

static bool is_zstd(const uint8_t *frame, size_t frame_size)
{
    uint32_t magic = 0;
    if (frame_size < sizeof(magic))
        return false;
    memcpy(&magic, frame, sizeof(magic));
    return magic == ZSTD_MAGICNUMBER &&
           ZSTD_findFrameCompressedSize(frame, frame_size) == frame_size;
}

const uint8_t *frames_get(struct frames *frames, const uint8_t *frame, size_t frame_size,
                          enum disk_mode mode, uint8_t *scratch, size_t length)
{
    if (mode == DISK_ZSTD) {
        if (!is_zstd(frame, frame_size))
            return NULL;
        size_t done = ZSTD_decompressDCtx(frames->decoder, scratch, length, frame, frame_size);
        return done == length ? scratch : NULL;
    }
    const uint8_t *content = content_of(frame, frame_size);
    if (content == NULL)
        return NULL;
    if (mode == DISK_RAW)
        return frame_size - DISK_FRAME_BYTES == length ? content : NULL;
    bool good = get_nibbles(frames, content, frame_size - DISK_FRAME_BYTES, scratch, length);
    return good ? scratch : NULL;
}

size_t frames_length(const uint8_t *frame, size_t frame_size, enum disk_mode mode)
{
    if (mode == DISK_RAW)
        return content_of(frame, frame_size) == NULL ? 0 : frame_size - DISK_FRAME_BYTES;
    if (mode != DISK_ZSTD || !is_zstd(frame, frame_size))
        return 0;
    unsigned long long length = ZSTD_getFrameContentSize(frame, frame_size);
    return length > DISK_CHUNK_BYTES ? 0 : (size_t)length; /* unknown and error are huge */
}
