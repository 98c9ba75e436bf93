#include "checkpoint/codec/codec.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint/codec/frames.h"
#include "checkpoint/codec/planes_choose.h"
#include "checkpoint/codec/probe.h"
#include "checkpoint/codec/table.h"
#include "common/fault.h"

#define BLOCK       4096u  /* words that are transformed at a time, in the first-level cache */
#define SAMPLE_FAST 1024u  /* words of a sample at level fast */
#define SPARSE      1.2f   /* bits a byte below which matches pay */
#define TABLE_GAIN  1.01f  /* that rows and columns must bring, at least */
#define TABLE_WORDS 16384u /* a chunk with less isn't worth its terms */
#define TURN        1u     /* of plain words: the sign to the lowest bit */
#define TURN_TABLE  4u     /* of predicted ones: what is far from 0 to the lowest bits */
#define TERMS_PLANE 4u     /* of a table: behind the planes of the words */

struct ckpt_codec {
    enum ckpt_level level;
    const struct plane_loops *loops;
    struct frames *frames;
    struct table_maker *maker;    /* of the highest level, from its first use on */
    struct probe_weights weights; /* from the first encoding on: readers need none */
    uint32_t sample[PROBE_WORDS_MAX], sample_other[PROBE_WORDS_MAX];
    uint32_t block[BLOCK];
    uint8_t terms[TABLE_TERMS_MAX];
    struct table_terms table; /* of the chunk at work */
    uint8_t scratch[DISK_CHUNK_BYTES];
    uint8_t again[DISK_CHUNK_BYTES]; /* a chunk that is decoded to be compared */
    uint64_t encoded, mistakes;      /* chunks */
};

enum status ckpt_codec_new(enum ckpt_level level, struct ckpt_codec **out)
{
    struct ckpt_codec *codec = calloc(1, sizeof(*codec));
    if (codec == NULL)
        return ST_NO_MEMORY;
    codec->level = level;
    codec->loops = ckpt_loops();
    enum status st = frames_new(&codec->frames);
    if (st == ST_OK && level == CKPT_MAX) {
        codec->maker = table_maker_new();
        st = codec->maker == NULL ? ST_NO_MEMORY : ST_OK;
    }
    if (st != ST_OK) {
        ckpt_codec_free(codec);
        return st;
    }
    *out = codec;
    return ST_OK;
}

void ckpt_codec_free(struct ckpt_codec *codec)
{
    if (codec == NULL)
        return;
    frames_free(codec->frames);
    table_maker_free(codec->maker);
    free(codec);
}

/* The change from a chunk's words to the words that are split. Encoder and decoder share it. */
struct change {
    enum disk_codec codec;
    size_t width, count;
    unsigned turn;
    const uint8_t *base;             /* of DISK_DELTA */
    const struct table_terms *table; /* of DISK_TABLE */
};

/* Words [first, first + count) after the change: in out, or where they lie if nothing changes. */
static const uint8_t *change_words(const struct ckpt_codec *codec, const struct change *change,
                                   const uint8_t *raw, size_t first, size_t count, void *out)
{
    const uint8_t *words = raw + first * change->width;
    if (change->codec == DISK_DELTA) {
        const uint8_t *base = change->base + first * change->width;
        if (change->width == 4) {
            codec->loops->differ4(words, base, count, out);
        } else {
            codec->loops->differ2(words, base, count, out);
        }
        return out;
    }
    if (change->codec != DISK_TABLE)
        return words;
    table_predict(change->table, codec->loops, words, first, count, out);
    return out;
}

/* ---- encoding ---- */

static uint32_t word_at(const uint8_t *words, size_t index, size_t width, unsigned turn)
{
    uint32_t word = 0;
    memcpy(&word, words + index * width, width);
    if (turn == 0 || width == 1)
        return word;
    if (width == 2)
        return (word << turn | word >> (16 - turn)) & 0xffff;
    return word << turn | word >> (32 - turn);
}

/* A sample of the words as they would be split; returns its size. words: that it has at most. */
static size_t take_sample(struct ckpt_codec *codec, const struct change *change, const uint8_t *raw,
                          size_t words, uint32_t *out)
{
    struct probe_places places = probe_places(change->count, words);
    size_t done = 0;
    for (size_t r = 0; r < places.runs; r++) {
        const uint8_t *run =
            change_words(codec, change, raw, r * places.stride, places.run, codec->block);
        for (size_t i = 0; i < places.run; i++)
            out[done++] = word_at(run, i, change->width, change->turn);
    }
    return done;
}

