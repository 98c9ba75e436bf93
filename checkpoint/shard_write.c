/*
 * Writing a shard file: from front to back, once.
 *
 *     (nothing) --open exclusively--> PARTIAL --write, fsync, close--> WRITTEN
 *                                        |
 *                                        +--any error: close, unlink--> (nothing)
 *
 * Invariants:
 *  (1) Only ST_OK leaves a file behind; the only name that is ever unlinked is one this call made.
 *  (2) The file is fsynced once. After a failed fsync it is thrown away, never fsynced again: the
 *      kernel has marked the pages clean and a second call would lie.
 *  (3) Memory: one codec, one chunk of output, the footer; nothing grows with the state but 24
 * bytes a chunk and 16 bytes a piece.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/chunk.h"
#include "checkpoint/footer.h"
#include "checkpoint/hash.h"
#include "checkpoint/names.h"
#include "common/cleanup.h"
#include "common/fault.h"

struct writer {
    const struct io *io;
    const struct ckpt_state *state;
    const struct ckpt_write_options *options; /* or NULL */
    uint32_t rank, size;
    int fd;
    uint64_t at; /* bytes written */
    struct ckpt_hasher *hasher;
    struct ckpt_codec *codec;
    uint8_t *chunk; /* CKPT_CHUNK_MAX */
    struct disk_reference *references;
    uint32_t reference_count;
    uint64_t chunks_done;
    struct ckpt_report report;
};

void ckpt_report_release(struct ckpt_report *report)
{
    for (uint32_t i = 0; i < report->run_count; i++)
        free(report->runs[i].hashes);
    free(report->runs);
    *report = (struct ckpt_report){ 0 };
}

static bool name_fits(const char *name)
{
    size_t size = strnlen(name, LIMIT_NAME);
    return size > 0 && size < LIMIT_NAME;
}

static bool tensor_fits(const struct ckpt_state *state, const struct ckpt_tensor *tensor)
{
    if (!name_fits(tensor->name) || tensor->buffer >= state->buffer_count || tensor->ndim < 0 ||
        tensor->ndim > 4)
        return false;
    uint64_t count = 1, room = state->buffers[tensor->buffer].count;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        if (tensor->dims[i] == 0 || tensor->dims[i] > room / count)
            return false;
        count *= tensor->dims[i];
    }
    return count <= room && tensor->offset <= room - count;
}

/* Everything that a reader would refuse is refused before a file is made. */
static bool state_fits(const struct ckpt_state *state)
{
    if (!ckpt_name_is_good(state->job) || state->buffer_count > CKPT_BUFFERS_MAX ||
        state->tensor_count > LIMIT_TENSORS || state->blob_count > DISK_BLOBS_MAX ||
        state->scalars.skip_count > DISK_SKIPS_MAX)
        return false;
    for (uint32_t i = 0; i < state->buffer_count; i++) {
        if (!name_fits(state->buffers[i].name) || ckpt_dtype_size(state->buffers[i].dtype) == 0)
            return false;
    }
    for (uint32_t i = 0; i < state->blob_count; i++) {
        if (!name_fits(state->blobs[i].name) || state->blobs[i].size > DISK_BLOB_MAX)
            return false;
    }
    for (uint32_t i = 0; i < state->tensor_count; i++) {
        if (!tensor_fits(state, &state->tensors[i]))
            return false;
    }
    return true;
}

static enum status put(struct writer *writer, const void *data, size_t size)
{
    enum status st = io_write_all(writer->io, writer->fd, data, size, writer->at);
    if (st != ST_OK)
        return st;
    ckpt_hasher_add(writer->hasher, data, size);
    writer->at += size;
    return ST_OK;
}

static enum status put_header(struct writer *writer)
{
    struct disk_header head = {
        .frame_magic = DISK_FRAME_HEADER,
        .frame_size = DISK_HEADER_SIZE - DISK_FRAME_BYTES,
        .version = DISK_VERSION,
        .rank = writer->rank,
        .size = writer->size,
        .generation = writer->state->generation,
        .step = writer->state->scalars.step,
        .chunk_bytes = DISK_CHUNK_BYTES,
        .piece_elements = PIECE_ELEMENTS,
    };
    memcpy(head.magic, DISK_MAGIC_HEADER, sizeof(head.magic));
    memcpy(head.job, writer->state->job, strnlen(writer->state->job, sizeof(head.job) - 1));
    head.check = ckpt_check_of(&head, offsetof(struct disk_header, check));
    return put(writer, &head, sizeof(head));
}

