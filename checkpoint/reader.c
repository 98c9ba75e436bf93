/*
 * Reading a state: by slices, chunk by chunk, each checked before its bytes are handed out.
 *
 * Memory: the footers, one chunk as stored and one decoded. One file is open at a time.
 */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/hash.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "checkpoint/set.h"
#include "common/cleanup.h"

#define NO_FILE UINT32_MAX

struct ckpt_reader {
    const struct io *io;
    char dir[LIMIT_PATH];
    struct ckpt_findings findings;
    struct ckpt_manifest manifest;
    struct ckpt_set set;
    struct ckpt_scalars scalars; /* its skip list lies in the first footer */
    struct ckpt_buffer buffers[CKPT_BUFFERS_MAX];
    uint32_t buffer_count;
    struct ckpt_tensor *tensors;
    uint32_t tensor_count;
    struct ckpt_codec *codec;
    uint8_t *stored; /* CKPT_CHUNK_MAX */
    uint8_t *raw;    /* DISK_CHUNK_BYTES */
    uint32_t file;   /* whose descriptor is open, or NO_FILE */
    int fd;
};

static void describe(struct ckpt_reader *reader)
{
    const struct ckpt_footer *footer = &reader->set.shards[0].footer;
    reader->scalars = (struct ckpt_scalars){
        .seed = footer->scalars->seed,
        .step = footer->scalars->step,
        .epoch = footer->scalars->epoch,
        .epoch_step = footer->scalars->epoch_step,
        .loss_scale = footer->scalars->loss_scale,
        .loss_scale_good_steps = footer->scalars->loss_scale_good_steps,
        .skip = footer->skips,
        .skip_count = footer->head->skip_count,
    };
    reader->buffer_count = footer->head->buffer_count;
    for (uint32_t i = 0; i < reader->buffer_count; i++) {
        struct ckpt_buffer *buffer = &reader->buffers[i];
        memcpy(buffer->name, footer->buffers[i].name, sizeof(buffer->name));
        buffer->dtype = (enum ckpt_dtype)footer->buffers[i].dtype;
        buffer->count = footer->buffers[i].count;
    }
}

static enum status open_all(struct ckpt_reader *reader)
{
    const char *what = NULL;
    enum status st = ckpt_manifest_load(reader->io, reader->dir, &reader->manifest, &what);
    if (ckpt_is_damage(st))
        return ckpt_finding(&reader->findings, st, CKPT_MANIFEST, "%s", what);
    if (st == ST_OK) {
        st = ckpt_set_open(reader->io, reader->dir, &reader->manifest, &reader->findings,
                           &reader->set);
    }
    if (st == ST_OK)
        st = reader->findings.worst;
    if (st == ST_OK)
        st = ckpt_set_join(&reader->set, &reader->manifest, &reader->findings);
    if (st == ST_OK) {
        st = ckpt_set_tensors(&reader->set, &reader->manifest, &reader->findings, &reader->tensors,
                              &reader->tensor_count);
    }
    if (st == ST_OK)
        st = ckpt_codec_new(CKPT_DEFAULT, &reader->codec);
    if (st != ST_OK)
        return st;
    reader->stored = malloc(CKPT_CHUNK_MAX);
    reader->raw = malloc(DISK_CHUNK_BYTES);
    if (reader->stored == NULL || reader->raw == NULL)
        return ST_NO_MEMORY;
    describe(reader);
    return ST_OK;
}

enum status ckpt_open_explained(const struct io *io, const char *dir, ckpt_finding_fn fn, void *arg,
                                struct ckpt_reader **out)
{
    struct ckpt_reader *reader = calloc(1, sizeof(*reader));
    if (reader == NULL)
        return ST_NO_MEMORY;
    reader->io = io;
    reader->findings.fn = fn;
    reader->findings.arg = arg;
    reader->file = NO_FILE;
    size_t size = strlen(dir);
    enum status st = size < sizeof(reader->dir) ? ST_OK : ST_FULL;
    if (st == ST_OK) {
        memcpy(reader->dir, dir, size + 1);
        st = open_all(reader);
    }
    if (st != ST_OK) {
        ckpt_close(reader);
        return st;
    }
    *out = reader;
    return ST_OK;
}

