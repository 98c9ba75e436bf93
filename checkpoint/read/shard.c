/* A parser of outside bytes: no length is used before it was compared with what the file has. */
#include "checkpoint/read/shard.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/hash.h"
#include "checkpoint/format/names.h"

void ckpt_shard_release(struct ckpt_shard *shard)
{
    free(shard->footer.bytes);
    *shard = (struct ckpt_shard){ 0 };
}

/* NULL, or what is wrong; *st is then its kind. */
static const char *check_header(const struct disk_header *head,
                                const struct ckpt_manifest *manifest, uint32_t rank,
                                enum status *st)
{
    *st = ST_CORRUPT;
    if (memcmp(head->magic, DISK_MAGIC_HEADER, sizeof(head->magic)) != 0)
        return "this is no shard file";
    if (head->check != ckpt_check_of(head, offsetof(struct disk_header, check)))
        return "the header doesn't match its hash";
    if (head->version == 0)
        return "a constant in the header is wrong";
    *st = ST_VERSION;
    if (head->version != DISK_VERSION || (head->features & ~DISK_FEATURES) != 0)
        return "the file is of another version";
    *st = ST_CORRUPT;
    if (head->frame_magic != DISK_FRAME_HEADER ||
        head->frame_size != DISK_HEADER_SIZE - DISK_FRAME_BYTES ||
        head->chunk_bytes != DISK_CHUNK_BYTES || head->piece_elements != PIECE_ELEMENTS)
        return "a constant in the header is wrong";
    for (size_t i = 0; i < sizeof(head->zero); i++) {
        if (head->zero[i] != 0)
            return "the gap after the header isn't zero";
    }
    char job[DISK_NAME] = { 0 };
    memcpy(job, manifest->job, strnlen(manifest->job, sizeof(job) - 1));
    if (memcmp(job, head->job, sizeof(job)) != 0)
        return "the file is of another job";
    if (head->step != manifest->step || head->generation != manifest->generation)
        return "the file is of another step or generation";
    bool differs = (head->features & DISK_DIFFERS) != 0;
    if (differs != (manifest->parent.generation != 0) ||
        head->parent_step != manifest->parent.step ||
        head->parent_generation != manifest->parent.generation)
        return "the file differs from another parent than the manifest says";
    if (head->rank != rank || head->size != manifest->file_count)
        return "the file is of another rank";
    return NULL;
}

/* Reads and checks header and footer of an open file. */
static enum status read_tables(const struct io *io, int fd, const struct ckpt_manifest *manifest,
                               uint32_t rank, struct ckpt_findings *findings,
                               struct ckpt_shard *shard)
{
    const char *file = manifest->files[rank].name, *what = NULL;
    enum status st = io_read_all(io, fd, &shard->header, sizeof(shard->header), 0);
    if (st != ST_OK)
        return st;
    enum status kind = ST_OK;
    what = check_header(&shard->header, manifest, rank, &kind);
    if (what != NULL && kind == ST_VERSION) {
        return ckpt_finding(findings, kind, file,
                            "the file is of another version: %" PRIu32 " with features %#" PRIx32
                            ", this build reads %u with features %#x",
                            shard->header.version, shard->header.features, DISK_VERSION,
                            DISK_FEATURES);
    }
    if (what != NULL)
        return ckpt_finding(findings, kind, file, "%s", what);
    struct disk_trailer trailer;
    st = io_read_all(io, fd, &trailer, sizeof(trailer), shard->size - sizeof(trailer));
    if (st != ST_OK)
        return st;
    uint64_t size = trailer.footer_size, offset = trailer.footer_offset;
    if (size > shard->size - DISK_HEADER_SIZE || size > DISK_FOOTER_MAX || size < sizeof(trailer) ||
        offset != shard->size - size)
        return ckpt_finding(findings, ST_CORRUPT, file, "the trailer's lengths are wrong");
    shard->footer.bytes = malloc((size_t)size);
    if (shard->footer.bytes == NULL)
        return ST_NO_MEMORY;
    st = io_read_all(io, fd, shard->footer.bytes, (size_t)size - sizeof(trailer), offset);
    if (st != ST_OK)
        return st;
    memcpy(shard->footer.bytes + size - sizeof(trailer), &trailer, sizeof(trailer));
    st = ckpt_footer_check(&shard->footer, size, offset, &what);
    if (ckpt_is_finding(st))
        return ckpt_finding(findings, st, file, "%s", what);
    return st;
}

enum status ckpt_shard_open(const struct io *io, const char *dir,
                            const struct ckpt_manifest *manifest, uint32_t rank, int64_t until_ms,
                            struct ckpt_findings *findings, struct ckpt_shard *out)
{
    const struct ckpt_file *file = &manifest->files[rank];
    char path[LIMIT_PATH];
    enum status st = ckpt_path(dir, file->name, path);
    struct io_stat info;
    if (st == ST_OK)
        st = io_find(io, path, file->size, until_ms, &info);
    if (st == ST_NOT_FOUND)
        return ckpt_finding(findings, ST_INCOMPLETE, file->name, "the file is missing");
    if (st != ST_OK)
        return st;
    if (info.is_dir)
        return ckpt_finding(findings, ST_CORRUPT, file->name, "a folder is in the file's place");
    if (info.size != file->size) {
        return ckpt_finding(
            findings, info.size < file->size ? ST_INCOMPLETE : ST_CORRUPT, file->name,
            "the file has %" PRIu64 " bytes, the manifest says %" PRIu64, info.size, file->size);
    }
    if (info.size < DISK_HEADER_SIZE + sizeof(struct disk_trailer))
        return ckpt_finding(findings, ST_CORRUPT, file->name, "the file is too short");
    struct ckpt_shard shard = { .size = info.size };
    int fd = -1;
    st = io->open(io->self, path, IO_READ, &fd);
    if (st != ST_OK)
        return st;
    st = read_tables(io, fd, manifest, rank, findings, &shard);
    (void)io->close(io->self, fd);
    if (st == ST_OK) {
        *out = shard;
    } else {
        ckpt_shard_release(&shard);
    }
    return st;
}

struct ckpt_chunk_place ckpt_shard_place(const struct ckpt_footer *footer,
                                         const struct disk_reference *reference)
{
    bool is_blob = (reference->buffer & DISK_BLOB) != 0;
    return (struct ckpt_chunk_place){
        .buffer = reference->buffer,
        .index = reference->index,
        .dtype = is_blob ? CKPT_U8 : (enum ckpt_dtype)footer->buffers[reference->buffer].dtype,
        .raw_size = (uint32_t)ckpt_footer_raw_size(footer, reference),
    };
}

void ckpt_shard_describe(const struct ckpt_footer *footer, const struct disk_reference *reference,
                         char out[256])
{
    uint32_t number = reference->buffer & ~DISK_BLOB;
    const char *name = (reference->buffer & DISK_BLOB) != 0 ? footer->blobs[number].name
                                                            : footer->buffers[number].name;
    (void)snprintf(out, 256, "chunk %" PRIu64 " of %s, at byte %" PRIu64, reference->index, name,
                   reference->offset);
}
