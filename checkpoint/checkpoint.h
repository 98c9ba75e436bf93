/*
 * Checkpoints: what a state is, and the calls that write, commit, list, verify and read one.
 *
 *     a rank              write/     ckpt_writer_…: one shard file
 *     the coordinator     store/     ckpt_folder_…, ckpt_commit_…, ckpt_manifest_…, ckpt_list
 *     a reader            read/      ckpt_open, ckpt_read_…, ckpt_verify
 *     all of them         format/    the bytes; codec/ how a chunk becomes smaller
 *
 * A checkpoint is a folder `<store>/<job id>/step-…/` (checkpoint/format/names.h) with one shard
 * file per rank and a manifest. It exists if and only if its manifest does: docs/invariants.md,
 * "Checkpoints". Bytes: docs/format.md.
 *
 * This library takes host buffers and knows neither wire nor device. It does all file work through
 * `struct io`.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/io.h"
#include "common/limits.h"
#include "common/reason.h"
#include "common/status.h"

struct ckpt_hash {
    uint8_t byte[16]; /* XXH3-128, canonical (big-endian) */
};
/* 32 lower-case hex digits and a NUL. */
void ckpt_hash_text(const struct ckpt_hash *hash, char out[33]);
MUST_CHECK enum status ckpt_hash_parse(const char *text, struct ckpt_hash *out);

enum ckpt_dtype {
    CKPT_F32 = 1,
    CKPT_BF16 = 2,
    CKPT_F16 = 3,
    CKPT_I32 = 4,
    CKPT_I64 = 5,
    CKPT_U8 = 6
};

#define CKPT_BUFFERS_MAX 16

/* A flat buffer. Ranks that hold the same element have the same bytes of it. No two buffers of a
 * state have the same name, nor do two tensors, or two blobs. */
struct ckpt_buffer {
    char name[LIMIT_NAME]; /* "parameters", "momentum", "adam.m", "adam.v", "statistics" */
    enum ckpt_dtype dtype;
    /* false: data begins with element 0; elements outside of the share needn't be mapped, nobody
     * touches them. true: data are the share's extents of this buffer, one after the other. */
    bool packed;
    uint64_t count;   /* elements */
    const void *data; /* borrowed; NULL when only described */
    /* Hashes of the pieces of data, packed as data is, made when the snapshot was taken; borrowed.
     * Data that is stored is checked against them: a difference is ST_CORRUPT. NULL: they are made
     * while writing. */
    const struct ckpt_hash *pieces;
};

/* Consecutive elements of a buffer: whole chunks, of which the buffer's last may be short. */
struct ckpt_extent {
    uint32_t buffer;
    uint64_t first, count;
};

/* Enough for AdamW's two moments in up to 500 buckets, of which a rank has one extent each, and for
 * the extents that all ranks have. Larger models use larger buckets (lane_wanted in
 * trainer/tape/lane.h). */
#define CKPT_EXTENTS_MAX 1024

/* The part of a state that one rank has: extents that aren't empty, ascending by buffer, then
 * first. None begins where the one before ends; ckpt_share_add keeps it so. All zero: the empty
 * share. */
struct ckpt_share {
    struct ckpt_extent extent[CKPT_EXTENTS_MAX];
    uint32_t count;
};

/* A named part of a buffer. */
struct ckpt_tensor {
    char name[LIMIT_NAME]; /* "layer1.0.conv1.weight", for moments "momentum/layer1…" */
    uint32_t buffer;
    uint64_t offset; /* elements */
    int32_t ndim;
    uint64_t dims[4];
};

/* Data that is saved with the state, but isn't in the digest: pins, settings history, metric
 * cursor, job file. */
struct ckpt_blob {
    char name[LIMIT_NAME];
    const void *data; /* borrowed */
    uint64_t size;
};

/* Most steps of a skip list. Of more steps the oldest are forgotten; the first entry is then
 * CKPT_SKIPS_OLDER plus their number. */
#define CKPT_SKIPS_MAX   65536u
#define CKPT_SKIPS_OLDER (UINT64_C(1) << 63)

