/*
 * The bytes of a shard file, version 2 (docs/format.md has the same tables in prose).
 *
 *     offset            what
 *     0                 struct disk_header, one skippable frame of 4096 bytes
 *     4096              chunks: struct disk_chunk (+ gap), one skippable frame, then its planes,
 *                       each one frame: raw bytes in a skippable one, or a zstd frame
 *     footer_offset     struct disk_footer, scalars, skip list, buffers, chunk references, tensors,
 *                       blobs, gap, struct disk_trailer: one skippable frame that ends the file
 *
 * Invariants:
 *  (1) From its first byte the file is a sequence of zstd and skippable frames.
 *  (2) Every byte belongs to exactly one frame above and is covered by a check: a hash, a
 *      comparison with what it must be, or a test for zero.
 *  (3) Integers are little-endian, floats IEEE 754; no field is unaligned in its struct.
 *  (4) magic, version and check of the header stay where they are in all versions to come.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/limits.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "structs are written as they lie");

#define DISK_VERSION     2u /* 1 had another digest, of a training that added otherwise: not read */
#define DISK_CHUNK_BYTES (1u << 20) /* raw bytes of a chunk, the last of a buffer may have less */
#define DISK_NAME        128
#define DISK_DIMS        8
#define DISK_PLANES      8
#define DISK_BLOB        0x80000000u /* chunk belongs to blob number buffer & ~DISK_BLOB */
#define DISK_ALIGN       64u         /* stored bytes of a chunk start at a multiple of it */
#define DISK_FILE_ALIGN  4096u       /* the file's size is a multiple of it */
#define DISK_GAP_MAX     4096u
#define DISK_FOOTER_MAX                                                                            \
    (64u << 20) /* 2.7 TB of raw bytes per file; bounds what a reader allocates */
#define DISK_BLOB_MAX   (64u << 20)
#define DISK_BLOBS_MAX  64u
#define DISK_SKIPS_MAX  65536u
#define DISK_STORED_MAX (DISK_CHUNK_BYTES + DISK_PLANES * DISK_FRAME_BYTES)

_Static_assert(DISK_NAME == LIMIT_NAME, "names fit");

/* Magic numbers of zstd's skippable frames; their low four bits are ours to choose. */
#define DISK_FRAME_BYTES  8u /* magic and length of a skippable frame */
#define DISK_FRAME_HEADER 0x184d2a50u
#define DISK_FRAME_CHUNK  0x184d2a51u
#define DISK_FRAME_PLANE  0x184d2a52u
#define DISK_FRAME_FOOTER 0x184d2a53u

#define DISK_HEADER_SIZE 4096u
#define DISK_CHAIN_MAX   8u /* checkpoints that a checkpoint may lean on, one on the other */

enum disk_feature {
    DISK_DIFFERS = 1, /* chunks may be differences to those of the parent checkpoint */
};
#define DISK_FEATURES 1u /* all that this version knows */

struct disk_header {
    uint32_t frame_magic; /* DISK_FRAME_HEADER */
    uint32_t frame_size;  /* 4088 */
    uint8_t magic[8];     /* "CAIRNSHD" */
    uint32_t version;
    uint32_t features; /* enum disk_feature; a reader refuses bits that it doesn't know */
    uint32_t rank;
    uint32_t size; /* ranks */
    uint64_t generation;
    uint64_t step;
    uint32_t chunk_bytes;    /* 1 MiB */
    uint32_t piece_elements; /* 65536 */
    char job[DISK_NAME];     /* NUL to the end */
    uint64_t check;          /* XXH3-64 of all before */
    uint64_t parent_step;    /* of DISK_DIFFERS; as the manifest says, 0 without it */
    uint64_t parent_generation;
    uint8_t zero[3888];
};
_Static_assert(sizeof(struct disk_header) == DISK_HEADER_SIZE, "on-disk layout");
_Static_assert(offsetof(struct disk_header, magic) == 8, "on-disk layout");
_Static_assert(offsetof(struct disk_header, version) == 16, "on-disk layout");
_Static_assert(offsetof(struct disk_header, features) == 20, "on-disk layout");
_Static_assert(offsetof(struct disk_header, rank) == 24, "on-disk layout");
_Static_assert(offsetof(struct disk_header, size) == 28, "on-disk layout");
_Static_assert(offsetof(struct disk_header, generation) == 32, "on-disk layout");
_Static_assert(offsetof(struct disk_header, step) == 40, "on-disk layout");
_Static_assert(offsetof(struct disk_header, chunk_bytes) == 48, "on-disk layout");
_Static_assert(offsetof(struct disk_header, piece_elements) == 52, "on-disk layout");
_Static_assert(offsetof(struct disk_header, job) == 56, "on-disk layout");
_Static_assert(offsetof(struct disk_header, check) == 184, "on-disk layout");
_Static_assert(offsetof(struct disk_header, parent_step) == 192, "on-disk layout");
_Static_assert(offsetof(struct disk_header, parent_generation) == 200, "on-disk layout");
_Static_assert(offsetof(struct disk_header, zero) == 208, "on-disk layout");

