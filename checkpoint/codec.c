#define ZSTD_STATIC_LINKING_ONLY /* ZSTD_c_literalCompressionMode, ZSTD_findFrameCompressedSize */
#include "checkpoint/codec.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "checkpoint/planes.h"
#include "common/check.h"

#define SAMPLE           4096u /* words that the entropy is estimated from */
#define SAMPLE_RUN       64u   /* in runs of so many */
#define INCOMPRESSIBLE   7.85  /* bits a byte; the estimate for random bytes is 7.955 */
#define ZSTD_LEVEL_BYTES 3     /* for what isn't floats: job files, integers */

struct ckpt_codec {
    enum ckpt_level level;
    const struct plane_loops *loops;
    ZSTD_CCtx *planes; /* match finder off */
    ZSTD_CCtx *bytes;
    ZSTD_DCtx *decoder;
    float weight[SAMPLE + 1]; /* n * log2(n), from the first encoding on */
    uint8_t scratch[DISK_CHUNK_BYTES];
};

static bool set(ZSTD_CCtx *context, ZSTD_cParameter parameter, int value)
{
    return ZSTD_isError(ZSTD_CCtx_setParameter(context, parameter, value)) == 0;
}

static bool set_planes(ZSTD_CCtx *context)
{
    return set(context, ZSTD_c_strategy, ZSTD_fast) && set(context, ZSTD_c_targetLength, 131072) &&
           set(context, ZSTD_c_hashLog, 6) && set(context, ZSTD_c_chainLog, 6) &&
           set(context, ZSTD_c_minMatch, 7) && set(context, ZSTD_c_windowLog, 15) &&
           set(context, ZSTD_c_literalCompressionMode, ZSTD_ps_enable) &&
           set(context, ZSTD_c_checksumFlag, 0) && set(context, ZSTD_c_dictIDFlag, 0);
}

/* log2(n) to 16 binary places, n >= 1: by squaring, so that every machine decides alike. */
static float log2_of(unsigned n)
{
    int whole = 31 - __builtin_clz(n);
    double x = (double)n / (double)(1u << whole), result = whole;
    double bit = 0.5;
    for (int place = 0; place < 16; place++, bit /= 2) {
        x *= x;
        if (x >= 2) {
            x /= 2;
            result += bit;
        }
    }
    return (float)result;
}

enum status ckpt_codec_new(enum ckpt_level level, struct ckpt_codec **out)
{
    struct ckpt_codec *codec = calloc(1, sizeof(*codec));
    if (codec == NULL)
        return ST_NO_MEMORY;
    codec->level = level;
    codec->loops = ckpt_loops();
    codec->planes = ZSTD_createCCtx();
    codec->bytes = ZSTD_createCCtx();
    codec->decoder = ZSTD_createDCtx();
    if (codec->planes == NULL || codec->bytes == NULL || codec->decoder == NULL) {
        ckpt_codec_free(codec);
        return ST_NO_MEMORY;
    }
    bool planes_set = set_planes(codec->planes);
    bool bytes_set = set(codec->bytes, ZSTD_c_compressionLevel, ZSTD_LEVEL_BYTES) &&
                     set(codec->bytes, ZSTD_c_checksumFlag, 0);
    CHECK(planes_set); /* constants that this libzstd either knows or not */
    CHECK(bytes_set);
    *out = codec;
    return ST_OK;
}

void ckpt_codec_free(struct ckpt_codec *codec)
{
    if (codec == NULL)
        return;
    (void)ZSTD_freeCCtx(codec->planes);
    (void)ZSTD_freeCCtx(codec->bytes);
    (void)ZSTD_freeDCtx(codec->decoder);
    free(codec);
}

/* What a sample of the words says. */
struct probe {
    float entropy[4]; /* bits a byte, per plane */
    bool sign;        /* one is set */
};

static uint32_t word_at(const uint8_t *raw, size_t index, size_t width)
{
    uint32_t word = 0;
    memcpy(&word, raw + index * width, width);
    return width == 4   ? word << 1 | word >> 31
           : width == 2 ? (word << 1 | word >> 15) & 0xffff
                        : word;
}

static struct probe probe_words(const struct ckpt_codec *codec, const uint8_t *raw, size_t count,
                                size_t width)
{
    uint16_t seen[4][256] = { { 0 } };
    size_t runs = count < SAMPLE ? 1 : SAMPLE / SAMPLE_RUN;
    size_t run = count < SAMPLE ? count : SAMPLE_RUN;
    struct probe probe = { .sign = false };
    for (size_t r = 0; r < runs; r++) {
        size_t first = runs == 1 ? 0 : (count - run) / (runs - 1) * r;
        for (size_t i = first; i < first + run; i++) {
            uint32_t word = word_at(raw, i, width);
            probe.sign |= (word & 1) != 0;
            for (size_t p = 0; p < width; p++)
                seen[p][word >> (8 * p) & 255]++;
        }
    }
    size_t total = runs * run;
    for (size_t p = 0; p < width; p++) {
        float sum = 0;
        for (size_t i = 0; i < 256; i++)
            sum += codec->weight[seen[p][i]];
        probe.entropy[p] = (codec->weight[total] - sum) / (float)total;
    }
    return probe;
}

