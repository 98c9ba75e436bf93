/*
 * Reading every byte of a checkpoint, once: each file's hash is fed with the same bytes that its
 * header, chunks and footer are checked from. After damage it goes on as far as it can, so that one
 * run names everything that is wrong.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/hash.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "checkpoint/set.h"
#include "common/cleanup.h"

struct verifier {
    const struct io *io;
    const char *dir;
    struct ckpt_findings findings;
    struct ckpt_manifest manifest;
    struct ckpt_set set;
    struct ckpt_codec *codec;
    struct ckpt_hasher *hasher;
    uint8_t *stored, *raw;
    struct ckpt_hash *pieces; /* of all buffers; NULL: the tables are damaged */
    uint64_t piece_count;
    uint64_t piece_first[CKPT_BUFFERS_MAX];
};

static bool remark_extra(void *arg, const char *name)
{
    struct verifier *v = arg;
    bool known = strcmp(name, CKPT_MANIFEST) == 0;
    for (uint32_t i = 0; i < v->manifest.file_count && !known; i++)
        known = strcmp(name, v->manifest.files[i].name) == 0;
    if (!known)
        (void)ckpt_finding(&v->findings, ST_OK, name, "the manifest doesn't name it, ignored");
    return true;
}

static enum status check_manifest(struct verifier *v)
{
    struct io_stat info;
    enum status st = v->io->stat(v->io->self, v->dir, &info);
    if (st != ST_OK)
        return st;
    const char *what = NULL;
    st = ckpt_manifest_load(v->io, v->dir, &v->manifest, &what);
    if (st == ST_NOT_FOUND) {
        return ckpt_finding(&v->findings, ST_INCOMPLETE, CKPT_MANIFEST,
                            "there is none: this is no checkpoint");
    }
    if (ckpt_is_damage(st))
        return ckpt_finding(&v->findings, st, CKPT_MANIFEST, "%s", what);
    if (st != ST_OK)
        return st;
    char base[LIMIT_PATH];
    struct ckpt_folder_name folder;
    st = ckpt_base(v->dir, base);
    if (st == ST_OK && ckpt_folder_parse(base, &folder) &&
        (folder.step != v->manifest.step || folder.generation != v->manifest.generation)) {
        (void)ckpt_finding(&v->findings, ST_CORRUPT, CKPT_MANIFEST,
                           "it is of step %" PRIu64 ", generation %" PRIu64, v->manifest.step,
                           v->manifest.generation);
    }
    return st == ST_OK ? v->io->list(v->io->self, v->dir, remark_extra, v) : st;
}

/* Room for the hashes of all pieces, if the tables hold together. */
static enum status prepare(struct verifier *v)
{
    enum status st = ckpt_codec_new(CKPT_DEFAULT, &v->codec);
    if (st == ST_OK)
        st = ckpt_hasher_new(&v->hasher);
    v->stored = malloc(CKPT_CHUNK_MAX);
    v->raw = malloc(DISK_CHUNK_BYTES);
    if (st == ST_OK && (v->stored == NULL || v->raw == NULL))
        st = ST_NO_MEMORY;
    if (st != ST_OK || v->findings.worst != ST_OK)
        return st;
    struct ckpt_tensor *tensors = NULL;
    uint32_t tensor_count = 0;
    st = ckpt_set_join(&v->set, &v->manifest, &v->findings);
    if (st == ST_OK)
        st = ckpt_set_tensors(&v->set, &v->manifest, &v->findings, &tensors, &tensor_count);
    free(tensors);
    if (st != ST_OK)
        return ckpt_is_damage(st) ? ST_OK : st;
    const struct ckpt_footer *footer = &v->set.shards[0].footer;
    for (uint32_t b = 0; b < footer->head->buffer_count; b++) {
        v->piece_first[b] = v->piece_count;
        v->piece_count += ckpt_pieces(footer->buffers[b].count);
    }
    v->pieces = calloc((size_t)v->piece_count + 1, sizeof(*v->pieces));
    return v->pieces == NULL ? ST_NO_MEMORY : ST_OK;
}

static void keep_pieces(struct verifier *v, const struct ckpt_chunk_place *place)
{
    if (v->pieces == NULL || (place->buffer & DISK_BLOB) != 0)
        return;
    uint64_t first = place->index * (ckpt_chunk_elements(place->dtype) / PIECE_ELEMENTS);
    ckpt_piece_hashes(place->dtype, v->raw, place->raw_size,
                      v->pieces + v->piece_first[place->buffer] + first);
}