/* How the raw bytes of a chunk became planes. Values are on disk: never renumber. */
enum disk_codec {
    DISK_BYTES = 1,          /* one plane: the bytes as they are */
    DISK_ROTATED = 2,        /* each word rotated left by one, then its bytes, lowest plane first */
    DISK_ROTATED_PACKED = 3, /* likewise; no sign is set, so plane 0 is packed from 8 to 7 bytes */
    DISK_DELTA = 4,          /* each word minus the base's, zigzag, then its bytes as above */
    DISK_TABLE = 5,          /* float32: each word minus the terms of its row and column, rotated
                              * left by four, then its bytes; the fifth plane is the terms */
    DISK_TABLE_PACKED = 6,   /* likewise; plane 0 has zeros in all lower halves: two bytes in one */
};

enum disk_mode {
    DISK_RAW = 0,     /* the plane is the content of a skippable frame */
    DISK_ZSTD = 1,    /* the plane is the content of a zstd frame */
    DISK_NIBBLES = 2, /* a skippable frame holds half a byte for each, and what lies outside */
};

struct disk_chunk {
    uint32_t frame_magic; /* DISK_FRAME_CHUNK */
    uint32_t frame_size;  /* 96 + gap_size */
    uint8_t magic[4];     /* "CHNK" */
    uint32_t buffer;      /* number in the table of buffers, or DISK_BLOB | number of a blob */
    uint64_t index;       /* of the chunk in its buffer or blob */
    uint32_t raw_size;
    uint32_t stored_size;             /* bytes of the planes' frames, which follow the gap */
    uint16_t dtype;                   /* enum ckpt_dtype */
    uint8_t codec;                    /* enum disk_codec */
    uint8_t plane_count;              /* the rest of the plane arrays is 0 */
    uint32_t gap_size;                /* zero bytes after this struct, in its frame */
    uint32_t plane_size[DISK_PLANES]; /* whole frames */
    uint8_t plane_mode[DISK_PLANES];  /* enum disk_mode */
    uint64_t raw_hash;                /* XXH3-64 */
    uint64_t stored_hash;             /* XXH3-64 of the stored_size bytes */
    uint64_t check;                   /* XXH3-64 of all before */
};
_Static_assert(sizeof(struct disk_chunk) == 104, "on-disk layout");
_Static_assert(offsetof(struct disk_chunk, magic) == 8, "on-disk layout");
_Static_assert(offsetof(struct disk_chunk, buffer) == 12, "on-disk layout");
_Static_assert(offsetof(struct disk_chunk, index) == 16, "on-disk layout");
_Static_assert(offsetof(struct disk_chunk, raw_size) == 24, "on-disk layout");
_Static_assert(offsetof(struct disk_chunk, stored_size) == 28, "on-disk layout");
_Static_assert(offsetof(struct disk_chunk, dtype) == 32, "on-disk layout");
_Static_assert(offsetof(struct disk_chunk, codec) == 34, "on-disk layout");
_Static_assert(offsetof(struct disk_chunk, plane_count) == 35, "on-disk layout");
_Static_assert(offsetof(struct disk_chunk, gap_size) == 36, "on-disk layout");
_Static_assert(offsetof(struct disk_chunk, plane_size) == 40, "on-disk layout");
_Static_assert(offsetof(struct disk_chunk, plane_mode) == 72, "on-disk layout");
_Static_assert(offsetof(struct disk_chunk, raw_hash) == 80, "on-disk layout");
_Static_assert(offsetof(struct disk_chunk, stored_hash) == 88, "on-disk layout");
_Static_assert(offsetof(struct disk_chunk, check) == 96, "on-disk layout");

