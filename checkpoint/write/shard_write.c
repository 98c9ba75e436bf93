/*
 * Writing a shard file: from front to back, once.
 *
 *     (nothing) ─ open exclusively ─▶ partial ─ write, fsync, close ─▶ written
 *                                       └───── any error: close, unlink ─▶ (nothing)
 *
 *     chunks of the share ─ threads ─▶ ring of encoded chunks ─ caller, in order ─▶ block ─▶ file
 *
 * Invariants:
 *  (1) Only ST_OK leaves a file behind; the only name that is ever unlinked is one this call made.
 *  (2) The file is fsynced once. After a failed fsync it is thrown away, never fsynced again: the
 *      kernel has marked the pages clean and a second call would lie. ST_AGAIN: another file is
 *      written from the front, three at most.
 *  (3) Where a chunk lies is known when those before it are encoded: the caller places it. So the
 *      bytes are the same however many threads there are.
 *  (4) Memory is the writer's, kept from file to file; only hashes of pieces are a file's own.
 *  (5) A base is only ever a help. One that can't be read costs size, never the save. The file
 *      names it as its parent nevertheless, since other ranks may have: all files must agree on it.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/footer.h"
#include "checkpoint/format/hash.h"
#include "checkpoint/format/names.h"
#include "checkpoint/read/cursor.h"
#include "checkpoint/read/open.h"
#include "checkpoint/read/set.h"
#include "checkpoint/s3/s3.h"
#include "checkpoint/write/encode_ring.h"
#include "checkpoint/write/shard_file.h"
#include "checkpoint/write/shard_parts.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/fault.h"

#define BLOCK_BYTES     ((size_t)4 << 20) /* of one write */
#define BLOCK_BYTES_MIN ((size_t)64 << 10)
#define TABLE_BYTES     ((size_t)1 << 20)
#define ATTEMPTS        3

struct ckpt_writer {
    uint32_t threads;
    struct ckpt_ring *ring;
    struct ckpt_shard_file file;
    struct disk_reference *references;
    size_t reference_capacity;
    struct buf footer;

    /* The save under way. */
    const struct ckpt_state *state;
    uint32_t rank, size;
    struct ckpt_reader *base; /* that fits, with a cursor for each encoder; or NULL */
    struct ckpt_parts parts;
    uint32_t reference_count;
    atomic_uint_least64_t mistakes; /* of all encoders */
    struct ckpt_hash *hashes;       /* of all pieces of the share; parts lead into it */
    struct ckpt_report report;
};

static void release_extents(struct ckpt_report *report)
{
    for (uint32_t i = 0; i < report->extent_count; i++)
        free(report->extents[i].hashes);
    free(report->extents);
    report->extents = NULL;
    report->extent_count = 0;
}

void ckpt_report_release(struct ckpt_report *report)
{
    release_extents(report);
    *report = (struct ckpt_report){ 0 };
}

/* ---- encoding: on the ring's threads ---- */

static uint32_t encoders_of(const struct ckpt_writer *writer)
{
    return writer->threads == 0 ? 1 : writer->threads;
}

/* Callback of struct ckpt_upcoming: the base's place of chunk `number` of this file. */
static const struct ckpt_place *base_place(const void *arg, size_t number)
{
    const struct ckpt_writer *writer = arg;
    struct ckpt_chunk_place place;
    const uint8_t *raw = NULL;
    (void)ckpt_parts_find(&writer->parts, number, &place, &raw);
    return (place.buffer & DISK_BLOB) != 0
               ? NULL
               : ckpt_reader_place(writer->base, place.buffer, place.index);
}

/* Reads the same chunk of the base; NULL: the chunk stands for itself. */
static const uint8_t *read_base(const struct ckpt_writer *writer,
                                const struct ckpt_encoder *encoder,
                                const struct ckpt_chunk_place *place, uint64_t number)
{
    if (writer->base == NULL || (place->buffer & DISK_BLOB) != 0)
        return NULL;
    const struct ckpt_place *there = ckpt_reader_place(writer->base, place->buffer, place->index);
    struct ckpt_cursor *cursor = writer->base->cursors[encoder->number];
    const bool alone = writer->threads <= 1; /* else others take the chunks that follow */
    const struct ckpt_upcoming upcoming = { .at = base_place,
                                            .arg = writer,
                                            .next = number,
                                            .end = alone ? writer->parts.chunks : number + 1 };
    ckpt_cursor_expect(cursor, &upcoming);
    enum status st = ckpt_cursor_read(cursor, there, encoder->base);
    return st == ST_OK ? encoder->base : NULL;
}