/* The last record of the digest; fixed widths in docs/format.md. */
struct ckpt_scalars {
    uint64_t seed;
    uint64_t step;  /* finished steps */
    uint64_t epoch; /* data position: the epoch and step in it that come next */
    uint64_t epoch_step;
    double loss_scale; /* 1 without a scaler */
    uint64_t loss_scale_good_steps;
    const uint64_t *skip; /* steps not trained on; borrowed */
    uint64_t skip_count;  /* entries */
};
/* Returns the number of skipped steps that the list has forgotten; out: the steps that it has. */
uint64_t ckpt_skips_older(const struct ckpt_scalars *scalars, const uint64_t **out_steps,
                          uint64_t *out_count);

struct ckpt_state {
    char job[LIMIT_NAME];
    uint64_t generation;
    const struct ckpt_buffer *buffers; /* in digest order; borrowed, as all below */
    uint32_t buffer_count;
    const struct ckpt_tensor *tensors;
    uint32_t tensor_count;
    const struct ckpt_blob *blobs; /* rank 0 writes them */
    uint32_t blob_count;
    struct ckpt_scalars scalars;
    /* The share that this rank writes: the shares of all ranks together hold every element once.
     * NULL: the even share of all buffers (ckpt_share_even). */
    const struct ckpt_share *share;
    /* The elements that this rank's buffers have, and that it wants of a stored state. NULL:
     * all. */
    const struct ckpt_share *held;
};

/* Pieces of a branch of the digest's tree (docs/format.md): 64 MiB of float32. */
#define CKPT_BRANCH_PIECES 256

/*
 * Hashes of consecutive pieces of one buffer, or of whole branches, so that a report of any share
 * fits a message. An extent of none marks the end: first is then the number of pieces of the whole
 * buffer. Every report has one such extent for every buffer, so that the coordinator, which knows
 * no buffers, can tell whether all reports together cover everything.
 */
struct ckpt_piece_extent {
    uint32_t buffer;
    uint64_t first;           /* piece */
    uint64_t each;            /* pieces that one hash stands for: 1, or CKPT_BRANCH_PIECES */
    uint64_t count;           /* hashes */
    struct ckpt_hash *hashes; /* owned by the report; NULL when count is 0 */
};

/* The committed checkpoint that a checkpoint is a difference to. */
struct ckpt_parent {
    uint64_t step, generation; /* generation 0: none, it stands for itself */
};

/* Most extents of a report: pieces, branches and pieces again for each extent of the share, and an
 * end per buffer. */
#define CKPT_REPORT_EXTENTS_MAX (3 * CKPT_EXTENTS_MAX + CKPT_BUFFERS_MAX)
/* Hashes of a report. With its extents, each below 40 bytes besides, it has to fit a message. */
#define CKPT_REPORT_HASHES_MAX                                                                     \
    ((LIMIT_REPORT_BYTES - CKPT_REPORT_EXTENTS_MAX * 40 - 1024) / sizeof(struct ckpt_hash))

/* A rank's report of its shard file. ckpt_report_release frees it. */
struct ckpt_report {
    uint64_t step, generation;
    struct ckpt_parent parent;
    uint32_t rank;
    uint32_t extent_count;
    char file[64];
    uint64_t size, raw_bytes;
    struct ckpt_hash hash;    /* of every byte of the file */
    struct ckpt_hash scalars; /* of the scalar record */
    struct ckpt_piece_extent *extents;
    uint64_t encode_us; /* processor time of the save, all threads, writes included */
    uint64_t write_us;  /* time in writes */
    uint64_t sync_us;   /* time in fsync */
    uint64_t mistakes;  /* chunks that a coder got wrong, found while writing and stored plain */
};
void ckpt_report_release(struct ckpt_report *report);

/* ---- a rank's side ---- */

enum ckpt_level {
    CKPT_DEFAULT = 0, /* near the entropy bound of the planes, 3 GB/s and more */
    CKPT_FAST = 1,    /* about memcpy's speed */
    CKPT_MAX = 2,     /* smallest */
};