/* Room that a chunk needs at most: header, gap, planes. */
#define DISK_CHUNK_MAX (sizeof(struct disk_chunk) + DISK_GAP_MAX + DISK_STORED_MAX)

/* Head of a footer. Behind it come scalars, skip list, buffers, references, tensors, blobs, gap and
 * trailer, in this order. */
struct disk_footer {
    uint32_t frame_magic; /* DISK_FRAME_FOOTER */
    uint32_t frame_size;
    uint8_t magic[8]; /* "CAIRNFTR" */
    uint32_t buffer_count;
    uint32_t chunk_count; /* references: the chunks of this file */
    uint32_t tensor_count;
    uint32_t blob_count;
    uint32_t skip_count;
    uint32_t gap_size; /* zero bytes before the trailer */
    uint64_t raw_size; /* raw bytes of the buffers' chunks in this file */
};
_Static_assert(sizeof(struct disk_footer) == 48, "on-disk layout");
_Static_assert(offsetof(struct disk_footer, magic) == 8, "on-disk layout");
_Static_assert(offsetof(struct disk_footer, buffer_count) == 16, "on-disk layout");
_Static_assert(offsetof(struct disk_footer, chunk_count) == 20, "on-disk layout");
_Static_assert(offsetof(struct disk_footer, tensor_count) == 24, "on-disk layout");
_Static_assert(offsetof(struct disk_footer, blob_count) == 28, "on-disk layout");
_Static_assert(offsetof(struct disk_footer, skip_count) == 32, "on-disk layout");
_Static_assert(offsetof(struct disk_footer, gap_size) == 36, "on-disk layout");
_Static_assert(offsetof(struct disk_footer, raw_size) == 40, "on-disk layout");

/* Scalars of the state. With the skip list behind them they are the last record of the digest. */
struct disk_scalars {
    uint64_t seed;
    uint64_t step;
    uint64_t epoch;
    uint64_t epoch_step;
    double loss_scale;
    uint64_t loss_scale_good_steps;
    uint64_t skip_count; /* uint64_t step[skip_count] follow */
};
_Static_assert(sizeof(struct disk_scalars) == 56, "on-disk layout");
_Static_assert(offsetof(struct disk_scalars, step) == 8, "on-disk layout");
_Static_assert(offsetof(struct disk_scalars, epoch) == 16, "on-disk layout");
_Static_assert(offsetof(struct disk_scalars, epoch_step) == 24, "on-disk layout");
_Static_assert(offsetof(struct disk_scalars, loss_scale) == 32, "on-disk layout");
_Static_assert(offsetof(struct disk_scalars, loss_scale_good_steps) == 40, "on-disk layout");
_Static_assert(offsetof(struct disk_scalars, skip_count) == 48, "on-disk layout");

struct disk_buffer {
    char name[DISK_NAME]; /* NUL to the end, as all names */
    uint32_t dtype;
    uint32_t in_digest; /* 1 */
    uint64_t count;     /* elements of the whole buffer */
};
_Static_assert(sizeof(struct disk_buffer) == 144, "on-disk layout");
_Static_assert(offsetof(struct disk_buffer, dtype) == 128, "on-disk layout");
_Static_assert(offsetof(struct disk_buffer, in_digest) == 132, "on-disk layout");
_Static_assert(offsetof(struct disk_buffer, count) == 136, "on-disk layout");