/* The pieces' hashes go into the report; they must be those of the snapshot. */
static enum status hash_pieces(const struct ckpt_part *part, const struct ckpt_chunk_place *place,
                               const uint8_t *raw)
{
    if (part->hashes == NULL)
        return ST_OK;
    const uint64_t element = ckpt_dtype_size(part->dtype);
    const uint64_t piece =
        (place->index - part->index) * (ckpt_chunk_elements(part->dtype) / PIECE_ELEMENTS);
    const uint64_t count = ckpt_pieces(place->raw_size / element);
    ckpt_piece_hashes(part->dtype, raw, place->raw_size, part->hashes + piece);
    if (part->expected == NULL)
        return ST_OK;
    for (uint64_t i = 0; i < count; i++) {
        if (!ckpt_hash_equal(&part->hashes[piece + i], &part->expected[piece + i]))
            return ST_CORRUPT;
    }
    return ST_OK;
}

/* A ckpt_ring_fn. */
static enum status encode_chunk(void *arg, struct ckpt_encoder *encoder, uint64_t number,
                                struct ckpt_encoded *chunk)
{
    struct ckpt_writer *writer = arg;
    const uint8_t *raw = NULL;
    const struct ckpt_part *part = ckpt_parts_find(&writer->parts, number, &chunk->place, &raw);
    const uint8_t *base = read_base(writer, encoder, &chunk->place, number);
    const uint64_t mistakes = ckpt_codec_mistakes(encoder->codec);
    enum status st =
        ckpt_chunk_make(encoder->codec, &chunk->place, raw, base, 0, chunk->bytes, &chunk->size);
    atomic_fetch_add(&writer->mistakes, ckpt_codec_mistakes(encoder->codec) - mistakes);
    /* Afterwards: a change of the snapshot while it was encoded must be found, too. */
    return st == ST_OK ? hash_pieces(part, &chunk->place, raw) : st;
}

/* ---- the file: on the caller's thread ---- */

static enum status put_header(struct ckpt_writer *writer)
{
    const struct ckpt_report *report = &writer->report;
    struct disk_header head = {
        .frame_magic = DISK_FRAME_HEADER,
        .frame_size = DISK_HEADER_SIZE - DISK_FRAME_BYTES,
        .version = DISK_VERSION,
        .features = report->parent.generation != 0 ? DISK_DIFFERS : 0,
        .rank = writer->rank,
        .size = writer->size,
        .generation = writer->state->generation,
        .step = writer->state->scalars.step,
        .chunk_bytes = DISK_CHUNK_BYTES,
        .piece_elements = PIECE_ELEMENTS,
        .parent_step = report->parent.step,
        .parent_generation = report->parent.generation,
    };
    memcpy(head.magic, DISK_MAGIC_HEADER, sizeof(head.magic));
    memcpy(head.job, writer->state->job, strnlen(writer->state->job, sizeof(head.job) - 1));
    head.check = ckpt_check_of(&head, offsetof(struct disk_header, check));
    return ckpt_shard_file_put(&writer->file, &head, sizeof(head));
}

static enum status put_chunk(struct ckpt_writer *writer, const struct ckpt_encoded *chunk)
{
    static const uint8_t zero[DISK_GAP_MAX];
    struct ckpt_shard_file *file = &writer->file;
    struct disk_chunk head;
    memcpy(&head, chunk->bytes, sizeof(head));
    const uint8_t *stored = chunk->bytes + sizeof(head) + head.gap_size;
    ckpt_chunk_settle(&head, file->at);
    CHECK(writer->reference_count < writer->reference_capacity);
    writer->references[writer->reference_count++] = (struct disk_reference){
        .offset = file->at,
        .index = chunk->place.index,
        .buffer = chunk->place.buffer,
        .size = (uint32_t)sizeof(head) + head.gap_size + head.stored_size,
    };
    enum status st = fault_status("save.write");
    if (st == ST_OK)
        st = ckpt_shard_file_put(file, &head, sizeof(head));
    if (st == ST_OK)
        st = ckpt_shard_file_put(file, zero, head.gap_size);
    return st == ST_OK ? ckpt_shard_file_put(file, stored, head.stored_size) : st;
}

