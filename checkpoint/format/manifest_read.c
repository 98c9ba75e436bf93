/*
 * Reading a manifest: a parser of outside bytes. The hash over the body is checked on the bytes
 * before anything is parsed; then each field is, as if there had been no hash.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/disk.h"
#include "checkpoint/format/hash.h"
#include "checkpoint/format/names.h"
#include "common/cleanup.h"

#define TAIL_START ",\"xxh3_128\":\""
#define TAIL_END   "\"}\n"
#define TAIL_SIZE  (sizeof(TAIL_START) - 1 + 32 + sizeof(TAIL_END) - 1)

void ckpt_manifest_release(struct ckpt_manifest *manifest)
{
    free(manifest->files);
    *manifest = (struct ckpt_manifest){ 0 };
}

static bool tail_matches(const char *bytes, size_t size)
{
    if (size <= TAIL_SIZE)
        return false;
    size_t body = size - TAIL_SIZE;
    const char *start = bytes + body, *hex = start + sizeof(TAIL_START) - 1;
    if (memcmp(start, TAIL_START, sizeof(TAIL_START) - 1) != 0 ||
        memcmp(hex + 32, TAIL_END, sizeof(TAIL_END) - 1) != 0)
        return false;
    char text[33] = { 0 };
    memcpy(text, hex, 32);
    struct ckpt_hash said, is = ckpt_hash_of(bytes, body);
    return ckpt_hash_parse(text, &said) == ST_OK && ckpt_hash_equal(&said, &is);
}

static bool get_number(const json_t *object, const char *key, uint64_t *out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static bool get_text(const json_t *object, const char *key, char *out, size_t capacity)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value) || json_string_length(value) >= capacity)
        return false;
    memcpy(out, json_string_value(value), json_string_length(value) + 1);
    for (const char *c = out; *c != '\0'; c++) {
        if (*c < ' ' || *c > '~')
            return false; /* such texts are printed */
    }
    return true;
}

static bool get_hash(const json_t *object, const char *key, struct ckpt_hash *out)
{
    char text[33];
    return get_text(object, key, text, sizeof(text)) && ckpt_hash_parse(text, out) == ST_OK;
}

/* Reads the parent: both keys or neither. Its step must be earlier, so that a chain of parents
 * ends. */
static bool get_parent(const json_t *root, struct ckpt_manifest *manifest)
{
    struct ckpt_parent *parent = &manifest->parent;
    if (json_object_get(root, "parent_step") == NULL)
        return json_object_get(root, "parent_generation") == NULL;
    return get_number(root, "parent_step", &parent->step) &&
           get_number(root, "parent_generation", &parent->generation) && parent->generation != 0 &&
           parent->step < manifest->step;
}

static enum status get_files(const json_t *root, struct ckpt_manifest *manifest)
{
    const json_t *files = json_object_get(root, "files");
    size_t count = json_array_size(files);
    if (count == 0 || count > LIMIT_RANKS)
        return ST_CORRUPT;
    manifest->files = calloc(count, sizeof(*manifest->files));
    if (manifest->files == NULL)
        return ST_NO_MEMORY;
    manifest->file_count = (uint32_t)count;
    for (uint32_t i = 0; i < count; i++) {
        struct ckpt_file *file = &manifest->files[i];
        const json_t *entry = json_array_get(files, i);
        char name[64];
        ckpt_shard_name(i, manifest->file_count, name);
        if (!get_text(entry, "name", file->name, sizeof(file->name)) ||
            !get_number(entry, "size", &file->size) || !get_hash(entry, "xxh3_128", &file->hash) ||
            strcmp(file->name, name) != 0)
            return ST_CORRUPT;
    }
    return ST_OK;
}

static enum status from_json(const json_t *root, struct ckpt_manifest *manifest,
                             struct reason *what)
{
    uint64_t version = 0;
    reason_set(what, "a field is missing or malformed");
    if (!get_number(root, "cairn_checkpoint", &version) || version == 0)
        return ST_CORRUPT;
    if (version != DISK_VERSION) {
        reason_set(what, "the checkpoint is of format version %" PRIu64 ", this build reads %u",
                   version, DISK_VERSION);
        return ST_VERSION;
    }
    bool good = get_text(root, "job", manifest->job, sizeof(manifest->job)) &&
                ckpt_name_is_good(manifest->job) && get_number(root, "step", &manifest->step) &&
                get_number(root, "generation", &manifest->generation) &&
                get_text(root, "created_at", manifest->created_at, sizeof(manifest->created_at)) &&
                get_hash(root, "digest", &manifest->digest) &&
                get_number(root, "raw_bytes", &manifest->raw_bytes) && get_parent(root, manifest);
    return good ? get_files(root, manifest) : ST_CORRUPT;
}

enum status ckpt_manifest_parse(const char *bytes, size_t size, struct ckpt_manifest *out,
                                struct reason *what)
{
    reason_set(what, "the bytes don't match the hash at their end");
    if (size > (size_t)LIMIT_MANIFEST_BYTES || !tail_matches(bytes, size))
        return ST_CORRUPT;
    json_error_t error;
    json_t *root = json_loadb(bytes, size, JSON_REJECT_DUPLICATES, &error);
    reason_set(what, "this is no JSON");
    if (root == NULL)
        return json_error_code(&error) == json_error_out_of_memory ? ST_NO_MEMORY : ST_CORRUPT;
    struct ckpt_manifest manifest = { 0 };
    enum status st = from_json(root, &manifest, what);
    json_decref(root);
    if (st != ST_OK) {
        ckpt_manifest_release(&manifest);
        return st;
    }
    *out = manifest;
    return ST_OK;
}

enum status ckpt_manifest_read(const struct io *io, const char *dir, struct ckpt_manifest *out,
                               struct reason *what)
{
    struct reason unwanted;
    struct reason *why = what == NULL ? &unwanted : what;
    char path[LIMIT_PATH];
    enum status st = ckpt_path(dir, CKPT_MANIFEST, path);
    if (st != ST_OK)
        return st;
    auto_free char *bytes = NULL;
    size_t size = 0;
    st = io_read_file(io, path, (size_t)LIMIT_MANIFEST_BYTES, &bytes, &size);
    if (st == ST_FULL || st == ST_INVALID || st == ST_INCOMPLETE) {
        reason_set(why, "this can't be a manifest");
        return ST_CORRUPT;
    }
    return st == ST_OK ? ckpt_manifest_parse(bytes, size, out, why) : st;
}

void ckpt_await(const struct io *io, const char *dir)
{
    char path[LIMIT_PATH];
    struct io_stat info;
    if (io->seen_late == NULL || !io->seen_late(io->self, dir) ||
        ckpt_path(dir, CKPT_MANIFEST, path) != ST_OK)
        return;
    (void)!io_find(io, path, IO_SIZE_UNKNOWN, io_find_until(), &info);
}