struct ckpt_reader;

/* Options of one file; all may be 0. */
struct ckpt_write_options {
    struct ckpt_reader *base; /* committed, of the same buffers: write differences to it; or NULL */
    void (*progress)(void *arg, uint64_t done); /* per chunk stored; may be NULL */
    void *progress_arg;
};

#define CKPT_THREADS_MAX 64

/*
 * A writer of shard files, made once and used for one file after the other. It has encoder threads,
 * a block that is written when it is full, and a ring of chunks between the threads and the caller,
 * which appends them in order. The file's bytes don't depend on the number of threads.
 *
 * Thread: one at a time. Its threads inherit the priority of the thread that makes it.
 */
struct ckpt_writer;
/* threads: encoder threads beside the caller's; 0: the caller encodes. ST_INVALID: no such level,
 * too many threads. */
MUST_CHECK enum status ckpt_writer_new(enum ckpt_level level, uint32_t threads,
                                       struct ckpt_writer **out);
void ckpt_writer_free(struct ckpt_writer *writer);
struct ckpt_writer_use {
    uint32_t threads;
    uint64_t share_bytes; /* of buffers, that it writes */
    uint64_t base_bytes;  /* of buffers of a base, of all ranks, which it reads; 0: without one */
    bool object;          /* to and from an object store */
};
/* Returns the most host memory that a writer takes. It includes tables, the data read of a base,
 * and the data on its way to or from an object store. */
size_t ckpt_writer_bytes(const struct ckpt_writer_use *use);

/*
 * Writes this rank's shard file into dir: creates exclusively, writes, one fsync. A base that can't
 * be read, or is of other buffers, costs size, never the save. options: or NULL
 *
 * Durable: the bytes on ST_OK; the name with the commit.
 *
 * Errors: ST_FULL, ST_IO, ST_EXISTS; its own file is unlinked then (ST_EXISTS: not). ST_CORRUPT:
 * what was to be stored isn't what its pieces' hashes were made of. ST_INVALID: a reader would
 * refuse the state, or its share is none (ckpt_share_of).
 */
MUST_CHECK enum status ckpt_writer_write(struct ckpt_writer *writer, const struct io *io,
                                         const char *dir, const struct ckpt_state *state,
                                         uint32_t rank, uint32_t size,
                                         const struct ckpt_write_options *options,
                                         struct ckpt_report *out);

/* Like ckpt_writer_write, with a new writer of level default and without threads. */
MUST_CHECK enum status ckpt_shard_write(const struct io *io, const char *dir,
                                        const struct ckpt_state *state, uint32_t rank,
                                        uint32_t size, const struct ckpt_write_options *options,
                                        struct ckpt_report *out);

/* ---- the coordinator's side: checkpoint/store/commit.c opens with the protocol's states ---- */

/* try_number: which try of the save it is, 0: the first (checkpoint/format/names.h). */
MUST_CHECK enum status ckpt_folder_path(const char *store, const char *job, uint64_t step,
                                        uint64_t generation, uint32_t try_number, char *out,
                                        size_t capacity);
/* Makes the folder and its parents, each durable in its parent. A leftover folder of the same name
 * without a manifest is emptied first. ST_EXISTS: it holds a manifest. */
MUST_CHECK enum status ckpt_folder_create(const struct io *io, const char *dir);
/* Before the decision: fsync of the folder, every file there with its reported size. reports in
 * order of rank. ST_INCOMPLETE: a file isn't, or the fsync failed; the save is to be given up, for
 * another fsync would prove nothing. */
MUST_CHECK enum status ckpt_commit_check(const struct io *io, const char *dir,
                                         const struct ckpt_report *reports, uint32_t count);
/* Appends the manifest's bytes to out. The same reports, in order of rank, and wall_time give the
 * same bytes. wall_time is copied into created_at. out_digest is the digest of the state.
 * ST_INVALID: the reports contradict each other, or their pieces don't cover every buffer exactly.
 */