static void put_skippable(uint8_t *out, uint32_t size)
{
    const uint32_t head[2] = { DISK_FRAME_PLANE, size };
    memcpy(out, head, sizeof(head));
}

/* Appends plane p, raw or through zstd, at out + stored_size; data may be there already. */
static void put_plane(ZSTD_CCtx *context, const uint8_t *data, uint32_t size, bool raw,
                      struct disk_chunk *chunk, uint8_t *out)
{
    uint8_t p = chunk->plane_count++;
    uint8_t *at = out + chunk->stored_size;
    size_t done = 0;
    if (!raw) {
        done = ZSTD_compress2(context, at, size, data, size);
        raw = ZSTD_isError(done) != 0; /* isn't smaller */
    }
    if (raw) {
        if (data != at + DISK_FRAME_BYTES)
            memcpy(at + DISK_FRAME_BYTES, data, size);
        put_skippable(at, size);
        done = size + DISK_FRAME_BYTES;
    }
    chunk->plane_mode[p] = raw ? DISK_RAW : DISK_ZSTD;
    chunk->plane_size[p] = (uint32_t)done;
    chunk->stored_size += (uint32_t)done;
}

/* Plane 0 of words without a sign, 8 bytes in 7. */
static void put_packed(const struct plane_loops *loops, const uint8_t *data, size_t count,
                       struct disk_chunk *chunk, uint8_t *out)
{
    uint32_t size = (uint32_t)ckpt_packed7_size(count);
    loops->pack7(data, count, out + chunk->stored_size + DISK_FRAME_BYTES);
    put_plane(NULL, out + chunk->stored_size + DISK_FRAME_BYTES, size, true, chunk, out);
}

static bool any_sign(const uint8_t *raw, size_t count, size_t width)
{
    uint8_t all = 0;
    for (size_t i = 0; i < count; i++)
        all |= raw[i * width + width - 1];
    return all >> 7 != 0;
}

static void encode_words(struct ckpt_codec *codec, const uint8_t *raw, size_t count, size_t width,
                         struct disk_chunk *chunk, uint8_t *out)
{
    struct probe probe = probe_words(codec, raw, count, width);
    bool sign = probe.sign;
    if (!sign)
        sign = any_sign(raw, count, width);
    bool packed = !sign && probe.entropy[0] > INCOMPRESSIBLE - 1;
    chunk->codec = packed ? DISK_ROTATED_PACKED : DISK_ROTATED;

    /* Raw planes that no zstd frame comes before are split to where they are stored. */
    bool known = true;
    size_t at = packed ? DISK_FRAME_BYTES + ckpt_packed7_size(count) : 0;
    uint8_t *plane[4];
    bool incompressible[4];
    for (size_t p = 0; p < width; p++) {
        incompressible[p] = probe.entropy[p] > INCOMPRESSIBLE;
        plane[p] = codec->scratch + p * count;
        if (packed && p == 0)
            continue;
        known = known && incompressible[p];
        if (known)
            plane[p] = out + at + DISK_FRAME_BYTES;
        at += DISK_FRAME_BYTES + count;
    }
    if (width == 4) {
        (void)codec->loops->split4(raw, count, 1, plane);
    } else {
        (void)codec->loops->split2(raw, count, 1, plane);
    }
    for (size_t p = 0; p < width; p++) {
        if (packed && p == 0) {
            put_packed(codec->loops, plane[p], count, chunk, out);
        } else {
            put_plane(codec->planes, plane[p], (uint32_t)count, incompressible[p], chunk, out);
        }
    }
}

enum status ckpt_encode(struct ckpt_codec *codec, enum ckpt_dtype dtype, const void *raw,
                        const void *base, uint32_t size, struct disk_chunk *chunk, uint8_t *out)
{
    (void)base;
    size_t width = (size_t)ckpt_dtype_size(dtype);
    if (width == 0 || size == 0 || size > DISK_CHUNK_BYTES || size % width != 0)
        return ST_INVALID;
    chunk->dtype = (uint16_t)dtype;
    chunk->raw_size = size;
    chunk->stored_size = 0;
    chunk->plane_count = 0;
    memset(chunk->plane_size, 0, sizeof(chunk->plane_size));
    memset(chunk->plane_mode, 0, sizeof(chunk->plane_mode));
    for (unsigned n = 2; n <= SAMPLE && codec->weight[SAMPLE] == 0; n++)
        codec->weight[n] = (float)n * log2_of(n);
    if (dtype == CKPT_F32 || dtype == CKPT_BF16 || dtype == CKPT_F16) {
        encode_words(codec, raw, size / width, width, chunk, out);
        return ST_OK;
    }
    chunk->codec = DISK_BYTES;
    struct probe probe = probe_words(codec, raw, size, 1);
    put_plane(codec->bytes, raw, size, probe.entropy[0] > INCOMPRESSIBLE, chunk, out);
    return ST_OK;
}