/* The chunks of a file whose tables are good. */
static enum status walk_chunks(struct verifier *v, int fd, uint32_t file)
{
    const struct ckpt_footer *footer = &v->set.shards[file].footer;
    for (uint32_t i = 0; i < footer->head->chunk_count; i++) {
        const struct disk_reference *it = &footer->references[i];
        enum status st = io_read_all(v->io, fd, v->stored, it->size, it->offset);
        if (st != ST_OK)
            return st;
        ckpt_hasher_add(v->hasher, v->stored, it->size);
        struct ckpt_chunk_place place = ckpt_shard_place(footer, it);
        const char *what = NULL;
        st = ckpt_chunk_read(v->codec, &place, v->stored, it->size, NULL, v->raw, &what);
        if (st == ST_OK) {
            keep_pieces(v, &place);
            continue;
        }
        if (!ckpt_is_damage(st))
            return st;
        char chunk[256];
        ckpt_shard_describe(footer, it, chunk);
        (void)ckpt_finding(&v->findings, st, v->manifest.files[file].name, "%s: %s", chunk, what);
    }
    return ST_OK;
}

/* A file whose tables are damaged: only its hash can be looked at. */
static enum status walk_bytes(struct verifier *v, int fd, uint64_t size)
{
    for (uint64_t at = 0; at < size; at += DISK_CHUNK_BYTES) {
        size_t part = size - at < DISK_CHUNK_BYTES ? (size_t)(size - at) : DISK_CHUNK_BYTES;
        enum status st = io_read_all(v->io, fd, v->raw, part, at);
        if (st != ST_OK)
            return st;
        ckpt_hasher_add(v->hasher, v->raw, part);
    }
    return ST_OK;
}

static enum status walk_open(struct verifier *v, int fd, uint32_t file)
{
    const struct ckpt_shard *shard = &v->set.shards[file];
    ckpt_hasher_reset(v->hasher);
    enum status st = ST_OK;
    if (shard->size == 0) {
        st = walk_bytes(v, fd, v->manifest.files[file].size);
    } else {
        ckpt_hasher_add(v->hasher, &shard->header, sizeof(shard->header));
        st = walk_chunks(v, fd, file);
        ckpt_hasher_add(v->hasher, shard->footer.bytes, (size_t)shard->footer.size);
    }
    if (st != ST_OK)
        return st;
    struct ckpt_hash hash = ckpt_hasher_result(v->hasher);
    if (!ckpt_hash_equal(&hash, &v->manifest.files[file].hash)) {
        (void)ckpt_finding(&v->findings, ST_CORRUPT, v->manifest.files[file].name,
                           "the bytes don't match the hash in the manifest");
    }
    return ST_OK;
}

static enum status walk_file(struct verifier *v, uint32_t file)
{
    char path[LIMIT_PATH];
    struct io_stat info;
    enum status st = ckpt_path(v->dir, v->manifest.files[file].name, path);
    if (st == ST_OK)
        st = v->io->stat(v->io->self, path, &info);
    if (st == ST_NOT_FOUND ||
        (st == ST_OK && (info.is_dir || info.size != v->manifest.files[file].size)))
        return ST_OK; /* reported when it was to be opened */
    int fd = -1;
    if (st == ST_OK)
        st = v->io->open(v->io->self, path, IO_READ, &fd);
    if (st != ST_OK)
        return st;
    st = walk_open(v, fd, file);
    (void)v->io->close(v->io->self, fd);
    return st;
}

static enum status check_digest(struct verifier *v)
{
    const struct ckpt_footer *footer = &v->set.shards[0].footer;
    ckpt_hasher_reset(v->hasher);
    ckpt_hasher_add(v->hasher, v->pieces, (size_t)v->piece_count * sizeof(*v->pieces));
    size_t size = sizeof(*footer->scalars) + footer->head->skip_count * sizeof(uint64_t);
    struct ckpt_hash hash = ckpt_hash_of(footer->scalars, size);
    ckpt_hasher_add(v->hasher, hash.byte, sizeof(hash.byte));
    hash = ckpt_hasher_result(v->hasher);
    if (ckpt_hash_equal(&hash, &v->manifest.digest))
        return ST_OK;
    char text[33];
    ckpt_hash_text(&hash, text);
    return ckpt_finding(&v->findings, ST_CORRUPT, CKPT_MANIFEST,
                        "its digest isn't that of the stored bytes, which is %s", text);
}

static enum status verify(struct verifier *v)
{
    enum status st = check_manifest(v);
    if (st == ST_OK)
        st = ckpt_set_open(v->io, v->dir, &v->manifest, &v->findings, &v->set);
    if (st == ST_OK)
        st = prepare(v);
    for (uint32_t i = 0; i < v->manifest.file_count && st == ST_OK; i++)
        st = walk_file(v, i);
    if (st == ST_OK && v->findings.worst == ST_OK)
        st = check_digest(v);
    return st;
}

enum status ckpt_verify(const struct io *io, const char *dir, ckpt_finding_fn fn, void *arg)
{
    struct verifier v = {
        .io = io,
        .dir = dir,
        .findings = { .fn = fn, .arg = arg },
    };
    enum status st = verify(&v);
    ckpt_codec_free(v.codec);
    ckpt_hasher_free(v.hasher);
    free(v.stored);
    free(v.raw);
    free(v.pieces);
    ckpt_set_release(&v.set);
    ckpt_manifest_release(&v.manifest);
    return st == ST_OK ? v.findings.worst : st;
}