MUST_CHECK enum status ckpt_manifest_make(const struct ckpt_report *reports, uint32_t count,
                                          const char *job, const char *wall_time, struct buf *out,
                                          struct ckpt_hash *out_digest);
/* Idempotent: a manifest with the same bytes that is there already is success. ST_EXISTS: others.
 * Durable: on ST_OK. After an error the same call is repeated, in this process or another. */
MUST_CHECK enum status ckpt_manifest_publish(const struct io *io, const char *dir,
                                             const void *bytes, size_t size);
/* Removes the folder of a save that is given up. ST_EXISTS: it holds a manifest, so it is a
 * checkpoint; nothing was touched. Otherwise as ckpt_remove. */
MUST_CHECK enum status ckpt_folder_drop(const struct io *io, const char *dir);
/* Un-publishes (manifest first, fsync), then removes files and folder. A missing one is success.
 * Files that aren't ours stay, and the folder with them. ST_AGAIN: one of ours is still open, and
 * an NFS client keeps it until it is closed (".nfs…"). */
MUST_CHECK enum status ckpt_remove(const struct io *io, const char *dir);
/* Removes temporary names in dir, a checkpoint's folder or a job's, that calls of generations
 * before this one left when they were cut off. Some hundred at a time; a missing folder is success.
 */
MUST_CHECK enum status ckpt_sweep_temporaries(const struct io *io, const char *dir,
                                              uint32_t before);
/* Renames the folder to bad-…; out is its new path. One that was set aside already is success.
 * Durable: on ST_OK. */
MUST_CHECK enum status ckpt_quarantine(const struct io *io, const char *dir, char *out,
                                       size_t capacity);

/* ---- reading ---- */

struct ckpt_file {
    char name[64];
    uint64_t size;
    struct ckpt_hash hash;
};

struct ckpt_manifest {
    char job[LIMIT_NAME];
    uint64_t step, generation;
    struct ckpt_parent parent;
    struct ckpt_hash digest;
    char created_at[32];
    uint64_t raw_bytes;
    struct ckpt_file *files; /* owned */
    uint32_t file_count;
};
void ckpt_manifest_release(struct ckpt_manifest *manifest);
/* Reads and checks the manifest in dir. ST_NOT_FOUND: there is none. ST_CORRUPT: *what says what is
 * wrong with it. ST_VERSION: another version wrote it; *what names both. what: or NULL. */
MUST_CHECK enum status ckpt_manifest_read(const struct io *io, const char *dir,
                                          struct ckpt_manifest *out, struct reason *what);
/* Like ckpt_manifest_read, from a manifest's bytes; `what` must not be NULL. */
MUST_CHECK enum status ckpt_manifest_parse(const char *bytes, size_t size,
                                           struct ckpt_manifest *out, struct reason *what);
/* Waits until the manifest of a checkpoint of another machine, which is known to exist, is visible
 * here (io_find). If it waits in vain, the next call on the checkpoint fails. */
void ckpt_await(const struct io *io, const char *dir);

struct ckpt_entry {
    char dir[LIMIT_PATH];
    uint64_t step, generation;
    struct ckpt_parent parent;
    uint32_t try_number;
    bool committed; /* has a readable manifest of this job, step and generation; not bad-… */
    bool damaged;   /* has a manifest that isn't one */
    /* Outcome of reading the manifest: ST_OK; damage; ST_NOT_FOUND: there is none; others: it
     * couldn't be read now. */
    enum status manifest;
    bool quarantined; /* bad-… */
    uint64_t bytes;
    struct ckpt_hash digest;
    char created_at[32];
    uint64_t raw_bytes;
    uint32_t files;
};
/* All folders of a job, the newest step first, of one step the highest generation first, of that
 * the last try. *out: free(). */
MUST_CHECK enum status ckpt_list(const struct io *io, const char *store, const char *job,
                                 struct ckpt_entry **out, size_t *out_count);

