/*
 * A slot: one rank's share of a state, in memory that outlives its process.
 *
 * A file on tmpfs in the node's folder of the job, mapped once and used again for every copy; or,
 * without a folder, memory of this process alone.
 *
 *     offset        what
 *     0             struct slot_seal: 64 bytes
 *     64            struct slot_head: scalars, table of buffers, table of blobs
 *     SLOT_BESIDE   hashes of the pieces, skip list, bytes of the blobs: up to head_size
 *     data_offset   this rank's share of each buffer, one after the other at multiples of 64
 *
 * Names: g<generation>-r<rank>-<number>.copy, the rank whose share it is
 *
 * Invariants
 *  1. A seal is zeroed before the first byte behind it changes and written after the last one did.
 *     So a slot with a seal whose hash is right is whole, whenever its writer died.
 *  2. The seal's hash covers [64, head_size), which holds the hash of every piece of data. Piece
 *     hashes are taken of the source while it is copied: what is restored is what was trained.
 *  3. Integers are little-endian, floats IEEE 754. Only a machine of the kind that wrote it reads
 *     a slot: to another node the same bytes travel.
 *
 * Thread: one writer per slot; readers of a sealed slot any.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/checkpoint.h"
#include "common/status.h"

#define SLOT_VERSION   1u
#define SLOT_BLOBS_MAX 8
#define SLOT_BESIDE    8192u
#define SLOT_ALIGN     64u
#define SLOT_PAGE      4096u
/* Of skip list and blobs: the job file and pins are far below it. */
#define SLOT_ROOM  ((size_t)1024 * 1024)
#define SLOT_NAMES 64 /* bytes of a slot's file name */

struct slot_seal {
    uint8_t magic[8]; /* "CAIRNMEM"; zero: not whole */
    uint32_t version;
    uint32_t features; /* 0; a reader refuses bits that it doesn't know */
    uint64_t head_size;
    uint64_t file_size;
    struct ckpt_hash head; /* XXH3-128 of [64, head_size) */
    uint8_t zero[8];
    uint64_t check; /* XXH3-64 of all before */
};
_Static_assert(sizeof(struct slot_seal) == 64, "layout");
_Static_assert(offsetof(struct slot_seal, version) == 8, "layout");
_Static_assert(offsetof(struct slot_seal, features) == 12, "layout");
_Static_assert(offsetof(struct slot_seal, head_size) == 16, "layout");
_Static_assert(offsetof(struct slot_seal, file_size) == 24, "layout");
_Static_assert(offsetof(struct slot_seal, head) == 32, "layout");
_Static_assert(offsetof(struct slot_seal, zero) == 48, "layout");
_Static_assert(offsetof(struct slot_seal, check) == 56, "layout");

struct slot_buffer {
    char name[LIMIT_NAME]; /* NUL to the end */
    uint32_t dtype;
    uint32_t zero;
    uint64_t elements;     /* of the whole buffer */
    uint64_t first, count; /* this share: elements */
    uint64_t data;         /* offset of its bytes in the file */
    uint64_t hashes;       /* offset of the first of its pieces' hashes */
};
_Static_assert(sizeof(struct slot_buffer) == 176, "layout");
_Static_assert(offsetof(struct slot_buffer, dtype) == 128, "layout");
_Static_assert(offsetof(struct slot_buffer, elements) == 136, "layout");
_Static_assert(offsetof(struct slot_buffer, first) == 144, "layout");
_Static_assert(offsetof(struct slot_buffer, data) == 160, "layout");
_Static_assert(offsetof(struct slot_buffer, hashes) == 168, "layout");

struct slot_blob {
    char name[LIMIT_NAME];
    uint64_t offset, size;
};
_Static_assert(sizeof(struct slot_blob) == 144, "layout");

struct slot_head {
    char job[LIMIT_NAME];
    uint64_t generation;
    uint64_t step; /* finished steps */
    uint32_t rank, size;
    uint32_t buffer_count, blob_count;
    uint64_t seed, epoch, epoch_step;
    double loss_scale;
    uint64_t loss_scale_good_steps;
    uint64_t skip_count, skip; /* skip: offset */
    uint64_t data_offset;
    struct slot_buffer buffers[CKPT_BUFFERS_MAX];
    struct slot_blob blobs[SLOT_BLOBS_MAX];
};
_Static_assert(offsetof(struct slot_head, generation) == 128, "layout");
_Static_assert(offsetof(struct slot_head, rank) == 144, "layout");
_Static_assert(offsetof(struct slot_head, seed) == 160, "layout");
_Static_assert(offsetof(struct slot_head, loss_scale) == 184, "layout");
_Static_assert(offsetof(struct slot_head, skip_count) == 200, "layout");
_Static_assert(offsetof(struct slot_head, data_offset) == 216, "layout");
_Static_assert(offsetof(struct slot_head, buffers) == 224, "layout");
_Static_assert(offsetof(struct slot_head, blobs) == 3040, "layout");
_Static_assert(sizeof(struct slot_head) == 4192, "layout");
_Static_assert(sizeof(struct slot_seal) + sizeof(struct slot_head) <= SLOT_BESIDE, "it fits");

