/* Hashes: XXH3 in its canonical (big-endian) form, so that a digest reads the same everywhere. */
#include "checkpoint/format/hash.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#ifdef __x86_64__
#include <xxh_x86dispatch.h> /* the same hashes by the widest vectors that the machine has */
#endif

#include "checkpoint/format/disk.h"

struct ckpt_hasher {
    XXH3_state_t *state;
};

static struct ckpt_hash canonical(XXH128_hash_t hash)
{
    XXH128_canonical_t bytes;
    XXH128_canonicalFromHash(&bytes, hash);
    struct ckpt_hash out;
    _Static_assert(sizeof(out.byte) == sizeof(bytes.digest), "both have 16 bytes");
    memcpy(out.byte, bytes.digest, sizeof(out.byte));
    return out;
}

struct ckpt_hash ckpt_hash_of(const void *data, size_t size)
{
    return canonical(XXH3_128bits(data, size));
}

bool ckpt_hash_equal(const struct ckpt_hash *a, const struct ckpt_hash *b)
{
    return memcmp(a->byte, b->byte, sizeof(a->byte)) == 0;
}

uint64_t ckpt_check_of(const void *data, size_t size)
{
    return XXH3_64bits(data, size);
}

enum status ckpt_hasher_new(struct ckpt_hasher **out)
{
    struct ckpt_hasher *hasher = malloc(sizeof(*hasher));
    if (hasher == NULL)
        return ST_NO_MEMORY;
    hasher->state = XXH3_createState();
    if (hasher->state == NULL) {
        free(hasher);
        return ST_NO_MEMORY;
    }
    ckpt_hasher_reset(hasher);
    *out = hasher;
    return ST_OK;
}

void ckpt_hasher_free(struct ckpt_hasher *hasher)
{
    if (hasher == NULL)
        return;
    (void)XXH3_freeState(hasher->state);
    free(hasher);
}

void ckpt_hasher_reset(struct ckpt_hasher *hasher)
{
    (void)XXH3_128bits_reset(hasher->state);
}

void ckpt_hasher_add(struct ckpt_hasher *hasher, const void *data, size_t size)
{
    (void)XXH3_128bits_update(hasher->state, data, size);
}

struct ckpt_hash ckpt_hasher_result(const struct ckpt_hasher *hasher)
{
    return canonical(XXH3_128bits_digest(hasher->state));
}

void ckpt_hash_text(const struct ckpt_hash *hash, char out[33])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < sizeof(hash->byte); i++) {
        out[2 * i] = digits[hash->byte[i] >> 4];
        out[2 * i + 1] = digits[hash->byte[i] & 15];
    }
    out[32] = '\0';
}

/* -1: no lower-case hex digit. */
static int digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

enum status ckpt_hash_parse(const char *text, struct ckpt_hash *out)
{
    struct ckpt_hash hash;
    if (strnlen(text, 33) != 32)
        return ST_INVALID;
    for (size_t i = 0; i < sizeof(hash.byte); i++) {
        int high = digit_of(text[2 * i]), low = digit_of(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return ST_INVALID;
        hash.byte[i] = (uint8_t)(high * 16 + low);
    }
    *out = hash;
    return ST_OK;
}

void ckpt_piece_hashes(enum ckpt_dtype dtype, const void *data, size_t size, struct ckpt_hash *out)
{
    size_t piece = (size_t)ckpt_dtype_size(dtype) * PIECE_ELEMENTS;
    const char *bytes = data;
    for (size_t at = 0; at < size; at += piece)
        *out++ = ckpt_hash_of(bytes + at, size - at < piece ? size - at : piece);
}

enum status ckpt_scalars_record(const struct ckpt_scalars *scalars, struct buf *out)
{
    if (scalars->skip_count > DISK_SKIPS_MAX)
        return ST_INVALID;
    struct disk_scalars record = {
        .seed = scalars->seed,
        .step = scalars->step,
        .epoch = scalars->epoch,
        .epoch_step = scalars->epoch_step,
        .loss_scale = scalars->loss_scale,
        .loss_scale_good_steps = scalars->loss_scale_good_steps,
        .skip_count = scalars->skip_count,
    };
    enum status st = buf_append(out, &record, sizeof(record));
    if (st == ST_OK && scalars->skip_count > 0)
        st = buf_append(out, scalars->skip, (size_t)scalars->skip_count * sizeof(uint64_t));
    return st;
}

static void add_buffer(struct ckpt_hasher *hasher, const struct ckpt_buffer *buffer)
{
    uint64_t element = ckpt_dtype_size(buffer->dtype);
    const char *bytes = buffer->data;
    for (uint64_t at = 0; at < buffer->count; at += PIECE_ELEMENTS) {
        uint64_t left = buffer->count - at;
        uint64_t count = left < PIECE_ELEMENTS ? left : PIECE_ELEMENTS;
        struct ckpt_hash hash = ckpt_hash_of(bytes + at * element, (size_t)(count * element));
        ckpt_hasher_add(hasher, hash.byte, sizeof(hash.byte));
    }
}

enum status ckpt_state_digest(const struct ckpt_state *state, struct ckpt_hash *out)
{
    if (state->buffer_count > CKPT_BUFFERS_MAX)
        return ST_INVALID;
    for (uint32_t i = 0; i < state->buffer_count; i++) {
        const struct ckpt_buffer *buffer = &state->buffers[i];
        bool whole = buffer->data_first == 0 && (buffer->data != NULL || buffer->count == 0);
        if (!whole || ckpt_dtype_size(buffer->dtype) == 0)
            return ST_INVALID;
    }
    auto_buf struct buf record;
    buf_init(&record, sizeof(struct disk_scalars) + DISK_SKIPS_MAX * sizeof(uint64_t));
    enum status st = ckpt_scalars_record(&state->scalars, &record);
    if (st != ST_OK)
        return st;
    struct ckpt_hasher *hasher = NULL;
    st = ckpt_hasher_new(&hasher);
    if (st != ST_OK)
        return st;
    for (uint32_t i = 0; i < state->buffer_count; i++)
        add_buffer(hasher, &state->buffers[i]);
    struct ckpt_hash hash = ckpt_hash_of(record.data, record.size);
    ckpt_hasher_add(hasher, hash.byte, sizeof(hash.byte));
    *out = ckpt_hasher_result(hasher);
    ckpt_hasher_free(hasher);
    return ST_OK;
}