static enum status put_chunks(struct ckpt_writer *writer, const struct ckpt_write_options *options,
                              int64_t *out_ns)
{
    enum status st = ST_OK;
    ckpt_ring_begin(writer->ring, writer->parts.chunks, encode_chunk, writer);
    for (uint64_t i = 0; i < writer->parts.chunks && st == ST_OK; i++) {
        const struct ckpt_encoded *chunk = NULL;
        st = ckpt_ring_next(writer->ring, &chunk);
        if (st == ST_OK)
            st = put_chunk(writer, chunk);
        if (st == ST_OK && options->progress != NULL)
            options->progress(options->progress_arg, i + 1);
    }
    ckpt_ring_end(writer->ring, out_ns);
    for (uint32_t i = 0; writer->base != NULL && i < encoders_of(writer); i++)
        ckpt_cursor_expect(writer->base->cursors[i], NULL);
    return st;
}

static enum status put_footer(struct ckpt_writer *writer)
{
    struct ckpt_footer_parts parts = {
        .state = writer->state,
        .share = &writer->parts.share,
        .rank = writer->rank,
        .references = writer->references,
        .reference_count = writer->reference_count,
        .raw_size = writer->parts.raw_bytes,
        .offset = writer->file.at,
    };
    CHECK(writer->reference_count == writer->parts.chunks);
    buf_clear(&writer->footer);
    enum status st = ckpt_footer_make(&parts, &writer->footer);
    if (st != ST_OK)
        return st;
    return ckpt_shard_file_put(&writer->file, writer->footer.data, writer->footer.size);
}

static uint64_t pieces_of(const struct ckpt_part *part)
{
    return ckpt_pieces(part->bytes / ckpt_dtype_size(part->dtype));
}

/* Adds the hashes of pieces [begin, end) of a part to the report: of each piece, or of each
 * branch. */
static enum status add_extent(struct ckpt_report *report, const struct ckpt_part *part,
                              uint64_t begin, uint64_t end, uint64_t each)
{
    if (begin == end)
        return ST_OK;
    const uint64_t first = part->index * (ckpt_chunk_elements(part->dtype) / PIECE_ELEMENTS);
    struct ckpt_piece_extent extent = {
        .buffer = part->buffer, .first = first + begin, .each = each, .count = (end - begin) / each
    };
    const struct ckpt_hash *pieces = part->hashes + begin;
    extent.hashes = malloc((size_t)extent.count * sizeof(*extent.hashes));
    if (extent.hashes == NULL)
        return ST_NO_MEMORY;
    for (uint64_t i = 0; i < extent.count; i++)
        extent.hashes[i] = each == 1 ? pieces[i] : ckpt_branch_of(pieces + i * each, each);
    report->extents[report->extent_count++] = extent;
    return ST_OK;
}

/* Pieces up to the first border of a branch, whole branches, pieces again. */
static enum status add_extents(struct ckpt_report *report, const struct ckpt_part *part)
{
    const uint64_t count = pieces_of(part);
    const uint64_t first = part->index * (ckpt_chunk_elements(part->dtype) / PIECE_ELEMENTS);
    const uint64_t begin = ckpt_branches(first) * CKPT_BRANCH_PIECES;
    const uint64_t end = (first + count) / CKPT_BRANCH_PIECES * CKPT_BRANCH_PIECES;
    if (begin >= end)
        return add_extent(report, part, 0, count, 1);
    enum status st = add_extent(report, part, 0, begin - first, 1);
    if (st == ST_OK)
        st = add_extent(report, part, begin - first, end - first, CKPT_BRANCH_PIECES);
    return st == ST_OK ? add_extent(report, part, end - first, count, 1) : st;
}