/* Takes a sample and estimates the entropy of its planes; returns its size. */
static size_t sample_entropy(struct ckpt_codec *codec, const struct change *change,
                             const uint8_t *raw, uint32_t *sample, float entropy[4])
{
    size_t taken = take_sample(codec, change, raw, PROBE_WORDS_MAX, sample);
    probe_entropy(&codec->weights, sample, taken, change->width, entropy);
    return taken;
}

/* Decisions that are made before the words are split. */
struct chunk_choice {
    struct change change;
    size_t terms_size;
    const uint8_t *terms;
    enum coder coder[4];
    bool packed; /* plane 0, if it turns out that it can be */
};

static void choose_fast(struct ckpt_codec *codec, const uint8_t *raw, struct chunk_choice *choice)
{
    size_t width = choice->change.width;
    size_t taken = take_sample(codec, &choice->change, raw, SAMPLE_FAST, codec->sample);
    for (size_t p = 0; p < width; p++)
        choice->coder[p] = probe_is_narrow(codec->sample, taken, p) ? CODER_NIBBLES : CODER_RAW;
    choice->packed = !probe_any_lowest_bit(codec->sample, taken) && choice->coder[0] == CODER_RAW;
}

static void choose_coders(const float entropy[4], struct chunk_choice *choice)
{
    for (size_t p = 0; p < choice->change.width; p++) {
        choice->coder[p] = entropy[p] > INCOMPRESSIBLE ? CODER_RAW
                           : entropy[p] < SPARSE       ? CODER_SPARSE
                                                       : CODER_ENTROPY;
    }
}

/* Chooses rows and columns if they take less than `bits` a word. */
static void choose_table(struct ckpt_codec *codec, const uint8_t *raw, float bits,
                         struct chunk_choice *choice)
{
    size_t count = choice->change.count;
    choice->terms_size = table_fit(codec->maker, raw, count, &choice->terms);
    if (choice->terms_size == 0 ||
        !table_read(choice->terms, choice->terms_size, count, &codec->table))
        return;
    struct change change = choice->change;
    change.codec = DISK_TABLE;
    change.turn = TURN_TABLE;
    change.table = &codec->table;
    float entropy[4];
    (void)sample_entropy(codec, &change, raw, codec->sample_other, entropy);
    float terms = 8 * (float)choice->terms_size / (float)count;
    if ((probe_bits(entropy, 4) + terms) * TABLE_GAIN > bits)
        return;
    choice->change = change;
    choose_coders(entropy, choice);
    choice->packed = true;
}

/* Chooses differences to the base if they take less than `bits` a word; returns the bits of what is
 * chosen. */
static float choose_delta(struct ckpt_codec *codec, const uint8_t *raw, float bits,
                          struct chunk_choice *choice)
{
    struct change change = choice->change;
    change.codec = DISK_DELTA;
    change.turn = 0;
    float entropy[4];
    (void)sample_entropy(codec, &change, raw, codec->sample_other, entropy);
    float delta = probe_bits(entropy, change.width);
    if (delta >= bits)
        return bits;
    choice->change = change;
    choice->packed = false;
    choose_coders(entropy, choice);
    return delta;
}

static void choose_smallest(struct ckpt_codec *codec, const uint8_t *raw, bool table,
                            struct chunk_choice *choice)
{
    const struct change *change = &choice->change;
    float entropy[4];
    size_t taken = sample_entropy(codec, change, raw, codec->sample, entropy);
    bool sign = probe_any_lowest_bit(codec->sample, taken);
    float bits = probe_bits(entropy, change->width);
    choice->packed = !sign && entropy[0] > INCOMPRESSIBLE - 1;
    choose_coders(entropy, choice);
    if (change->base != NULL)
        bits = choose_delta(codec, raw, bits, choice);
    if (table && !sign && change->width == 4 && change->count >= TABLE_WORDS)
        choose_table(codec, raw, bits, choice);
}

/* Splits the words into planes. As long as planes are stored raw they are made where they will lie
 * in out, the others in the scratch. Returns whether plane 0 can be packed as chosen. */