enum status ckpt_open(const struct io *io, const char *dir, struct ckpt_reader **out)
{
    return ckpt_open_explained(io, dir, NULL, NULL, out);
}

static void close_file(struct ckpt_reader *reader)
{
    if (reader->file != NO_FILE)
        (void)reader->io->close(reader->io->self, reader->fd);
    reader->file = NO_FILE;
}

void ckpt_close(struct ckpt_reader *reader)
{
    if (reader == NULL)
        return;
    close_file(reader);
    ckpt_codec_free(reader->codec);
    free(reader->stored);
    free(reader->raw);
    free(reader->tensors);
    ckpt_set_release(&reader->set);
    ckpt_manifest_release(&reader->manifest);
    free(reader);
}

const struct ckpt_manifest *ckpt_reader_manifest(const struct ckpt_reader *reader)
{
    return &reader->manifest;
}

const struct ckpt_scalars *ckpt_reader_scalars(const struct ckpt_reader *reader)
{
    return &reader->scalars;
}

uint32_t ckpt_reader_buffers(const struct ckpt_reader *reader, const struct ckpt_buffer **out)
{
    *out = reader->buffers;
    return reader->buffer_count;
}

uint32_t ckpt_reader_tensors(const struct ckpt_reader *reader, const struct ckpt_tensor **out)
{
    *out = reader->tensors;
    return reader->tensor_count;
}

static enum status open_file(struct ckpt_reader *reader, uint32_t file)
{
    if (reader->file == file)
        return ST_OK;
    close_file(reader);
    char path[LIMIT_PATH];
    enum status st = ckpt_path(reader->dir, reader->manifest.files[file].name, path);
    if (st == ST_OK)
        st = reader->io->open(reader->io->self, path, IO_READ, &reader->fd);
    if (st == ST_OK)
        reader->file = file;
    return st == ST_NOT_FOUND ? ST_INCOMPLETE : st; /* it was there when the reader opened it */
}

/* Reads one chunk, checked, into raw. */
static enum status read_chunk(struct ckpt_reader *reader, const struct ckpt_place *place, void *raw)
{
    enum status st = open_file(reader, place->file);
    if (st != ST_OK)
        return st;
    const struct disk_reference *reference = &place->reference;
    st = io_read_all(reader->io, reader->fd, reader->stored, reference->size, reference->offset);
    if (st != ST_OK)
        return st;
    const struct ckpt_footer *footer = &reader->set.shards[place->file].footer;
    struct ckpt_chunk_place want = ckpt_shard_place(footer, reference);
    const char *what = NULL;
    st = ckpt_chunk_read(reader->codec, &want, reader->stored, reference->size, NULL, raw, &what);
    if (ckpt_is_damage(st)) {
        char chunk[256];
        ckpt_shard_describe(footer, reference, chunk);
        return ckpt_finding(&reader->findings, st, reader->manifest.files[place->file].name,
                            "%s: %s", chunk, what);
    }
    return st;
}

static uint32_t find_buffer(const struct ckpt_reader *reader, const char *name)
{
    uint32_t i = 0;
    while (i < reader->buffer_count && strcmp(reader->buffers[i].name, name) != 0)
        i++;
    return i;
}

enum status ckpt_read_buffer(struct ckpt_reader *reader, const char *name, uint64_t first,
                             uint64_t count, void *out, const struct ckpt_read_options *options)
{
    uint32_t number = find_buffer(reader, name);
    if (number == reader->buffer_count)
        return ST_NOT_FOUND;
    const struct ckpt_buffer *buffer = &reader->buffers[number];
    if (count > buffer->count || first > buffer->count - count)
        return ST_INVALID;
    uint64_t element = ckpt_dtype_size(buffer->dtype), step = ckpt_chunk_elements(buffer->dtype);
    uint64_t at = first, end = first + count, done = 0;
    while (at < end) {
        uint64_t chunk = at / step, from = chunk * step;
        uint64_t to = buffer->count - from < step ? buffer->count : from + step;
        uint64_t stop = to < end ? to : end;
        uint8_t *target = (uint8_t *)out + (at - first) * element;
        bool whole = at == from && stop == to;
        const struct ckpt_place *place =
            &reader->set.places[reader->set.buffer_first[number] + chunk];
        enum status st = read_chunk(reader, place, whole ? target : reader->raw);
        if (st != ST_OK)
            return st;
        if (!whole)
            memcpy(target, reader->raw + (at - from) * element, (size_t)((stop - at) * element));
        at = stop;
        done++;
        if (options != NULL && options->progress != NULL)
            options->progress(options->progress_arg, done);
    }
    return ST_OK;
}