struct ckpt_read_options {
    uint32_t threads; /* decoder threads beside the caller's */
    /* The wanted elements, for ckpt_read_state only; chunks without any of them aren't read. NULL:
     * everything. */
    const struct ckpt_share *held;
    /* Called for each chunk by the thread that has read it, never by two at once; may be NULL. */
    void (*progress)(void *arg, uint64_t done);
    void *progress_arg;
    /* Called while verifying, for each stretch of a file that was read and checked, with its bytes,
     * by the thread that did. It may sleep. false: no more is read, and the call returns ST_CLOSED.
     * May be NULL. */
    bool (*throttle)(void *arg, uint64_t bytes);
    void *throttle_arg;
};

/* Gets one line per finding, with file and place. */
typedef void (*ckpt_finding_fn)(void *arg, const char *line);
/*
 * Reads every byte: hashes of files, frames, chunks, zero gaps, entry table, digest. Changes
 * nothing. Findings come in the order of the files, with any number of threads.
 * options, fn: or NULL
 * Errors: ST_CORRUPT, ST_INCOMPLETE, ST_VERSION (a later version wrote some of it: whether it is
 *         damaged can't be told) after all findings were reported; ST_NOT_FOUND
 */
MUST_CHECK enum status ckpt_verify(const struct io *io, const char *dir,
                                   const struct ckpt_read_options *options, ckpt_finding_fn fn,
                                   void *arg);
/* Like ckpt_verify for one file, by its number in the manifest, with the chunks of parents that it
 * needs; of all other files only the tables are read. Calls for all files together read all bytes;
 * only the digest of the whole state isn't compared. ST_INVALID: there is no such file */
MUST_CHECK enum status ckpt_verify_file(const struct io *io, const char *dir, uint32_t file,
                                        const struct ckpt_read_options *options, ckpt_finding_fn fn,
                                        void *arg);
/* Computes the digest from the stored bytes (not copied from the manifest). */
MUST_CHECK enum status ckpt_digest(const struct io *io, const char *dir, struct ckpt_hash *out);
/* Computes the digest of a state in memory. ST_INVALID: not all of it is there */
MUST_CHECK enum status ckpt_state_digest(const struct ckpt_state *state, struct ckpt_hash *out);

/* Reads the tables of all shard files, and checks headers, footers and sizes against the manifest.
 * fn, if it isn't NULL, gets what is wrong, now and in later calls on the reader, before they
 * return. */
MUST_CHECK enum status ckpt_open(const struct io *io, const char *dir, ckpt_finding_fn fn,
                                 void *arg, struct ckpt_reader **out);
void ckpt_close(struct ckpt_reader *reader);
const struct ckpt_manifest *ckpt_reader_manifest(const struct ckpt_reader *reader);
const struct ckpt_scalars *ckpt_reader_scalars(const struct ckpt_reader *reader);
uint32_t ckpt_reader_buffers(const struct ckpt_reader *reader, const struct ckpt_buffer **out);
uint32_t ckpt_reader_tensors(const struct ckpt_reader *reader, const struct ckpt_tensor **out);
/* Blob number i: its name (borrowed) and size. false: there are fewer. */
bool ckpt_reader_blob(const struct ckpt_reader *reader, uint32_t i, const char **out_name,
                      uint64_t *out_size);
/* Reads elements [first, first + count) of a buffer; every chunk is checked by its hashes.
 * ST_NOT_FOUND: no such buffer; ST_INVALID: no such elements; ST_CORRUPT, ST_IO, ST_TIMED_OUT.
 * options: or NULL */
MUST_CHECK enum status ckpt_read_buffer(struct ckpt_reader *reader, const char *buffer,
                                        uint64_t first, uint64_t count, void *out,
                                        const struct ckpt_read_options *options);
/*
 * All buffers, whole: buffer i to out[i]; out NULL: they are checked and thrown away. With
 * options->held only its extents, each to its place in out[i], of which nothing else is touched;
 * every chunk is checked by its hashes then, but no digest is compared.
 * Errors: ST_CORRUPT, too, where the digest of what was read isn't the manifest's. ST_INVALID: held
 *         isn't sound. What is in out is undefined after an error
 */
MUST_CHECK enum status ckpt_read_state(struct ckpt_reader *reader, void *const *out,
                                       const struct ckpt_read_options *options);
