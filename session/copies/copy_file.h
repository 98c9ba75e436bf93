/*
 * A copy file: one rank's share of the state of one step, in memory that outlives its process.
 *
 * It is a file on tmpfs in the node's folder of the job (copy_folder.h), mapped once and used again
 * for every copy. Without a folder it is memory of this process alone, or of those that it is
 * shared with.
 *
 *     offset        bytes                 what
 *     0             64                    struct copy_seal: zero, or "all behind me is complete"
 *     64            3696                  struct copy_head: scalars, tables of buffers and blobs
 *     COPY_BESIDE   up to head_size       table of extents, hashes of the pieces, skip list, blobs
 *     data_offset   up to file_size       this rank's share: of each buffer its extents, one after
 *                                         the other, the first at a multiple of 64
 *
 * Name: g<generation>-r<rank>-<number>.copy; the rank is the one whose share it is.
 *
 * Life of one copy:
 *
 *     copy_file_begin ─▶ copy_file_fill ─▶ copy_file_seal       of a state of this process
 *     copy_file_begin ─▶ copy_file_filled ─▶ copy_file_seal     ... that another process fills in
 *     copy_file_break ─▶ bytes arrive ─▶ copy_file_check ─▶ copy_file_accept    of another node's
 *
 * Invariants
 *  1. A seal is zeroed before the first byte behind it changes and written after the last one did.
 *     So a file with a seal whose hash is right is complete, whenever its writer died.
 *  2. The seal's hash covers [64, head_size), which holds the hash of every piece of data. Piece
 *     hashes are taken of the source while it is copied: what is restored is what was trained.
 *  3. Integers are little-endian, floats IEEE 754. Only a machine of the kind that wrote it reads
 *     a copy: what goes to another node are the same bytes.
 *
 * docs/memory.md has the offsets field by field; tests/tidy/layout.py compares.
 *
 * A process that a file is shared with may change any of its bytes, and shrink a file of a folder,
 * whose bytes are zeros here then (copy_guard.h).
 * What the owner of a file relies on it keeps beside it (struct copy_file).
 *
 * Thread: one writer per file; readers of a sealed file any.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/checkpoint.h"
#include "common/status.h"

#define COPY_VERSION   3u /* 2: one extent of each buffer; 1: of a training that added otherwise */
#define COPY_BLOBS_MAX 8
#define COPY_BESIDE    8192u
#define COPY_ALIGN     64u
#define COPY_PAGE      4096u
/* Room for skip list and blobs together: job file and pins. */
#define COPY_ROOM ((size_t)2 * 1024 * 1024)
_Static_assert(CKPT_SKIPS_MAX * sizeof(uint64_t) + (size_t)(LIMIT_JOB_FILE_BYTES) +
                       (size_t)1024 * 1024 <=
                   COPY_ROOM,
               "a list that is full, the longest job file, and 1 MiB of pins");

struct copy_seal {
    uint8_t magic[8]; /* "CAIRNMEM"; zero: not complete */
    uint32_t version;
    uint32_t features; /* 0; a reader refuses bits that it doesn't know */
    uint64_t head_size;
    uint64_t file_size;
    struct ckpt_hash head; /* XXH3-128 of [64, head_size) */
    uint8_t zero[8];
    uint64_t check; /* XXH3-64 of all before */
};
_Static_assert(sizeof(struct copy_seal) == 64, "layout");
_Static_assert(offsetof(struct copy_seal, version) == 8, "layout");
_Static_assert(offsetof(struct copy_seal, features) == 12, "layout");
_Static_assert(offsetof(struct copy_seal, head_size) == 16, "layout");
_Static_assert(offsetof(struct copy_seal, file_size) == 24, "layout");
_Static_assert(offsetof(struct copy_seal, head) == 32, "layout");
_Static_assert(offsetof(struct copy_seal, zero) == 48, "layout");
_Static_assert(offsetof(struct copy_seal, check) == 56, "layout");

