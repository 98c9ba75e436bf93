/*
 * A stored state: copies of all ranks in memory, or a checkpoint. Both are buffers of bytes, in
 * which tensors and blobs lie where areas say (library/wire/place.h).
 *
 *     cairn_state_read ─▶ box.c: boxes ─▶ read.c: bytes, a block kept ─▶ memory.c | checkpoint.c
 *
 * Invariants
 *  1. Nothing that was read is used before its hash was compared, and what was compared is what is
 *     used: a copy file may get another copy meanwhile, so pieces are compared where they went.
 *  2. All numbers of an area are checked when it is loaded: what tensors and blobs say lies inside
 *     of the buffers.
 *
 * Thread: one at a time.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "checkpoint/checkpoint.h"
#include "common/reason.h"
#include "common/status.h"
#include "library/cairn.h"
#include "library/wire/place.h"

struct stored_buffer {
    char name[LIMIT_NAME];
    uint64_t width; /* bytes of an element */
    uint64_t bytes;
    uint64_t block; /* what is read and compared at once: bytes */
};

/* Where bytes come from. */
struct stored_source {
    void *self; /* owned; NULL: not open */
    /* Reads [first, first + size) of a buffer, which are whole blocks but for the buffer's last. */
    enum status (*read)(void *self, uint32_t buffer, uint64_t first, uint64_t size, void *out,
                        struct reason *out_why);
    void (*close)(void *self);
};

struct stored_tensor {
    struct wire_entry entry;
    uint32_t rank; /* that has it */
    uint32_t buffer;
    uint64_t offset, bytes; /* in the buffer */
};

struct stored_blob {
    char name[CAIRN_NAME];
    uint32_t rank;
    uint64_t offset, size; /* in the buffer of areas */
};

struct cairn_state {
    struct stored_source source;
    struct stored_buffer buffers[CKPT_BUFFERS_MAX];
    uint32_t buffer_count;
    uint32_t areas; /* number of the buffer of areas */
    struct cairn_state_info info;
    struct stored_tensor *tensors; /* owned, as all here */
    uint64_t tensor_room;
    struct stored_blob *blobs;
    uint64_t blob_room;
    uint64_t *by_name; /* numbers of tensors, by name, then rank */
    uint8_t *block;    /* the one that was read last in part */
    uint64_t block_size;
    uint32_t block_buffer; /* CKPT_BUFFERS_MAX: none is kept */
    uint64_t block_number;
    struct reason why;
};

/* Opens copies: paths of all shares, in order, each with its NUL. Errors: ST_CORRUPT, …: out_why */
MUST_CHECK enum status stored_open_memory(const char *paths, uint32_t count,
                                          struct cairn_state **out, struct reason *out_why);
/* Opens a checkpoint's folder. */
MUST_CHECK enum status stored_open_checkpoint(const char *path, struct cairn_state **out,
                                              struct reason *out_why);

/* Makes an empty state; stored_state_free closes its source, too. */
MUST_CHECK enum status stored_state_new(struct cairn_state **out);
void stored_state_free(struct cairn_state *state);
/* Makes room for so many more tensors and blobs than there are. */
MUST_CHECK enum status stored_state_grow(struct cairn_state *state, uint64_t tensors,
                                         uint64_t blobs);
/* Sorts the names, when all tensors are there. ST_CORRUPT: they contradict each other */
MUST_CHECK enum status stored_state_sort(struct cairn_state *state, struct reason *out_why);
/* Returns the first place in by_name of that name, and how many follow; false: there is none. */
bool stored_state_find(const struct cairn_state *state, const char *name, uint64_t *out_first,
                       uint64_t *out_count);

/* Reads bytes of a buffer, which has them. out_why: what failed. */
MUST_CHECK enum status stored_read(struct cairn_state *state, uint32_t buffer, uint64_t first,
                                   uint64_t size, void *out);

/* What the first bytes of an area say; borrows them. */
struct stored_area {
    struct place_area head;
    const struct wire_entry *entries; /* [head.entry_count] */
    const struct place_blob *blobs;   /* [head.blob_count] */
    struct layout_places places;      /* owned: stored_area_release */
};
/*
 * Reads the first `size` bytes of an area of area_bytes; bytes: at a multiple of 8.
 * Errors: ST_CORRUPT  out_why; ST_VERSION, ST_NO_MEMORY
 */
MUST_CHECK enum status stored_area_parse(const void *bytes, uint64_t size, uint64_t area_bytes,
                                         struct stored_area *out, struct reason *out_why);
void stored_area_release(struct stored_area *area);
/* Loads the areas of all ranks: adds their tensors and blobs. sizes: the blob PLACE_AREAS */
MUST_CHECK enum status stored_areas_load(struct cairn_state *state, const void *sizes,
                                         size_t sizes_bytes);