static bool split_words(struct ckpt_codec *codec, const struct chunk_choice *choice,
                        const uint8_t *raw, uint8_t *out, uint8_t *plane[4])
{
    const struct change *change = &choice->change;
    size_t count = change->count, at = 0;
    bool known = !choice->packed, sign = false;
    for (size_t p = 0; p < change->width; p++) {
        known = known && choice->coder[p] == CODER_RAW;
        plane[p] = known ? out + at + DISK_FRAME_BYTES : codec->scratch + p * count;
        at += DISK_FRAME_BYTES + count;
    }
    size_t at_once = change->codec == DISK_ROTATED ? count : BLOCK;
    for (size_t first = 0; first < count; first += at_once) {
        size_t size = count - first < at_once ? count - first : at_once;
        const uint8_t *words = change_words(codec, change, raw, first, size, codec->block);
        uint8_t *to[4];
        for (size_t p = 0; p < change->width; p++)
            to[p] = plane[p] + first;
        if (change->width == 4) {
            sign |= codec->loops->split4(words, size, change->turn, to);
        } else {
            sign |= codec->loops->split2(words, size, change->turn, to);
        }
    }
    return choice->packed && (change->codec == DISK_TABLE || !sign);
}

/* Stores plane 0 packed, if its bytes allow it; returns whether they do. */
static bool put_packed(struct ckpt_codec *codec, const struct chunk_choice *choice,
                       const uint8_t *data, struct disk_chunk *chunk, uint8_t *out)
{
    size_t count = choice->change.count;
    uint8_t *at = out + DISK_FRAME_BYTES;
    size_t size = ckpt_packed7_size(count);
    if (choice->change.codec == DISK_TABLE) {
        size = ckpt_packed4_size(count);
        if (!codec->loops->pack4(data, count, at))
            return false;
    } else {
        codec->loops->pack7(data, count, at);
    }
    frames_put(codec->frames, CODER_RAW, at, (uint32_t)size, chunk, out);
    return true;
}

static enum disk_codec packed_of(enum disk_codec codec)
{
    return codec == DISK_TABLE ? DISK_TABLE_PACKED : DISK_ROTATED_PACKED;
}

static void begin_chunk(struct disk_chunk *chunk, enum ckpt_dtype dtype, uint32_t size)
{
    chunk->dtype = (uint16_t)dtype;
    chunk->raw_size = size;
    chunk->stored_size = 0;
    chunk->plane_count = 0;
    memset(chunk->plane_size, 0, sizeof(chunk->plane_size));
    memset(chunk->plane_mode, 0, sizeof(chunk->plane_mode));
}

/* Encodes floats. table: rows and columns may be tried. False: they were, and took more than the
 * raw bytes. */
static bool encode_words(struct ckpt_codec *codec, const struct change *change, bool table,
                         const uint8_t *raw, struct disk_chunk *chunk, uint8_t *out)
{
    struct chunk_choice choice = { .change = *change };
    if (codec->level == CKPT_FAST && change->base == NULL) {
        choose_fast(codec, raw, &choice);
    } else {
        choose_smallest(codec, raw, table, &choice);
    }
    uint8_t *plane[4] = { NULL };
    bool packed = split_words(codec, &choice, raw, out, plane);
    packed = packed && put_packed(codec, &choice, plane[0], chunk, out);
    for (size_t p = packed ? 1 : 0; p < change->width; p++)
        frames_put(codec->frames, choice.coder[p], plane[p], (uint32_t)change->count, chunk, out);
    chunk->codec = (uint8_t)(packed ? packed_of(choice.change.codec) : choice.change.codec);
    if (choice.change.codec != DISK_TABLE)
        return true;
    if (chunk->stored_size + DISK_FRAME_BYTES + choice.terms_size > chunk->raw_size)
        return false;
    frames_put(codec->frames, CODER_BYTES, choice.terms, (uint32_t)choice.terms_size, chunk, out);
    return true;
}

static bool is_float(uint32_t dtype)
{
    return dtype == CKPT_F32 || dtype == CKPT_BF16 || dtype == CKPT_F16;
}

static enum status encode_chunk(struct ckpt_codec *codec, enum ckpt_dtype dtype, const void *raw,
                                const void *base, uint32_t size, struct disk_chunk *chunk,
                                uint8_t *out)
{
    size_t width = (size_t)ckpt_dtype_size(dtype);
    if (width == 0 || size == 0 || size > DISK_CHUNK_BYTES || size % width != 0)
        return ST_INVALID;
    if (codec->weights.of[PROBE_WORDS_MAX] == 0)
        probe_weights(&codec->weights);
    begin_chunk(chunk, dtype, size);
    struct change change = {
        .codec = DISK_ROTATED,
        .width = width,
        .count = size / width,
        .turn = TURN,
        .base = base,
    };
    if (is_float(dtype)) {
        if (!encode_words(codec, &change, codec->level == CKPT_MAX, raw, chunk, out)) {
            begin_chunk(chunk, dtype, size);
            (void)encode_words(codec, &change, false, raw, chunk, out);
        }
        return ST_OK;
    }
    change = (struct change){ .codec = DISK_ROTATED, .width = 1, .count = size };
    float entropy[4];
    (void)sample_entropy(codec, &change, raw, codec->sample, entropy);
    chunk->codec = DISK_BYTES;
    frames_put(codec->frames, entropy[0] > INCOMPRESSIBLE ? CODER_RAW : CODER_BYTES, raw, size,
               chunk, out);
    return ST_OK;
}

