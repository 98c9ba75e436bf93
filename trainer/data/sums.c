#include "trainer/data/sums.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/hash.h"
#include "common/check.h"
#include "common/cleanup.h"
#include "common/limits.h"

#define MAGIC      "CAIRNSUM"
#define VERSION    1u
#define SUFFIX     ".sums"
#define PER_MIB    4 /* blocks */
#define FIRST_TURN 1u
#define HASH_BYTES sizeof(struct ckpt_hash)
#define KEPT_MAX   ((size_t)1 << 31) /* of 32 TiB of data */

struct sums {
    struct data_identity identity;
    size_t count;
    struct ckpt_hash *block; /* owned */
    /* The turn in which a block was checked last; 0: in none. One that was begun before a doubt
     * and ends after it says the turn before: nobody has to wait. */
    atomic_uint_least64_t *checked; /* owned */
    atomic_uint_least64_t turn;
};

/* The header as it lies in the file. */
struct kept_head {
    char magic[8];
    uint32_t version;
    uint32_t block_bytes;
    uint64_t size;
    uint64_t inode;
    int64_t changed_ns;
    struct ckpt_hash content;
    uint64_t path_bytes;
};
_Static_assert(sizeof(struct kept_head) == 64, "no gaps");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "as it lies in the file");

static size_t blocks_of(uint64_t size)
{
    return (size_t)((size + SUMS_BLOCK - 1) / SUMS_BLOCK);
}

/* Bytes of a block of the file's content: the last block is shorter. */
static size_t block_size(uint64_t size, size_t i)
{
    const uint64_t left = size - (uint64_t)i * SUMS_BLOCK;
    return left < SUMS_BLOCK ? (size_t)left : SUMS_BLOCK;
}

static struct sums *new_sums(uint64_t size)
{
    struct sums *sums = calloc(1, sizeof(*sums));
    if (sums == NULL)
        return NULL;
    sums->identity.size = size;
    sums->count = blocks_of(size);
    sums->block = calloc(sums->count + 1, sizeof(*sums->block));
    sums->checked = calloc(sums->count + 1, sizeof(*sums->checked));
    atomic_init(&sums->turn, FIRST_TURN);
    if (sums->block != NULL && sums->checked != NULL)
        return sums;
    sums_free(sums);
    return NULL;
}

void sums_free(struct sums *sums)
{
    if (sums == NULL)
        return;
    free(sums->block);
    free(sums->checked);
    free(sums);
}

const struct data_identity *sums_identity(const struct sums *sums)
{
    return &sums->identity;
}

/* Both hashes of a block while it lies in the processor's cache. */
enum status sums_make(const void *data, size_t size, void (*progress)(void *arg),
                      void *progress_arg, struct sums **out)
{
    struct identity_maker *maker = NULL;
    struct sums *sums = new_sums(size);
    enum status st = sums != NULL ? identity_maker_new(&maker) : ST_NO_MEMORY;
    if (st != ST_OK) {
        sums_free(sums);
        return st;
    }
    for (size_t i = 0; i < sums->count; i++) {
        const uint8_t *block = (const uint8_t *)data + i * SUMS_BLOCK;
        const size_t n = block_size(size, i);
        identity_maker_add(maker, block, n);
        sums->block[i] = ckpt_hash_of(block, n);
        atomic_init(&sums->checked[i], FIRST_TURN);
        if (progress != NULL && i % PER_MIB == PER_MIB - 1)
            progress(progress_arg);
    }
    sums->identity = identity_maker_result(maker);
    identity_maker_free(maker);
    *out = sums;
    return ST_OK;
}

/* ---- kept ---- */

static bool is_kept(const struct sums_place *place)
{
    return place->folder != NULL && place->seen.size >= SUMS_KEEP_MIN;
}

static enum status name_of(const struct sums_place *place, char out[LIMIT_PATH])
{
    char text[33];
    const struct ckpt_hash hash = ckpt_hash_of(place->path, strlen(place->path));
    ckpt_hash_text(&hash, text);
    const int length = snprintf(out, LIMIT_PATH, "%s/%s" SUFFIX, place->folder, text);
    return length < 0 || length >= LIMIT_PATH ? ST_FULL : ST_OK;
}