/* Planes and their sizes as codec and dtype want them; fills length with each plane's bytes. */
static enum status check_planes(const struct disk_chunk *chunk, size_t length[4])
{
    uint64_t width = ckpt_dtype_size(chunk->dtype);
    if (width == 0)
        return ST_VERSION;
    if (chunk->raw_size == 0 || chunk->raw_size > DISK_CHUNK_BYTES || chunk->raw_size % width != 0)
        return ST_CORRUPT;
    bool floats = chunk->dtype == CKPT_F32 || chunk->dtype == CKPT_BF16 || chunk->dtype == CKPT_F16;
    if (chunk->codec < DISK_BYTES || chunk->codec > DISK_ROTATED_PACKED)
        return ST_VERSION;
    if (chunk->codec != DISK_BYTES && !floats)
        return ST_CORRUPT;
    uint64_t planes = chunk->codec == DISK_BYTES ? 1 : width;
    if (chunk->plane_count != planes)
        return ST_CORRUPT;
    uint64_t stored = 0;
    for (size_t p = 0; p < DISK_PLANES; p++) {
        stored += chunk->plane_size[p];
        if (p >= planes && (chunk->plane_size[p] != 0 || chunk->plane_mode[p] != 0))
            return ST_CORRUPT;
    }
    if (stored != chunk->stored_size)
        return ST_CORRUPT;
    for (size_t p = 0; p < planes; p++) {
        length[p] = chunk->raw_size / planes;
        if (chunk->codec == DISK_ROTATED_PACKED && p == 0)
            length[p] = ckpt_packed7_size(length[p]);
        if (chunk->plane_mode[p] > DISK_ZSTD)
            return ST_VERSION;
        if (chunk->plane_mode[p] == DISK_RAW &&
            chunk->plane_size[p] != length[p] + DISK_FRAME_BYTES)
            return ST_CORRUPT;
    }
    return ST_OK;
}

/* The bytes of one plane: where they lie if raw, else decoded into scratch. NULL: damaged. */
static const uint8_t *get_plane(struct ckpt_codec *codec, const uint8_t *frame, size_t frame_size,
                                enum disk_mode mode, uint8_t *scratch, size_t length)
{
    if (mode == DISK_RAW) {
        uint32_t head[2];
        memcpy(head, frame, sizeof(head));
        bool whole = head[0] == DISK_FRAME_PLANE && head[1] == length;
        return whole ? frame + DISK_FRAME_BYTES : NULL;
    }
    uint32_t magic = 0;
    if (frame_size < sizeof(magic))
        return NULL;
    memcpy(&magic, frame, sizeof(magic));
    if (magic != ZSTD_MAGICNUMBER || ZSTD_findFrameCompressedSize(frame, frame_size) != frame_size)
        return NULL;
    size_t done = ZSTD_decompressDCtx(codec->decoder, scratch, length, frame, frame_size);
    return done == length ? scratch : NULL;
}

/* A packed plane is stretched into the scratch of its place. */
static const uint8_t *unpack_plane(struct ckpt_codec *codec, const uint8_t *packed, size_t count)
{
    codec->loops->unpack7(packed, count, codec->scratch);
    return codec->scratch;
}

enum status ckpt_decode(struct ckpt_codec *codec, const struct disk_chunk *chunk,
                        const uint8_t *stored, const void *base, void *out)
{
    if (chunk->codec == DISK_DELTA)
        return base == NULL ? ST_INVALID : ST_VERSION;
    size_t length[4] = { 0 };
    enum status st = check_planes(chunk, length);
    if (st != ST_OK)
        return st;
    bool packed = chunk->codec == DISK_ROTATED_PACKED;
    size_t count = chunk->raw_size / chunk->plane_count;
    const uint8_t *plane[4] = { NULL };
    for (size_t p = 0; p < chunk->plane_count; p++) {
        if (packed && p == 0 && chunk->plane_mode[p] != DISK_RAW)
            return ST_VERSION;
        uint8_t *to = chunk->codec == DISK_BYTES ? out : codec->scratch + p * count;
        plane[p] =
            get_plane(codec, stored, chunk->plane_size[p], chunk->plane_mode[p], to, length[p]);
        if (plane[p] == NULL)
            return ST_CORRUPT;
        stored += chunk->plane_size[p];
    }
    if (packed)
        plane[0] = unpack_plane(codec, plane[0], count);
    if (chunk->codec == DISK_BYTES) {
        if (plane[0] != out)
            memcpy(out, plane[0], chunk->raw_size);
    } else if (chunk->plane_count == 4) {
        codec->loops->merge4(plane, count, 1, out);
    } else {
        codec->loops->merge2(plane, count, 1, out);
    }
    return ST_OK;
}