enum status ckpt_read_blob(struct ckpt_reader *reader, const char *name, char **out,
                           size_t *out_size)
{
    uint32_t i = 0;
    while (i < reader->set.blob_count && strcmp(reader->set.blobs[i].name, name) != 0)
        i++;
    if (i == reader->set.blob_count)
        return ST_NOT_FOUND;
    const struct ckpt_set_blob *blob = &reader->set.blobs[i];
    auto_free char *data = malloc((size_t)blob->size + 1);
    if (data == NULL)
        return ST_NO_MEMORY;
    for (uint64_t at = 0, k = blob->first; at < blob->size; at += DISK_CHUNK_BYTES, k++) {
        enum status st = read_chunk(reader, &reader->set.places[k], data + at);
        if (st != ST_OK)
            return st;
    }
    data[blob->size] = '\0';
    *out = TAKE_PTR(data);
    *out_size = (size_t)blob->size;
    return ST_OK;
}

/* Feeds the piece hashes of all buffers, in order, from the stored bytes. */
static enum status digest_buffers(struct ckpt_reader *reader, struct ckpt_hasher *hasher)
{
    struct ckpt_hash hashes[DISK_CHUNK_BYTES / PIECE_ELEMENTS];
    for (uint32_t b = 0; b < reader->buffer_count; b++) {
        const struct ckpt_buffer *buffer = &reader->buffers[b];
        uint64_t chunks = ckpt_chunks(buffer->dtype, buffer->count);
        for (uint64_t i = 0; i < chunks; i++) {
            const struct ckpt_place *place = &reader->set.places[reader->set.buffer_first[b] + i];
            enum status st = read_chunk(reader, place, reader->raw);
            if (st != ST_OK)
                return st;
            struct ckpt_chunk_place what =
                ckpt_shard_place(&reader->set.shards[place->file].footer, &place->reference);
            ckpt_piece_hashes(buffer->dtype, reader->raw, what.raw_size, hashes);
            uint64_t pieces = ckpt_pieces(what.raw_size / ckpt_dtype_size(buffer->dtype));
            for (uint64_t k = 0; k < pieces; k++)
                ckpt_hasher_add(hasher, hashes[k].byte, sizeof(hashes[k].byte));
        }
    }
    return ST_OK;
}

static enum status digest_of(struct ckpt_reader *reader, struct ckpt_hash *out)
{
    auto_buf struct buf record;
    buf_init(&record, sizeof(struct disk_scalars) + DISK_SKIPS_MAX * sizeof(uint64_t));
    enum status st = ckpt_scalars_record(&reader->scalars, &record);
    if (st != ST_OK)
        return st;
    struct ckpt_hasher *hasher = NULL;
    st = ckpt_hasher_new(&hasher);
    if (st != ST_OK)
        return st;
    st = digest_buffers(reader, hasher);
    struct ckpt_hash hash = ckpt_hash_of(record.data, record.size);
    ckpt_hasher_add(hasher, hash.byte, sizeof(hash.byte));
    if (st == ST_OK)
        *out = ckpt_hasher_result(hasher);
    ckpt_hasher_free(hasher);
    return st;
}

enum status ckpt_digest(const struct io *io, const char *dir, struct ckpt_hash *out)
{
    struct ckpt_reader *reader = NULL;
    enum status st = ckpt_open(io, dir, &reader);
    if (st == ST_OK)
        st = digest_of(reader, out);
    ckpt_close(reader);
    return st;
}