static struct kept_head head_of(const struct sums_place *place)
{
    struct kept_head head = { .version = VERSION,
                              .block_bytes = SUMS_BLOCK,
                              .size = place->seen.size,
                              .inode = place->seen.inode,
                              .changed_ns = place->seen.changed_ns,
                              .path_bytes = strlen(place->path) };
    memcpy(head.magic, MAGIC, sizeof(head.magic));
    return head;
}

/* Sums out of what lies in a file, if they are this place's. */
static enum status read_kept(const struct sums_place *place, const char *bytes, size_t size,
                             struct sums **out)
{
    struct kept_head head = head_of(place);
    struct kept_head there;
    struct ckpt_hash last;
    const size_t table = blocks_of(head.size) * HASH_BYTES;
    const size_t before = sizeof(head) + (size_t)head.path_bytes + table;
    if (size != before + HASH_BYTES)
        return ST_CORRUPT;
    memcpy(&last, bytes + before, HASH_BYTES);
    const struct ckpt_hash now = ckpt_hash_of(bytes, before);
    memcpy(&there, bytes, sizeof(there));
    head.content = there.content;
    if (!ckpt_hash_equal(&last, &now) || memcmp(&head, &there, sizeof(head)) != 0 ||
        memcmp(bytes + sizeof(head), place->path, (size_t)head.path_bytes) != 0)
        return ST_CORRUPT;
    struct sums *sums = new_sums(head.size);
    if (sums == NULL)
        return ST_NO_MEMORY;
    sums->identity.hash = head.content;
    memcpy(sums->block, bytes + before - table, table);
    *out = sums;
    return ST_OK;
}

enum status sums_find(const struct sums_place *place, struct sums **out)
{
    char name[LIMIT_PATH];
    auto_free char *bytes = NULL;
    size_t size = 0;
    if (!is_kept(place))
        return ST_NOT_FOUND;
    enum status st = name_of(place, name);
    if (st == ST_OK)
        st = io_read_file(place->io, name, KEPT_MAX, &bytes, &size);
    return st == ST_OK ? read_kept(place, bytes, size, out) : st;
}

enum status sums_keep(const struct sums_place *place, const struct sums *sums)
{
    char name[LIMIT_PATH];
    if (!is_kept(place) || sums->identity.size != place->seen.size)
        return ST_OK;
    struct kept_head head = head_of(place);
    head.content = sums->identity.hash;
    auto_buf struct buf bytes;
    buf_init(&bytes, KEPT_MAX);
    enum status st = name_of(place, name);
    if (st == ST_OK)
        st = io_mkdir_all(place->io, place->folder);
    if (st == ST_OK)
        st = buf_append(&bytes, &head, sizeof(head));
    if (st == ST_OK)
        st = buf_append(&bytes, place->path, (size_t)head.path_bytes);
    if (st == ST_OK)
        st = buf_append(&bytes, sums->block, sums->count * HASH_BYTES);
    if (st != ST_OK)
        return st;
    const struct ckpt_hash last = ckpt_hash_of(bytes.data, bytes.size);
    st = buf_append(&bytes, &last, HASH_BYTES);
    return st == ST_OK ? io_replace(place->io, name, bytes.data, bytes.size) : st;
}

void sums_forget(const struct sums_place *place)
{
    char name[LIMIT_PATH];
    if (is_kept(place) && name_of(place, name) == ST_OK)
        (void)place->io->unlink(place->io->self, name); /* it is gone, or never was */
}

/* ---- checking ---- */

bool sums_check(struct sums *sums, uint64_t turn, const void *data, uint64_t from, uint64_t to,
                uint64_t *out_bad)
{
    CHECK(from <= to);
    CHECK(to <= sums->identity.size);
    const size_t end = blocks_of(to);
    for (size_t i = (size_t)(from / SUMS_BLOCK); i < end; i++) {
        if (atomic_load_explicit(&sums->checked[i], memory_order_acquire) == turn)
            continue;
        const uint64_t at = (uint64_t)i * SUMS_BLOCK;
        const struct ckpt_hash hash =
            ckpt_hash_of((const uint8_t *)data + at, block_size(sums->identity.size, i));
        if (!ckpt_hash_equal(&hash, &sums->block[i])) {
            *out_bad = at;
            return false;
        }
        atomic_store_explicit(&sums->checked[i], turn, memory_order_release);
    }
    return true;
}

void sums_doubt(struct sums *sums)
{
    atomic_fetch_add(&sums->turn, 1);
}

uint64_t sums_turn(const struct sums *sums)
{
    return atomic_load(&sums->turn);
}