/* Returns 1 + the number of the file with the chunk that a read found damaged last, for
 * ckpt_verify_file. That finds the damage also where the bad bytes are those of a parent. 0: no
 * chunk was damaged; an error like a digest that differs belongs to no chunk. */
uint32_t ckpt_reader_damaged(const struct ckpt_reader *reader);
/* Reads a blob. *out: owned by the caller, NUL-terminated. */
MUST_CHECK enum status ckpt_read_blob(struct ckpt_reader *reader, const char *name, char **out,
                                      size_t *out_size);

/* ---- arithmetic ---- */

/* Chunk size in elements of a dtype; 0: unknown dtype. */
uint64_t ckpt_chunk_elements(enum ckpt_dtype dtype);
uint64_t ckpt_dtype_size(enum ckpt_dtype dtype);
uint64_t ckpt_tensor_elements(const struct ckpt_tensor *tensor);
/* Pieces and chunks of a buffer with that number of elements; the last of each may be shorter. */
uint64_t ckpt_pieces(uint64_t elements);
uint64_t ckpt_chunks(enum ckpt_dtype dtype, uint64_t elements);
/* The part that rank, one of size ranks, has of a list of chunks: [*first, *first + *count). */
void ckpt_share_chunks(uint64_t chunks, uint32_t rank, uint32_t size, uint64_t *first,
                       uint64_t *count);

/* ---- shares ---- */

/* Checks that the share is as struct ckpt_share says, for the state's buffers: else ST_INVALID. */
MUST_CHECK enum status ckpt_share_check(const struct ckpt_state *state,
                                        const struct ckpt_share *share);
/* Adds an extent, of which nothing is in the share yet; neighbours become one. No elements:
 * nothing.
 * Errors: ST_INVALID  no such elements, not at chunks' borders, or some are there already
 *         ST_FULL     CKPT_EXTENTS_MAX */
MUST_CHECK enum status ckpt_share_add(const struct ckpt_state *state, uint32_t buffer,
                                      uint64_t first, uint64_t count, struct ckpt_share *share);
/* Adds the even share of rank, one of size, in the buffers whose bits are set (bit i: buffer i):
 * their chunks, one buffer after the other, are one list that is dealt out evenly. Errors: as
 * ckpt_share_add */
#define CKPT_ALL_BUFFERS UINT32_MAX
MUST_CHECK enum status ckpt_share_even(const struct ckpt_state *state, uint32_t buffers,
                                       uint32_t rank, uint32_t size, struct ckpt_share *share);
/* Returns the share that rank writes of a state: state->share, else the even one.
 * Errors: ST_INVALID  it isn't sound, or some of it isn't held
 *         ST_FULL     a report of its hashes wouldn't fit a message */
MUST_CHECK enum status ckpt_share_of(const struct ckpt_state *state, uint32_t rank, uint32_t size,
                                     struct ckpt_share *out);
/* Returns the share that this rank has of a state: state->held, else all. ST_INVALID: it isn't
 * sound */
MUST_CHECK enum status ckpt_share_held(const struct ckpt_state *state, struct ckpt_share *out);
uint64_t ckpt_share_bytes(const struct ckpt_state *state, const struct ckpt_share *share);
/* Returns the first extent that ends behind that element of a buffer, or is of a later buffer;
 * share->count: there is none. With element 0: the buffer's first extent. */
uint32_t ckpt_share_find(const struct ckpt_share *share, uint32_t buffer, uint64_t element);
/* Returns the first stretch of elements [first, first + count) of a buffer that the share has;
 * false: it has none of them. */
bool ckpt_share_part(const struct ckpt_share *share, uint32_t buffer, uint64_t first,
                     uint64_t count, uint64_t *out_first, uint64_t *out_count);
/* Returns the index of an extent's first element in the data of its buffer; the hashes of its
 * pieces begin at that element's piece. */
uint64_t ckpt_share_offset(const struct ckpt_state *state, const struct ckpt_share *share,
                           uint32_t extent);
