#include "checkpoint/format/hash.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#ifdef __x86_64__
#include <xxh_x86dispatch.h> /* the same hashes by the widest vectors that the machine has */
#endif

#include "checkpoint/format/disk.h"
#include "checkpoint/notes.h"
#include "common/check.h"
#include "common/cleanup.h"

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
    CHECK(piece > 0);
    const char *bytes = data;
    for (size_t at = 0; at < size; at += piece)
        *out++ = ckpt_hash_of(bytes + at, size - at < piece ? size - at : piece);
}

_Static_assert(DISK_SKIPS_MAX == CKPT_SKIPS_MAX, "a list that is full is written");

uint64_t ckpt_skips_older(const struct ckpt_scalars *scalars, const uint64_t **out_steps,
                          uint64_t *out_count)
{
    const bool has_older = scalars->skip_count > 0 && (scalars->skip[0] & CKPT_SKIPS_OLDER) != 0;
    uint64_t count = scalars->skip_count;
    while (count > has_older && ckpt_is_note(scalars->skip[count - 1]))
        count--;
    *out_steps = scalars->skip + has_older;
    *out_count = count - has_older;
    return has_older ? scalars->skip[0] & ~CKPT_SKIPS_OLDER : 0;
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

enum status ckpt_scalars_hash(const struct ckpt_scalars *scalars, struct ckpt_hash *out)
{
    auto_buf struct buf record;
    buf_init(&record, sizeof(struct disk_scalars) + DISK_SKIPS_MAX * sizeof(uint64_t));
    enum status st = ckpt_scalars_record(scalars, &record);
    if (st == ST_OK)
        *out = ckpt_hash_of(record.data, record.size);
    return st;
}

struct ckpt_hash ckpt_branch_of(const struct ckpt_hash *pieces, uint64_t count)
{
    CHECK(count <= CKPT_BRANCH_PIECES);
    return ckpt_hash_of(pieces, (size_t)count * sizeof(*pieces));
}

uint64_t ckpt_branches(uint64_t pieces)
{
    return pieces / CKPT_BRANCH_PIECES + (pieces % CKPT_BRANCH_PIECES != 0);
}

void ckpt_digester_begin(struct ckpt_digester *digest, struct ckpt_hash *list)
{
    digest->list = list;
    digest->count = digest->open_count = 0;
}

void ckpt_digester_end(struct ckpt_digester *digest)
{
    if (digest->open_count > 0)
        digest->list[digest->count++] = ckpt_branch_of(digest->open, digest->open_count);
    digest->open_count = 0;
}

/* hashes may lie in the list, behind what is there. */
void ckpt_digester_pieces(struct ckpt_digester *digest, const struct ckpt_hash *hashes,
                          uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        digest->open[digest->open_count++] = hashes[i];
        if (digest->open_count == CKPT_BRANCH_PIECES)
            ckpt_digester_end(digest);
    }
}

void ckpt_digester_branches(struct ckpt_digester *digest, const struct ckpt_hash *hashes,
                            uint64_t count)
{
    CHECK(digest->open_count == 0);
    memcpy(digest->list + digest->count, hashes, (size_t)count * sizeof(*hashes));
    digest->count += count;
}

struct ckpt_hash ckpt_digester_finish(struct ckpt_digester *digest, const struct ckpt_hash *scalars)
{
    CHECK(digest->open_count == 0);
    digest->list[digest->count] = *scalars;
    return ckpt_hash_of(digest->list, (size_t)(digest->count + 1) * sizeof(*digest->list));
}

struct ckpt_hash ckpt_digest_of(struct ckpt_hash *list, const uint64_t *pieces, uint32_t buffers,
                                const struct ckpt_hash *scalars)
{
    struct ckpt_digester digest;
    const struct ckpt_hash *at = list;
    ckpt_digester_begin(&digest, list);
    for (uint32_t b = 0; b < buffers; at += pieces[b++]) {
        ckpt_digester_pieces(&digest, at, pieces[b]);
        ckpt_digester_end(&digest);
    }
    return ckpt_digester_finish(&digest, scalars);
}

/* Whether its data is all of it. */
static bool is_complete(const struct ckpt_state *state, uint32_t i)
{
    const struct ckpt_buffer *buffer = &state->buffers[i];
    uint64_t first = 0, count = 0;
    if (buffer->count == 0)
        return true;
    if (buffer->packed && state->share != NULL)
        (void)ckpt_share_part(state->share, i, 0, buffer->count, &first, &count);
    return buffer->data != NULL && (!buffer->packed || count == buffer->count);
}

enum status ckpt_state_digest(const struct ckpt_state *state, struct ckpt_hash *out)
{
    uint64_t all = 0, pieces[CKPT_BUFFERS_MAX];
    if (state->buffer_count > CKPT_BUFFERS_MAX || state->held != NULL)
        return ST_INVALID;
    for (uint32_t i = 0; i < state->buffer_count; i++) {
        const struct ckpt_buffer *buffer = &state->buffers[i];
        if (!is_complete(state, i) || ckpt_dtype_size(buffer->dtype) == 0)
            return ST_INVALID;
        pieces[i] = ckpt_pieces(buffer->count);
        all += pieces[i];
    }
    struct ckpt_hash scalars;
    enum status st = ckpt_scalars_hash(&state->scalars, &scalars);
    if (st != ST_OK)
        return st;
    auto_free struct ckpt_hash *list = malloc((size_t)(all + 1) * sizeof(*list));
    if (list == NULL)
        return ST_NO_MEMORY;
    struct ckpt_hash *at = list;
    for (uint32_t i = 0; i < state->buffer_count; i++) {
        const struct ckpt_buffer *buffer = &state->buffers[i];
        size_t size = (size_t)(buffer->count * ckpt_dtype_size(buffer->dtype));
        ckpt_piece_hashes(buffer->dtype, buffer->data, size, at);
        at += pieces[i];
    }
    *out = ckpt_digest_of(list, pieces, state->buffer_count, &scalars);
    return ST_OK;
}