/* Chunks lie in the file as they are listed, without a hole, from 4096 to the footer. */
struct disk_reference {
    uint64_t offset; /* of the chunk's header in the file */
    uint64_t index;
    uint32_t buffer;
    uint32_t size; /* header, gap and planes */
};
_Static_assert(sizeof(struct disk_reference) == 24, "on-disk layout");
_Static_assert(offsetof(struct disk_reference, index) == 8, "on-disk layout");
_Static_assert(offsetof(struct disk_reference, buffer) == 16, "on-disk layout");
_Static_assert(offsetof(struct disk_reference, size) == 20, "on-disk layout");

enum disk_kind { DISK_REPLICATED = 1, DISK_SHARDED = 2, DISK_PRIVATE = 3 };

/* A tensor of which this file holds at least a part. */
struct disk_tensor {
    char name[DISK_NAME];
    uint32_t dtype;
    uint32_t buffer;
    uint64_t offset; /* elements from the buffer's start */
    uint32_t ndim;
    uint8_t kind;      /* enum disk_kind */
    uint8_t in_digest; /* 1 */
    uint8_t zero[2];
    uint32_t alias; /* 0, or 1 + the number in this table of the tensor whose place it shares */
    uint32_t zero_too;
    uint64_t shape[DISK_DIMS];  /* of the whole tensor; dimensions from ndim on are 0 */
    uint64_t start[DISK_DIMS];  /* the slice that the buffer holds */
    uint64_t extent[DISK_DIMS]; /* likewise */
};
_Static_assert(sizeof(struct disk_tensor) == 352, "on-disk layout");
_Static_assert(offsetof(struct disk_tensor, dtype) == 128, "on-disk layout");
_Static_assert(offsetof(struct disk_tensor, buffer) == 132, "on-disk layout");
_Static_assert(offsetof(struct disk_tensor, offset) == 136, "on-disk layout");
_Static_assert(offsetof(struct disk_tensor, ndim) == 144, "on-disk layout");
_Static_assert(offsetof(struct disk_tensor, kind) == 148, "on-disk layout");
_Static_assert(offsetof(struct disk_tensor, in_digest) == 149, "on-disk layout");
_Static_assert(offsetof(struct disk_tensor, zero) == 150, "on-disk layout");
_Static_assert(offsetof(struct disk_tensor, alias) == 152, "on-disk layout");
_Static_assert(offsetof(struct disk_tensor, zero_too) == 156, "on-disk layout");
_Static_assert(offsetof(struct disk_tensor, shape) == 160, "on-disk layout");
_Static_assert(offsetof(struct disk_tensor, start) == 224, "on-disk layout");
_Static_assert(offsetof(struct disk_tensor, extent) == 288, "on-disk layout");

struct disk_blob {
    char name[DISK_NAME];
    uint64_t size;
};
_Static_assert(sizeof(struct disk_blob) == 136, "on-disk layout");
_Static_assert(offsetof(struct disk_blob, size) == 128, "on-disk layout");

/* The last bytes of the file. */
struct disk_trailer {
    uint64_t footer_offset;
    uint64_t footer_size;
    uint64_t file_size;
    uint32_t version; /* as in the header */
    uint32_t zero;
    uint8_t hash[16]; /* XXH3-128, canonical, of the footer's bytes before it */
    uint8_t magic[8]; /* "CAIRNEND" */
};
_Static_assert(sizeof(struct disk_trailer) == 56, "on-disk layout");
_Static_assert(offsetof(struct disk_trailer, footer_size) == 8, "on-disk layout");
_Static_assert(offsetof(struct disk_trailer, file_size) == 16, "on-disk layout");
_Static_assert(offsetof(struct disk_trailer, version) == 24, "on-disk layout");
_Static_assert(offsetof(struct disk_trailer, zero) == 28, "on-disk layout");
_Static_assert(offsetof(struct disk_trailer, hash) == 32, "on-disk layout");
_Static_assert(offsetof(struct disk_trailer, magic) == 48, "on-disk layout");

#define DISK_MAGIC_HEADER  "CAIRNSHD"
#define DISK_MAGIC_CHUNK   "CHNK"
#define DISK_MAGIC_FOOTER  "CAIRNFTR"
#define DISK_MAGIC_TRAILER "CAIRNEND"