/* Hashes, where every buffer ends, and the record of scalars. */
static enum status finish_report(struct ckpt_writer *writer)
{
    struct ckpt_report *report = &writer->report;
    const struct ckpt_state *state = writer->state;
    CHECK(report->extents == NULL);
    const size_t room = (size_t)3 * writer->parts.share.count + state->buffer_count;
    report->extents = calloc(room + 1, sizeof(*report->extents));
    enum status st = report->extents == NULL ? ST_NO_MEMORY : ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < writer->parts.share.count; i++)
        st = add_extents(report, &writer->parts.part[i]);
    if (st == ST_OK)
        st = ckpt_scalars_hash(&state->scalars, &report->scalars);
    if (st != ST_OK)
        return st;
    for (uint32_t i = 0; i < state->buffer_count; i++) {
        CHECK(report->extent_count < room);
        report->extents[report->extent_count++] = (struct ckpt_piece_extent){
            .buffer = i,
            .first = ckpt_pieces(state->buffers[i].count),
            .each = 1,
        };
    }
    report->hash = ckpt_hasher_result(writer->file.hasher);
    report->size = writer->file.at;
    report->raw_bytes = writer->parts.raw_bytes;
    report->mistakes = atomic_load(&writer->mistakes);
    return ST_OK;
}

static enum status write_file(struct ckpt_writer *writer, const struct ckpt_write_options *options,
                              int64_t *out_ns)
{
    enum status st = put_header(writer);
    if (st == ST_OK)
        st = put_chunks(writer, options, out_ns);
    if (st == ST_OK)
        st = fault_status("save.write"); /* a rank may have no chunk at all */
    if (st == ST_OK)
        st = put_footer(writer);
    if (st == ST_OK)
        st = finish_report(writer);
    return st == ST_OK ? ckpt_shard_file_sync(&writer->file) : st;
}

/* Returns the most bytes of a file with so many chunks. */
static uint64_t size_max_of(uint64_t chunks)
{
    return DISK_HEADER_SIZE + chunks * DISK_CHUNK_MAX + DISK_FOOTER_MAX;
}

static enum status create_and_write(struct ckpt_writer *writer, const struct io *io,
                                    const char *path, const struct ckpt_write_options *options)
{
    const int64_t begin_ns = clock_thread_ns();
    int64_t threads_ns = 0;
    enum status st =
        ckpt_shard_file_create(&writer->file, io, path, size_max_of(writer->parts.chunks));
    if (st != ST_OK)
        return st;
    st = fault_status("save.create");
    if (st == ST_OK)
        st = write_file(writer, options, &threads_ns);
    enum status closed = ckpt_shard_file_close(&writer->file);
    if (st == ST_OK)
        st = closed;
    if (st == ST_OK)
        st = fault_status("save.written");
    if (st != ST_OK && st != ST_EXISTS) /* fsync's, in S3: the file of that name is another's */
        (void)io->unlink(io->self, path);
    writer->report.encode_us = (uint64_t)(clock_thread_ns() - begin_ns + threads_ns) / 1000;
    writer->report.write_us = (uint64_t)writer->file.write_ns / 1000;
    writer->report.sync_us = (uint64_t)writer->file.sync_ns / 1000;
    return st;
}

/* An object store may want all of it again: it knows of nobody's fault. */
static enum status write_until_taken(struct ckpt_writer *writer, const struct io *io,
                                     const char *path, const struct ckpt_write_options *options)
{
    enum status st = ST_AGAIN;
    for (int i = 0; i < ATTEMPTS && st == ST_AGAIN; i++) {
        release_extents(&writer->report);
        writer->reference_count = 0;
        atomic_store(&writer->mistakes, 0);
        st = create_and_write(writer, io, path, options);
    }
    return st;
}

/* ---- before the file is made ---- */

/* True if the base is of the same job, an earlier step and the same buffers, and its chain has
 * room. */