struct copy_buffer {
    char name[LIMIT_NAME]; /* NUL to the end */
    uint32_t dtype;
    uint32_t zero;
    uint64_t elements; /* of the whole buffer */
};
_Static_assert(sizeof(struct copy_buffer) == 144, "layout");
_Static_assert(offsetof(struct copy_buffer, dtype) == 128, "layout");
_Static_assert(offsetof(struct copy_buffer, elements) == 136, "layout");

/* An extent of the share, in the order of struct ckpt_share. */
struct copy_extent {
    uint32_t buffer;
    uint32_t zero;
    uint64_t first, count; /* elements */
    uint64_t data;         /* offset of its bytes in the file */
    uint64_t hashes;       /* offset of the first of its pieces' hashes */
};
_Static_assert(sizeof(struct copy_extent) == 40, "layout");
_Static_assert(offsetof(struct copy_extent, first) == 8, "layout");
_Static_assert(offsetof(struct copy_extent, data) == 24, "layout");
_Static_assert(offsetof(struct copy_extent, hashes) == 32, "layout");

struct copy_blob {
    char name[LIMIT_NAME];
    uint64_t offset, size;
};
_Static_assert(sizeof(struct copy_blob) == 144, "layout");

struct copy_head {
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
    uint64_t extents; /* offset of struct copy_extent[extent_count] */
    uint32_t extent_count, zero;
    struct copy_buffer buffers[CKPT_BUFFERS_MAX];
    struct copy_blob blobs[COPY_BLOBS_MAX];
};
_Static_assert(offsetof(struct copy_head, generation) == 128, "layout");
_Static_assert(offsetof(struct copy_head, rank) == 144, "layout");
_Static_assert(offsetof(struct copy_head, seed) == 160, "layout");
_Static_assert(offsetof(struct copy_head, loss_scale) == 184, "layout");
_Static_assert(offsetof(struct copy_head, skip_count) == 200, "layout");
_Static_assert(offsetof(struct copy_head, data_offset) == 216, "layout");
_Static_assert(offsetof(struct copy_head, extents) == 224, "layout");
_Static_assert(offsetof(struct copy_head, extent_count) == 232, "layout");
_Static_assert(offsetof(struct copy_head, buffers) == 240, "layout");
_Static_assert(offsetof(struct copy_head, blobs) == 2544, "layout");
_Static_assert(sizeof(struct copy_head) == 3696, "layout");
_Static_assert(sizeof(struct copy_seal) + sizeof(struct copy_head) <= COPY_BESIDE, "it fits");

/* Where the extents of a buffer lie in the file. */
struct copy_place {
    uint64_t data, hashes; /* offsets of the first extent's; 0: the share has none */
};

struct copy_file {
    uint8_t *memory; /* the whole file */
    size_t size;
    size_t room;        /* of what lies beside the data, hashes included: up to data_offset */
    size_t data_offset; /* multiple of a page */
    bool named;         /* in a folder: others can read it */
    bool shared;        /* fd is open */
    int fd;             /* shared: of the file, for other processes */
    char path[LIMIT_PATH];
    /* The copy that copy_file_begin described last; after copy_file_fill none of its pointers leads
     * to what the caller has. */
    struct ckpt_state state;
    struct ckpt_tensor *tensors; /* [tensor_room] */
    uint32_t tensor_room;
    struct ckpt_buffer buffers[CKPT_BUFFERS_MAX];
    struct ckpt_blob blobs[COPY_BLOBS_MAX];
    struct ckpt_share share;
    struct copy_place places[CKPT_BUFFERS_MAX]; /* of that copy */
    uint64_t head_size;                         /* of that copy */
};

/* Size of a file for a share of share_bytes of buffers: what it costs in memory. */
size_t copy_file_bytes(size_t share_bytes);

/*
 * Makes the file, or takes over the file at path. All of it is allocated and touched, so that no
 * copy meets a page fault or a full tmpfs: 2 GB/s where the memory is new. path NULL: unnamed.
 * Errors: ST_FULL  tmpfs has no room; ST_NO_MEMORY; ST_IO, ST_REFUSED, …
 */
MUST_CHECK enum status copy_file_open(const char *path, size_t share_bytes, struct copy_file *out);
/* Like copy_file_open, for a file that other processes write to: out->fd is theirs to have, too.
 * Without a path it is memory without a name, which nobody can shrink. */