static enum status put_chunk(struct writer *writer, const struct ckpt_chunk_place *place,
                             const void *raw)
{
    uint32_t size = 0;
    enum status st =
        ckpt_chunk_make(writer->codec, place, raw, NULL, writer->at, writer->chunk, &size);
    if (st == ST_OK)
        st = fault_status("save.write");
    if (st != ST_OK)
        return st;
    writer->references[writer->reference_count++] = (struct disk_reference){
        .offset = writer->at,
        .index = place->index,
        .buffer = place->buffer,
        .size = size,
    };
    st = put(writer, writer->chunk, size);
    if (st != ST_OK)
        return st;
    writer->chunks_done++;
    if (writer->options != NULL && writer->options->progress != NULL)
        writer->options->progress(writer->options->progress_arg, writer->chunks_done);
    return ST_OK;
}

/* Elements [first, first + count) of a buffer, which start at a chunk's border. */
static enum status put_buffer(struct writer *writer, uint32_t number, uint64_t first,
                              uint64_t count)
{
    const struct ckpt_buffer *buffer = &writer->state->buffers[number];
    uint64_t element = ckpt_dtype_size(buffer->dtype), step = ckpt_chunk_elements(buffer->dtype);
    if (buffer->data == NULL || buffer->data_first > first)
        return ST_INVALID;
    const char *data = (const char *)buffer->data + (first - buffer->data_first) * element;
    struct ckpt_piece_run *run = &writer->report.runs[writer->report.run_count];
    *run = (struct ckpt_piece_run){
        .buffer = number,
        .first = first / PIECE_ELEMENTS,
        .hashes = malloc((size_t)ckpt_pieces(count) * sizeof(struct ckpt_hash)),
    };
    writer->report.run_count++;
    if (run->hashes == NULL)
        return ST_NO_MEMORY;
    for (uint64_t at = 0; at < count; at += step) {
        uint64_t elements = count - at < step ? count - at : step;
        struct ckpt_chunk_place place = {
            .buffer = number,
            .index = (first + at) / step,
            .dtype = buffer->dtype,
            .raw_size = (uint32_t)(elements * element),
        };
        enum status st = put_chunk(writer, &place, data + at * element);
        if (st != ST_OK)
            return st;
        ckpt_piece_hashes(buffer->dtype, data + at * element, place.raw_size,
                          run->hashes + run->count);
        run->count += ckpt_pieces(elements);
        writer->report.raw_bytes += place.raw_size;
    }
    return ST_OK;
}