struct slot {
    uint8_t *memory; /* the whole file */
    size_t size;
    size_t room;        /* of what lies beside, hashes included: up to data_offset */
    size_t data_offset; /* multiple of a page */
    bool named;         /* in a folder: others can read it */
    char path[LIMIT_PATH];
    /* The copy that is described last: pointers lead into memory. */
    struct ckpt_state state;
    struct ckpt_buffer buffers[CKPT_BUFFERS_MAX];
    struct ckpt_blob blobs[SLOT_BLOBS_MAX];
};

/* Bytes of a slot for a share of so many bytes of buffers: what it costs in memory. */
size_t slot_bytes(size_t share_bytes);

/*
 * Makes the slot, or takes over the file at path. All of it is allocated and touched, so that no
 * copy meets a page fault or a full tmpfs: 2 GB/s where the memory is new. path NULL: unnamed.
 * Errors: ST_FULL  tmpfs has no room; ST_NO_MEMORY; ST_IO, ST_REFUSED, …
 */
MUST_CHECK enum status slot_open(const char *path, size_t share_bytes, struct slot *out);
/* The same of a slot of so many bytes, for what another node's slot of that size holds. */
MUST_CHECK enum status slot_open_size(const char *path, size_t size, struct slot *out);
/* The file stays. A slot that is all zero is fine. */
void slot_close(struct slot *slot);

/*
 * Begins a copy: breaks the seal, writes tables, scalars, skip list and blobs (rank's share of
 * `size` follows from state). Borrows what state's buffers and tensors point to until slot_copy
 * has returned.
 * Errors: ST_FULL  more than was announced; the slot is not whole then
 */
MUST_CHECK enum status slot_begin(struct slot *slot, const struct ckpt_state *state, uint32_t rank,
                                  uint32_t size);
/* Copies the share and takes the hashes of it. */
void slot_copy(struct slot *slot);
/* Now it is whole. */
void slot_seal(struct slot *slot);
/* The copy, to be written or read: buffers with data, data_first and pieces. Valid until
 * slot_begin. */
const struct ckpt_state *slot_state(const struct slot *slot);

/* ---- reading what another process left ---- */

struct slot_view {
    const uint8_t *memory; /* mapped to read */
    size_t size;
    const struct slot_seal *seal;
    const struct slot_head *head;
};

/*
 * Maps and checks the seal, the head's hash and that all tables lead into the file. Data is not
 * read: slot_check_data does.
 * Errors: ST_INCOMPLETE  no seal; ST_CORRUPT, ST_VERSION; ST_NOT_FOUND, ST_IO
 */
MUST_CHECK enum status slot_map(const char *path, struct slot_view *out);
/* The same of memory that came from elsewhere: size bytes of the front, of a file of file_size. */
MUST_CHECK enum status slot_parse(const void *memory, size_t size, size_t file_size,
                                  struct slot_view *out);
void slot_unmap(struct slot_view *view);

/* The share of a buffer as it lies in the file. */
const void *slot_view_data(const struct slot_view *view, uint32_t buffer, size_t *out_size);
/* ---- receiving what a slot of another node holds ---- */

/* Breaks the seal: what lies behind it may be written. */
void slot_break(struct slot *slot);
/*
 * Whether all that was written behind the broken seal is what that seal stood for: head, tables and
 * every piece. Nothing is sealed. out borrows seal and slot.
 * Errors: as slot_map; ST_CORRUPT
 */
MUST_CHECK enum status slot_check(const struct slot *slot, const struct slot_seal *seal,
                                  struct slot_view *out);
/* After slot_check: now it is whole. */
void slot_accept(struct slot *slot, const struct slot_seal *seal);

/* Compares bytes (of the whole share of that buffer) with its pieces' hashes. ST_CORRUPT */
MUST_CHECK enum status slot_check_data(const struct slot_view *view, uint32_t buffer,
                                       const void *data);
/* Scalars, with the skip list in the view. */
void slot_view_scalars(const struct slot_view *view, struct ckpt_scalars *out);
/* A blob's bytes, not NUL-terminated; NULL: there is none of that name. */
const void *slot_view_blob(const struct slot_view *view, const char *name, size_t *out_size);