MUST_CHECK enum status copy_file_open_shared(const char *path, size_t share_bytes,
                                             struct copy_file *out);
/* Like copy_file_open, by the file's own size: to receive a copy from another node's file of that
 * size. */
MUST_CHECK enum status copy_file_open_size(const char *path, size_t size, struct copy_file *out);
/* Unmaps it; the file itself stays. A struct that is all zero is fine. */
void copy_file_close(struct copy_file *file);

/*
 * Begins a copy: breaks the seal, writes tables, scalars, skip list and blobs. The share is that of
 * ckpt_share_of. Borrows what state's buffers point to until copy_file_fill has returned.
 * Errors: the file is not complete then. ST_FULL  more than was announced; ST_NO_MEMORY: room for
 *         the tensors' names, once per file; else as ckpt_share_of
 */
MUST_CHECK enum status copy_file_begin(struct copy_file *file, const struct ckpt_state *state,
                                       uint32_t rank, uint32_t size);
/* Copies the share and takes the hashes of it. */
void copy_file_fill(struct copy_file *file);
/* Takes it that another process has written the share and the hashes of its pieces, where the
 * tables say. Who stores or restores the copy compares the two. */
void copy_file_filled(struct copy_file *file);
/* Seals the file: the copy is complete from now on. */
void copy_file_seal(struct copy_file *file);
/* Returns the copy, to be written or read: its share, buffers with data, packed, and pieces. Valid
 * until copy_file_begin. */
const struct ckpt_state *copy_file_state(const struct copy_file *file);

/* ---- reading what another process left ---- */

struct copy_view {
    const uint8_t *memory; /* mapped to read */
    size_t size;
    const struct copy_seal *seal;
    const struct copy_head *head;
};

/*
 * Maps and checks the seal, the head's hash and that all tables lead into the file. Data is not
 * read: copy_view_check_data does.
 * Errors: ST_INCOMPLETE  no seal; ST_CORRUPT, ST_VERSION; ST_NOT_FOUND, ST_IO
 */
MUST_CHECK enum status copy_view_map(const char *path, struct copy_view *out);
/* Like copy_view_map, for memory that came from elsewhere: the first `size` bytes of a file of
 * file_size bytes. */
MUST_CHECK enum status copy_view_parse(const void *memory, size_t size, size_t file_size,
                                       struct copy_view *out);
void copy_view_unmap(struct copy_view *view);

/* Returns the table of extents: head->extent_count of them, which are a share (ckpt_share_check) of
 * the head's buffers. */
const struct copy_extent *copy_view_extents(const struct copy_view *view);
/* Returns an extent's bytes as they lie in the file. */
const void *copy_view_data(const struct copy_view *view, uint32_t extent, size_t *out_size);
/* Compares a stretch of an extent's bytes, from a piece's border to another or to its end, with the
 * hashes of its pieces. ST_CORRUPT */
MUST_CHECK enum status copy_view_check_data(const struct copy_view *view, uint32_t extent,
                                            uint64_t offset, const void *data, size_t size);

/* ---- receiving what another node's file holds ---- */

/* Breaks the seal: what lies behind it may be written. */
void copy_file_break(struct copy_file *file);
/*
 * Whether all that was written behind the broken seal is what that seal stood for: head, tables and
 * every piece. Nothing is sealed. out borrows seal and file.
 * Errors: as copy_view_map; ST_CORRUPT
 */
MUST_CHECK enum status copy_file_check(const struct copy_file *file, const struct copy_seal *seal,
                                       struct copy_view *out);
/* Seals the file after copy_file_check: the copy is complete from now on. */
void copy_file_accept(struct copy_file *file, const struct copy_seal *seal);

/* Returns the scalars, with the skip list in the view. */
void copy_view_scalars(const struct copy_view *view, struct ckpt_scalars *out);
/* Returns a blob's bytes, not NUL-terminated; NULL: there is none of that name. */
const void *copy_view_blob(const struct copy_view *view, const char *name, size_t *out_size);