static bool base_fits(const struct ckpt_state *state, const struct ckpt_reader *base)
{
    const struct ckpt_buffer *buffers = NULL;
    if (ckpt_reader_buffers(base, &buffers) != state->buffer_count ||
        strcmp(ckpt_reader_manifest(base)->job, state->job) != 0 ||
        ckpt_reader_manifest(base)->step >= state->scalars.step)
        return false;
    for (uint32_t i = 0; i < state->buffer_count; i++) {
        const struct ckpt_buffer *mine = &state->buffers[i];
        if (strcmp(buffers[i].name, mine->name) != 0 || buffers[i].dtype != mine->dtype ||
            buffers[i].count != mine->count)
            return false;
    }
    uint32_t parents = 1;
    while (base->parent != NULL && parents <= DISK_CHAIN_MAX) {
        base = base->parent;
        parents++;
    }
    return parents <= DISK_CHAIN_MAX;
}

/* Takes the base if it fits. All ranks decide alike: it depends on tables that all can read. Damage
 * of a chunk of the base is found by one of them, and costs that chunk's size only. */
static enum status take_base(struct ckpt_writer *writer, struct ckpt_reader *base)
{
    writer->base = NULL;
    if (base == NULL || !base_fits(writer->state, base))
        return ST_OK;
    enum status st = ckpt_reader_need_cursors(base, encoders_of(writer));
    if (st != ST_OK)
        return st;
    const struct ckpt_manifest *manifest = ckpt_reader_manifest(base);
    writer->report.parent =
        (struct ckpt_parent){ .step = manifest->step, .generation = manifest->generation };
    writer->base = base;
    return ST_OK;
}

static enum status make_references(struct ckpt_writer *writer)
{
    const uint64_t count = writer->parts.chunks;
    if (count > DISK_FOOTER_MAX / sizeof(struct disk_reference))
        return ST_INVALID; /* more than a file can list */
    if (count <= writer->reference_capacity)
        return ST_OK;
    free(writer->references);
    writer->reference_capacity = 0;
    writer->references = calloc((size_t)count, sizeof(*writer->references));
    if (writer->references == NULL)
        return ST_NO_MEMORY;
    writer->reference_capacity = (size_t)count;
    return ST_OK;
}

/* Room for the hashes of all pieces of the share. */
static enum status make_hashes(struct ckpt_writer *writer)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < writer->parts.share.count; i++)
        all += pieces_of(&writer->parts.part[i]);
    writer->hashes = malloc((size_t)(all + 1) * sizeof(*writer->hashes));
    if (writer->hashes == NULL)
        return ST_NO_MEMORY;
    struct ckpt_hash *at = writer->hashes;
    for (uint32_t i = 0; i < writer->parts.share.count; i++) {
        writer->parts.part[i].hashes = at;
        at += pieces_of(&writer->parts.part[i]);
    }
    return ST_OK;
}

static enum status prepare_save(struct ckpt_writer *writer, const struct ckpt_state *state,
                                uint32_t rank, uint32_t size,
                                const struct ckpt_write_options *options)
{
    enum status st = ckpt_parts_of(state, rank, size, &writer->parts);
    if (st != ST_OK)
        return st;
    writer->state = state;
    writer->rank = rank;
    writer->size = size;
    writer->report = (struct ckpt_report){
        .step = state->scalars.step,
        .generation = state->generation,
        .rank = rank,
    };
    st = take_base(writer, options->base);
    if (st == ST_OK)
        st = make_references(writer);
    return st == ST_OK ? make_hashes(writer) : st;
}

/* ---- the writer ---- */

static enum status writer_new(enum ckpt_level level, uint32_t threads, size_t block_bytes,
                              struct ckpt_writer **out)
{
    if (level > CKPT_MAX || threads > CKPT_THREADS_MAX)
        return ST_INVALID;
    struct ckpt_writer *writer = calloc(1, sizeof(*writer));
    if (writer == NULL)
        return ST_NO_MEMORY;
    writer->threads = threads;
    buf_init(&writer->footer, DISK_FOOTER_MAX);
    enum status st = ckpt_shard_file_init(&writer->file, block_bytes);
    if (st == ST_OK)
        st = ckpt_ring_new(level, threads, &writer->ring);
    if (st != ST_OK) {
        ckpt_writer_free(writer);
        return st;
    }
    *out = writer;
    return ST_OK;
}

enum status ckpt_writer_new(enum ckpt_level level, uint32_t threads, struct ckpt_writer **out)
{
    return writer_new(level, threads, BLOCK_BYTES, out);
}

