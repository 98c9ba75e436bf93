/*
 * Where each tensor of a layout lies in what is saved. Pure functions, which both sides call.
 *
 * Buffers, in the order of the digest: "float32", "bfloat16", "float16", "int32", "int64", "uint8"
 * for replicated tensors of that dtype, one after the other in the order of the layout; "bytes"
 * (uint8) for replicated tensors of other dtypes, likewise; "ranks" (uint8): the areas. Buffers
 * without elements are left out.
 *
 * An area is all else of one rank: struct place_area, the entries of all tensors of its layout,
 * struct place_blob and bytes of each blob, then the data of its sharded and private tensors, each
 * at a multiple of PLACE_ALIGN. Its size is rounded up to whole chunks of the format; what is not
 * used is zero. The areas of all ranks lie one after the other, by rank. A blob of the checkpoint,
 * PLACE_AREAS, has their sizes; rank 0 writes it.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "checkpoint/checkpoint.h"
#include "common/reason.h"
#include "common/status.h"
#include "library/wire/wire.h"

#define PLACE_BUFFERS   8
#define PLACE_BYTES     6 /* number of buffer "bytes" */
#define PLACE_RANKS     7 /* number of buffer "ranks" */
#define PLACE_ALIGN     64u
#define PLACE_AREAS     "cairn.areas" /* struct place_areas, then a uint64_t for each rank: bytes */
#define PLACE_BLOBS_MAX 256u

struct place_areas {
    uint32_t version; /* 1 */
    uint32_t ranks;
};

/* The first bytes of an area. */
struct place_area {
    uint8_t magic[8]; /* "CAIRNARE" */
    uint32_t version; /* 1 */
    uint32_t rank, ranks;
    uint32_t blob_count;
    uint64_t entry_count;
    uint64_t entries; /* offset in the area */
    uint64_t blobs;   /* offset of struct place_blob[blob_count] */
    uint64_t data;    /* offset of the first tensor's data */
    uint64_t bytes;   /* of the area */
};
_Static_assert(sizeof(struct place_area) == 64, "layout");

struct place_blob {
    char name[CAIRN_NAME];
    uint64_t offset, size; /* in the area */
};

/* Where one tensor's data lies. */
struct place {
    uint32_t buffer; /* one of the eight above */
    uint64_t offset; /* bytes, in the buffer, or in the rank's area if it is in "ranks" */
    uint64_t bytes;  /* of the box */
};

struct layout_places {
    struct place *places; /* [count]; owned */
    uint64_t count;
    uint64_t buffer_bytes[PLACE_BUFFERS];     /* of PLACE_RANKS: this rank's area */
    uint64_t entries, blobs, blobs_end, data; /* offsets in the area */
};

/*
 * Computes all places. blob_bytes: most bytes of the blobs of a save.
 * Errors: ST_INVALID  an entry that can't be: out_why names it (unknown dtype or kind, no name, a
 *                     name twice, a box outside of its shape, a size beyond 64 bits)
 *         ST_FULL     more than the format has room for; ST_NO_MEMORY
 */
MUST_CHECK enum status layout_places_make(const struct wire_entry *entries, uint64_t count,
                                          uint64_t blob_bytes, struct layout_places *out,
                                          struct reason *out_why);
void layout_places_release(struct layout_places *places);

/* Name and dtype of a buffer, by its number above. */
const char *place_buffer_name(uint32_t buffer);
enum ckpt_dtype place_buffer_dtype(uint32_t buffer);

/* Hash of all that must be the same on all ranks: the replicated entries, in order. */
struct ckpt_hash layout_hash(const struct wire_entry *entries, uint64_t count);