static enum status put_blob(struct writer *writer, uint32_t number)
{
    const struct ckpt_blob *blob = &writer->state->blobs[number];
    const char *data = blob->data;
    for (uint64_t at = 0; at < blob->size; at += DISK_CHUNK_BYTES) {
        uint64_t left = blob->size - at;
        struct ckpt_chunk_place place = {
            .buffer = DISK_BLOB | number,
            .index = at / DISK_CHUNK_BYTES,
            .dtype = CKPT_U8,
            .raw_size = (uint32_t)(left < DISK_CHUNK_BYTES ? left : DISK_CHUNK_BYTES),
        };
        enum status st = put_chunk(writer, &place, data + at);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

static enum status put_footer(struct writer *writer)
{
    struct ckpt_footer_parts parts = {
        .state = writer->state,
        .rank = writer->rank,
        .size = writer->size,
        .references = writer->references,
        .reference_count = writer->reference_count,
        .raw_size = writer->report.raw_bytes,
        .offset = writer->at,
    };
    auto_buf struct buf footer;
    buf_init(&footer, DISK_FOOTER_MAX);
    enum status st = ckpt_footer_make(&parts, &footer);
    return st == ST_OK ? put(writer, footer.data, footer.size) : st;
}

/* Where every buffer ends, and the record of scalars. */
static enum status finish_report(struct writer *writer)
{
    struct ckpt_report *report = &writer->report;
    const struct ckpt_state *state = writer->state;
    for (uint32_t i = 0; i < state->buffer_count; i++) {
        report->runs[report->run_count++] = (struct ckpt_piece_run){
            .buffer = i,
            .first = ckpt_pieces(state->buffers[i].count),
        };
    }
    auto_buf struct buf record;
    buf_init(&record, sizeof(struct disk_scalars) + DISK_SKIPS_MAX * sizeof(uint64_t));
    enum status st = ckpt_scalars_record(&state->scalars, &record);
    if (st != ST_OK)
        return st;
    report->scalars = ckpt_hash_of(record.data, record.size);
    report->hash = ckpt_hasher_result(writer->hasher);
    report->size = writer->at;
    return ST_OK;
}

static enum status write_file(struct writer *writer)
{
    const struct ckpt_state *state = writer->state;
    enum status st = put_header(writer);
    for (uint32_t i = 0; i < state->buffer_count && st == ST_OK; i++) {
        uint64_t first = 0, count = 0;
        ckpt_share_elements(state, i, writer->rank, writer->size, &first, &count);
        if (count > 0)
            st = put_buffer(writer, i, first, count);
    }
    for (uint32_t i = 0; i < state->blob_count && writer->rank == 0 && st == ST_OK; i++)
        st = put_blob(writer, i);
    if (st == ST_OK)
        st = fault_status("save.write"); /* a rank may have no chunk at all */
    if (st == ST_OK)
        st = put_footer(writer);
    if (st == ST_OK)
        st = finish_report(writer);
    if (st == ST_OK)
        st = fault_status("save.fsync");
    if (st == ST_OK)
        st = writer->io->fsync(writer->io->self, writer->fd);
    return st;
}

/* Everything that is allocated, before the file is made. */
static enum status prepare(struct writer *writer)
{
    uint64_t chunks = 0, first = 0, count = 0;
    const struct ckpt_state *state = writer->state;
    for (uint32_t i = 0; i < state->buffer_count; i++)
        chunks += ckpt_chunks(state->buffers[i].dtype, state->buffers[i].count);
    ckpt_share(chunks, writer->rank, writer->size, &first, &count);
    for (uint32_t i = 0; i < state->blob_count && writer->rank == 0; i++)
        count += ckpt_chunks(CKPT_U8, state->blobs[i].size);
    if (count > DISK_FOOTER_MAX / sizeof(struct disk_reference))
        return ST_FULL;
    writer->references = calloc((size_t)count + 1, sizeof(*writer->references));
    writer->chunk = malloc(CKPT_CHUNK_MAX);
    writer->report.runs = calloc(2 * (size_t)CKPT_BUFFERS_MAX, sizeof(*writer->report.runs));
    if (writer->references == NULL || writer->chunk == NULL || writer->report.runs == NULL)
        return ST_NO_MEMORY;
    enum status st = ckpt_codec_new(writer->options == NULL ? CKPT_DEFAULT : writer->options->level,
                                    &writer->codec);
    return st == ST_OK ? ckpt_hasher_new(&writer->hasher) : st;
}

static enum status create_and_write(struct writer *writer, const char *path)
{
    const struct io *io = writer->io;
    enum status st = io->open(io->self, path, IO_CREATE_NEW, &writer->fd);
    if (st != ST_OK)
        return st;
    st = fault_status("save.create");
    if (st == ST_OK)
        st = write_file(writer);
    enum status closed = io->close(io->self, writer->fd);
    if (st == ST_OK)
        st = closed;
    if (st == ST_OK)
        st = fault_status("save.written");
    if (st != ST_OK)
        (void)io->unlink(io->self, path);
    return st;
}

enum status ckpt_shard_write(const struct io *io, const char *dir, const struct ckpt_state *state,
                             uint32_t rank, uint32_t size, const struct ckpt_write_options *options,
                             struct ckpt_report *out)
{
    if (rank >= size || size > LIMIT_RANKS || !state_fits(state) ||
        (options != NULL && options->level != CKPT_DEFAULT))
        return ST_INVALID;
    struct writer writer = {
        .io = io,
        .state = state,
        .options = options,
        .rank = rank,
        .size = size,
        .fd = -1,
        .report = { .step = state->scalars.step, .generation = state->generation, .rank = rank },
    };
    ckpt_shard_name(rank, size, writer.report.file);
    char path[LIMIT_PATH];
    enum status st = ckpt_path(dir, writer.report.file, path);
    if (st == ST_OK)
        st = prepare(&writer);
    if (st == ST_OK)
        st = create_and_write(&writer, path);
    ckpt_codec_free(writer.codec);
    ckpt_hasher_free(writer.hasher);
    free(writer.references);
    free(writer.chunk);
    if (st == ST_OK) {
        *out = writer.report;
    } else {
        ckpt_report_release(&writer.report);
    }
    return st;
}