void ckpt_writer_free(struct ckpt_writer *writer)
{
    if (writer == NULL)
        return;
    ckpt_ring_free(writer->ring);
    ckpt_shard_file_release(&writer->file);
    buf_release(&writer->footer);
    free(writer->references);
    free(writer);
}

/* Returns the most chunks that buffers of so many bytes have. */
static uint64_t chunks_of(uint64_t bytes)
{
    return bytes / DISK_CHUNK_BYTES + CKPT_BUFFERS_MAX;
}

/* Bytes of tables: of references, in the writer's table and in the footer made of it, and of hashes
 * of pieces of the smallest elements. */
static size_t table_bytes(uint64_t share_bytes)
{
    const uint64_t chunks = chunks_of(share_bytes);
    const uint64_t pieces = share_bytes / PIECE_ELEMENTS + CKPT_BUFFERS_MAX;
    return TABLE_BYTES +
           (size_t)(3 * chunks * sizeof(struct disk_reference) + pieces * sizeof(struct ckpt_hash));
}

/* Bytes of a base and its parents: tables of all files, and for each encoder a file of each, with a
 * chunk. */
static size_t base_bytes(const struct ckpt_writer_use *use)
{
    const size_t levels = DISK_CHAIN_MAX + 1, cursors = use->threads == 0 ? 1 : use->threads;
    const uint64_t chunks = chunks_of(use->base_bytes);
    const size_t tables = TABLE_BYTES / 4 + (size_t)chunks * (sizeof(struct disk_reference) +
                                                              sizeof(struct ckpt_place));
    const size_t file = DISK_CHUNK_MAX + (use->object ? s3_read_bytes() : 0);
    return levels * tables + cursors * (CKPT_CODEC_BYTES + levels * file);
}

size_t ckpt_writer_bytes(const struct ckpt_writer_use *use)
{
    return ckpt_ring_bytes(use->threads) + ckpt_shard_file_bytes(BLOCK_BYTES) +
           table_bytes(use->share_bytes) + (use->base_bytes > 0 ? base_bytes(use) : 0) +
           (use->object ? s3_write_bytes(size_max_of(chunks_of(use->share_bytes))) : 0);
}

enum status ckpt_writer_write(struct ckpt_writer *writer, const struct io *io, const char *dir,
                              const struct ckpt_state *state, uint32_t rank, uint32_t size,
                              const struct ckpt_write_options *options, struct ckpt_report *out)
{
    static const struct ckpt_write_options none = { .base = NULL };
    char path[LIMIT_PATH];
    CHECK(writer->state == NULL); /* one save at a time */
    if (options == NULL)
        options = &none;
    enum status st = prepare_save(writer, state, rank, size, options);
    if (st == ST_OK) {
        ckpt_shard_name(rank, size, writer->report.file);
        st = ckpt_path(dir, writer->report.file, path);
    }
    if (st == ST_OK)
        st = write_until_taken(writer, io, path, options);
    if (st == ST_OK) {
        *out = writer->report;
    } else {
        ckpt_report_release(&writer->report);
    }
    free(writer->hashes);
    writer->hashes = NULL;
    writer->report = (struct ckpt_report){ 0 };
    writer->base = NULL;
    writer->state = NULL;
    return st;
}

/* Returns the size of a block, which is smaller where the file wouldn't fill a large one. */
static size_t block_for(const struct ckpt_state *state)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < state->buffer_count && i < CKPT_BUFFERS_MAX; i++)
        bytes += ckpt_chunks(state->buffers[i].dtype, state->buffers[i].count) * DISK_CHUNK_BYTES;
    return bytes < BLOCK_BYTES ? BLOCK_BYTES_MIN : BLOCK_BYTES;
}

enum status ckpt_shard_write(const struct io *io, const char *dir, const struct ckpt_state *state,
                             uint32_t rank, uint32_t size, const struct ckpt_write_options *options,
                             struct ckpt_report *out)
{
    struct ckpt_writer *writer = NULL;
    enum status st = writer_new(CKPT_DEFAULT, 0, block_for(state), &writer);
    if (st == ST_OK)
        st = ckpt_writer_write(writer, io, dir, state, rank, size, options, out);
    ckpt_writer_free(writer);
    return st;
}