/* ---- decoding ---- */

static bool is_table(uint32_t codec)
{
    return codec == DISK_TABLE || codec == DISK_TABLE_PACKED;
}

static bool is_packed(uint32_t codec)
{
    return codec == DISK_ROTATED_PACKED || codec == DISK_TABLE_PACKED;
}

/* Bytes of plane p once its frame is decoded. */
static size_t plane_length(const struct disk_chunk *chunk, size_t p)
{
    if (chunk->codec == DISK_BYTES)
        return chunk->raw_size;
    size_t count = chunk->raw_size / (size_t)ckpt_dtype_size(chunk->dtype);
    if (p > 0 || !is_packed(chunk->codec))
        return count;
    return chunk->codec == DISK_TABLE_PACKED ? ckpt_packed4_size(count) : ckpt_packed7_size(count);
}

/* Planes and their sizes as codec and dtype want them. */
static enum status check_planes(const struct disk_chunk *chunk)
{
    uint64_t width = ckpt_dtype_size(chunk->dtype);
    if (width == 0 || chunk->codec < DISK_BYTES || chunk->codec > DISK_TABLE_PACKED)
        return ST_VERSION;
    if (chunk->raw_size == 0 || chunk->raw_size > DISK_CHUNK_BYTES || chunk->raw_size % width != 0)
        return ST_CORRUPT;
    if ((chunk->codec != DISK_BYTES && !is_float(chunk->dtype)) ||
        (is_table(chunk->codec) && chunk->dtype != CKPT_F32))
        return ST_CORRUPT;
    uint64_t planes = chunk->codec == DISK_BYTES ? 1 : is_table(chunk->codec) ? width + 1 : width;
    if (chunk->plane_count != planes)
        return ST_CORRUPT;
    uint64_t stored = 0;
    for (size_t p = 0; p < DISK_PLANES; p++) {
        stored += chunk->plane_size[p];
        if (p >= planes && (chunk->plane_size[p] != 0 || chunk->plane_mode[p] != 0))
            return ST_CORRUPT;
        if (chunk->plane_mode[p] > DISK_NIBBLES)
            return ST_VERSION;
    }
    if (is_packed(chunk->codec) && chunk->plane_mode[0] != DISK_RAW)
        return ST_VERSION;
    return stored == chunk->stored_size ? ST_OK : ST_CORRUPT;
}

static bool get_terms(struct ckpt_codec *codec, const struct disk_chunk *chunk,
                      const uint8_t *frame, struct table_terms *out)
{
    size_t size = chunk->plane_size[TERMS_PLANE];
    enum disk_mode mode = chunk->plane_mode[TERMS_PLANE];
    size_t length = frames_length(frame, size, mode);
    if (length == 0 || length > sizeof(codec->terms))
        return false;
    const uint8_t *terms = frames_get(codec->frames, frame, size, mode, codec->terms, length);
    return terms != NULL && table_read(terms, length, chunk->raw_size / 4, out);
}

static void merge_words(const struct ckpt_codec *codec, const struct change *change,
                        const uint8_t *const plane[4], size_t first, size_t count, void *out)
{
    const uint8_t *from[4] = { NULL };
    for (size_t p = 0; p < change->width; p++)
        from[p] = plane[p] + first;
    if (change->width == 4) {
        codec->loops->merge4(from, count, change->turn, out);
    } else {
        codec->loops->merge2(from, count, change->turn, out);
    }
}

static void restore_words(struct ckpt_codec *codec, const struct change *change,
                          const uint8_t *const plane[4], uint8_t *out)
{
    if (change->codec == DISK_ROTATED) {
        merge_words(codec, change, plane, 0, change->count, out);
        return;
    }
    for (size_t first = 0; first < change->count; first += BLOCK) {
        size_t count = change->count - first < BLOCK ? change->count - first : BLOCK;
        size_t at = first * change->width;
        merge_words(codec, change, plane, first, count, codec->block);
        if (change->codec == DISK_TABLE) {
            table_unpredict(change->table, codec->loops, codec->block, first, count, out + at);
        } else if (change->width == 4) {
            codec->loops->undiffer4(codec->block, change->base + at, count, out + at);
        } else {
            codec->loops->undiffer2(codec->block, change->base + at, count, out + at);
        }
    }
}

