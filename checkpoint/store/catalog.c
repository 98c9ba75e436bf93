/* The catalog of a job's checkpoints: a folder's name and its manifest must agree, all else is
 * foreign. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/findings.h"
#include "checkpoint/format/names.h"
#include "checkpoint/store/each_file.h"
#include "common/cleanup.h"

#define ENTRIES_MAX 65536 /* checkpoints of one job */

struct catalog {
    struct ckpt_entry *entries;
    size_t count, capacity;
    const char *folder; /* of the job */
    enum status st;
};

/* Room for one more entry. */
static enum status reserve_entry(struct catalog *catalog)
{
    if (catalog->count < catalog->capacity)
        return ST_OK;
    size_t capacity = catalog->capacity == 0 ? 16 : 2 * catalog->capacity;
    if (capacity > ENTRIES_MAX)
        return ST_FULL;
    void *more = realloc(catalog->entries, capacity * sizeof(*catalog->entries));
    if (more == NULL)
        return ST_NO_MEMORY;
    catalog->entries = more;
    catalog->capacity = capacity;
    return ST_OK;
}

/* An io_name_fn: adds a checkpoint's folder. */
static bool collect_folder(void *arg, const char *name)
{
    struct catalog *catalog = arg;
    struct ckpt_folder_name found;
    if (!ckpt_folder_parse(name, &found))
        return true;
    catalog->st = reserve_entry(catalog);
    if (catalog->st != ST_OK)
        return false;
    struct ckpt_entry *entry = &catalog->entries[catalog->count];
    *entry = (struct ckpt_entry){
        .step = found.step,
        .generation = found.generation,
        .try_number = found.try_number,
        .quarantined = found.quarantined,
    };
    catalog->st = ckpt_path(catalog->folder, name, entry->dir);
    catalog->count += catalog->st == ST_OK;
    return catalog->st == ST_OK;
}

/* The files of one folder, and their bytes; of those in `unsized` the list has said no size. */
struct folder_size {
    const struct io *io;
    const char *dir;
    atomic_uint_fast64_t bytes;
    char (*unsized)[64];
    uint32_t count, capacity;
    enum status st;
};

/* An io_size_fn. */
static bool add_size(void *arg, const char *name, uint64_t size)
{
    struct folder_size *sum = arg;
    uint64_t generation = 0;
    if (!ckpt_file_is_ours(name) || ckpt_temporary_parse(name, &generation) ||
        strlen(name) >= sizeof(sum->unsized[0]))
        return true;
    if (size != IO_SIZE_UNKNOWN) {
        sum->bytes += size;
        return true;
    }
    if (sum->count == sum->capacity) {
        uint32_t capacity = sum->capacity == 0 ? 16 : 2 * sum->capacity;
        void *more = realloc(sum->unsized, capacity * sizeof(*sum->unsized));
        sum->st = more == NULL ? ST_NO_MEMORY : ST_OK;
        if (more == NULL)
            return false;
        sum->unsized = more;
        sum->capacity = capacity;
    }
    memcpy(sum->unsized[sum->count++], name, strlen(name) + 1);
    return true;
}

/* A ckpt_file_fn. One that is gone meanwhile has no size. */
static enum status add_file(void *arg, uint32_t item)
{
    struct folder_size *sum = arg;
    char path[LIMIT_PATH];
    struct io_stat info;
    if (ckpt_path(sum->dir, sum->unsized[item], path) == ST_OK &&
        sum->io->stat(sum->io->self, path, &info) == ST_OK)
        sum->bytes += info.size;
    return ST_OK;
}

static enum status measure_folder(const struct io *io, struct ckpt_entry *entry)
{
    struct folder_size sum = { .io = io, .dir = entry->dir, .st = ST_OK };
    enum status st = io_list_sizes(io, entry->dir, add_size, &sum);
    if (st == ST_OK)
        st = sum.st;
    if (st == ST_OK)
        st = ckpt_each_file(sum.count, add_file, &sum);
    free(sum.unsized);
    entry->bytes = sum.bytes;
    return st;
}

/* Fills in the entry from the manifest, if there is one that is whole and of this folder. */
static enum status fill_entry(const struct io *io, const char *job, struct ckpt_entry *entry)
{
    struct io_stat info;
    enum status st = io->stat(io->self, entry->dir, &info);
    if (st == ST_OK && !info.is_dir)
        return ST_NOT_FOUND;
    if (st == ST_OK)
        st = measure_folder(io, entry);
    if (st != ST_OK)
        return st;
    struct ckpt_manifest manifest;
    entry->manifest = ckpt_manifest_read(io, entry->dir, &manifest, NULL);
    entry->damaged = ckpt_is_damage(entry->manifest);
    if (entry->manifest != ST_OK)
        return ST_OK;
    bool same = strcmp(manifest.job, job) == 0 && manifest.step == entry->step &&
                manifest.generation == entry->generation;
    entry->damaged = !same;
    entry->manifest = same ? ST_OK : ST_CORRUPT;
    entry->committed = same && !entry->quarantined;
    if (same) {
        entry->parent = manifest.parent;
        entry->digest = manifest.digest;
        entry->raw_bytes = manifest.raw_bytes;
        entry->files = manifest.file_count;
        memcpy(entry->created_at, manifest.created_at, sizeof(entry->created_at));
    }
    ckpt_manifest_release(&manifest);
    return ST_OK;
}

static int compare_entries(const void *a, const void *b)
{
    const struct ckpt_entry *x = a, *y = b;
    if (x->step != y->step)
        return x->step > y->step ? -1 : 1;
    if (x->generation != y->generation)
        return x->generation > y->generation ? -1 : 1;
    if (x->try_number != y->try_number)
        return x->try_number > y->try_number ? -1 : 1;
    return strcmp(x->dir, y->dir);
}

enum status ckpt_list(const struct io *io, const char *store, const char *job,
                      struct ckpt_entry **out, size_t *out_count)
{
    char folder[LIMIT_PATH];
    if (!ckpt_name_is_good(job))
        return ST_INVALID;
    struct catalog catalog = { .folder = folder };
    enum status st = ckpt_path(store, job, folder);
    if (st == ST_OK)
        st = io->list(io->self, folder, collect_folder, &catalog);
    if (st == ST_OK)
        st = catalog.st;
    if (st == ST_NOT_FOUND)
        st = ST_OK; /* no folder: no checkpoint */
    size_t kept = 0;
    for (size_t i = 0; i < catalog.count && st == ST_OK; i++) {
        enum status read = fill_entry(io, job, &catalog.entries[i]);
        if (read == ST_NOT_FOUND)
            continue; /* removed meanwhile */
        st = read;
        catalog.entries[kept++] = catalog.entries[i];
    }
    if (st != ST_OK) {
        free(catalog.entries);
        return st;
    }
    if (kept > 0)
        qsort(catalog.entries, kept, sizeof(*catalog.entries), compare_entries);
    *out = catalog.entries;
    *out_count = kept;
    return ST_OK;
}