/* The planes' bytes; those that were packed are stretched into the scratch of their place. */
static bool get_planes(struct ckpt_codec *codec, const struct disk_chunk *chunk, size_t count,
                       const uint8_t *stored, const uint8_t *plane[4])
{
    size_t planes = is_table(chunk->codec) ? TERMS_PLANE : chunk->plane_count;
    for (size_t p = 0; p < planes; p++) {
        uint8_t *scratch = codec->scratch + p * count;
        plane[p] = frames_get(codec->frames, stored, chunk->plane_size[p], chunk->plane_mode[p],
                              scratch, plane_length(chunk, p));
        if (plane[p] == NULL)
            return false;
        stored += chunk->plane_size[p];
    }
    if (is_packed(chunk->codec)) {
        if (is_table(chunk->codec)) {
            codec->loops->unpack4(plane[0], count, codec->scratch);
        } else {
            codec->loops->unpack7(plane[0], count, codec->scratch);
        }
        plane[0] = codec->scratch;
    }
    return true;
}

/* The change that a chunk's words have gone through, which isn't of DISK_BYTES. */
static struct change change_of(const struct ckpt_codec *codec, const struct disk_chunk *chunk,
                               const uint8_t *base)
{
    struct change change = {
        .codec = DISK_ROTATED,
        .width = (size_t)ckpt_dtype_size(chunk->dtype),
        .turn = TURN,
    };
    change.count = chunk->raw_size / change.width;
    switch ((enum disk_codec)chunk->codec) {
    case DISK_DELTA:
        change.codec = DISK_DELTA;
        change.turn = 0;
        change.base = base;
        break;
    case DISK_TABLE:
    case DISK_TABLE_PACKED:
        change.codec = DISK_TABLE;
        change.turn = TURN_TABLE;
        change.table = &codec->table;
        break;
    case DISK_BYTES:
    case DISK_ROTATED:
    case DISK_ROTATED_PACKED:
        break;
    }
    return change;
}

enum status ckpt_decode(struct ckpt_codec *codec, const struct disk_chunk *chunk,
                        const uint8_t *stored, const void *base, void *out)
{
    enum status st = check_planes(chunk);
    if (st != ST_OK)
        return st;
    if (chunk->codec == DISK_DELTA && base == NULL)
        return ST_INVALID;
    if (chunk->codec == DISK_BYTES) {
        const uint8_t *bytes = frames_get(codec->frames, stored, chunk->plane_size[0],
                                          chunk->plane_mode[0], out, chunk->raw_size);
        if (bytes != NULL && bytes != out)
            memcpy(out, bytes, chunk->raw_size);
        return bytes == NULL ? ST_CORRUPT : ST_OK;
    }
    const struct change change = change_of(codec, chunk, base);
    const uint8_t *plane[4] = { NULL };
    if (!get_planes(codec, chunk, change.count, stored, plane))
        return ST_CORRUPT;
    if (is_table(chunk->codec)) {
        const uint8_t *terms = stored + chunk->stored_size - chunk->plane_size[TERMS_PLANE];
        if (!get_terms(codec, chunk, terms, &codec->table))
            return ST_CORRUPT;
    }
    restore_words(codec, &change, plane, out);
    return ST_OK;
}

/* ---- encoding, checked ---- */

enum status ckpt_encode(struct ckpt_codec *codec, enum ckpt_dtype dtype, const void *raw,
                        const void *base, uint32_t size, struct disk_chunk *chunk, uint8_t *out)
{
    enum status st = encode_chunk(codec, dtype, raw, base, size, chunk, out);
    if (st != ST_OK || codec->encoded++ % CODEC_CHECKED_EVERY != 0)
        return st;
    if (fault_status("save.encode") != ST_OK)
        out[chunk->stored_size - 1] ^= 0x10;
    if (ckpt_decode(codec, chunk, out, base, codec->again) == ST_OK &&
        memcmp(codec->again, raw, size) == 0)
        return ST_OK;
    codec->mistakes++;
    begin_chunk(chunk, dtype, size);
    chunk->codec = DISK_BYTES;
    frames_put(codec->frames, CODER_RAW, raw, size, chunk, out);
    return ST_OK;
}

uint64_t ckpt_codec_mistakes(const struct ckpt_codec *codec)
{
    return codec->mistakes;
}
