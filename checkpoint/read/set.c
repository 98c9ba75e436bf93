#include "checkpoint/read/set.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/hash.h"
#include "common/check.h"
#include "common/cleanup.h"

void ckpt_set_release(struct ckpt_set *set)
{
    for (uint32_t i = 0; i < set->shard_count; i++)
        ckpt_shard_release(&set->shards[i]);
    free(set->shards);
    free(set->places);
    free(set->blobs);
    *set = (struct ckpt_set){ 0 };
}

enum status ckpt_set_open(const struct io *io, const char *dir,
                          const struct ckpt_manifest *manifest, struct ckpt_findings *findings,
                          struct ckpt_set *out)
{
    struct ckpt_set set = { .shard_count = manifest->file_count };
    set.shards = calloc(set.shard_count, sizeof(*set.shards));
    if (set.shards == NULL)
        return ST_NO_MEMORY;
    const int64_t until_ms = io_find_until(); /* for all of them together */
    for (uint32_t i = 0; i < set.shard_count; i++) {
        enum status st = ckpt_shard_open(io, dir, manifest, i, until_ms, findings, &set.shards[i]);
        if (st != ST_OK && !ckpt_is_finding(st)) {
            ckpt_set_release(&set);
            return st;
        }
    }
    *out = set;
    return ST_OK;
}

/* The tables that every file holds are the same in all. */
static const char *compare_shards(const struct ckpt_footer *a, const struct ckpt_footer *b)
{
    size_t buffers = a->head->buffer_count * sizeof(struct disk_buffer);
    size_t record = sizeof(*a->scalars) + a->head->skip_count * sizeof(uint64_t);
    if (a->head->buffer_count != b->head->buffer_count ||
        memcmp(a->buffers, b->buffers, buffers) != 0)
        return "its table of buffers differs from the first file's";
    if (a->head->skip_count != b->head->skip_count ||
        memcmp(a->bytes + sizeof(*a->head), b->bytes + sizeof(*b->head), record) != 0)
        return "its scalars differ from the first file's";
    return NULL;
}

static int compare_places(const void *a, const void *b)
{
    const struct ckpt_place *x = a, *y = b;
    bool x_blob = (x->reference.buffer & DISK_BLOB) != 0;
    bool y_blob = (y->reference.buffer & DISK_BLOB) != 0;
    if (x_blob != y_blob)
        return x_blob ? 1 : -1;
    uint32_t x_number = x_blob ? x->blob : x->reference.buffer;
    uint32_t y_number = y_blob ? y->blob : y->reference.buffer;
    if (x_number != y_number)
        return x_number < y_number ? -1 : 1;
    return x->reference.index < y->reference.index ? -1 : x->reference.index > y->reference.index;
}

/* Collects the references and blobs of all files, the places in order. */
static enum status collect_places(struct ckpt_set *set)
{
    uint64_t places = 0;
    uint32_t blobs = 0;
    for (uint32_t i = 0; i < set->shard_count; i++) {
        places += set->shards[i].footer.head->chunk_count;
        blobs += set->shards[i].footer.head->blob_count;
    }
    set->places = calloc((size_t)places + 1, sizeof(*set->places));
    set->blobs = calloc((size_t)blobs + 1, sizeof(*set->blobs));
    if (set->places == NULL || set->blobs == NULL)
        return ST_NO_MEMORY;
    for (uint32_t i = 0; i < set->shard_count; i++) {
        const struct ckpt_footer *footer = &set->shards[i].footer;
        for (uint32_t k = 0; k < footer->head->chunk_count; k++) {
            struct ckpt_place *place = &set->places[set->place_count++];
            place->reference = footer->references[k];
            place->file = i;
            place->blob = set->blob_count + (place->reference.buffer & ~DISK_BLOB);
        }
        for (uint32_t k = 0; k < footer->head->blob_count; k++) {
            struct ckpt_set_blob *blob = &set->blobs[set->blob_count++];
            memcpy(blob->name, footer->blobs[k].name, sizeof(blob->name));
            blob->size = footer->blobs[k].size;
        }
    }
    qsort(set->places, (size_t)set->place_count, sizeof(*set->places), compare_places);
    return ST_OK;
}

/* The sorted places are chunk 0, 1, … of each buffer and blob, to the last. */
static const char *check_places(struct ckpt_set *set)
{
    const struct ckpt_footer *footer = &set->shards[0].footer;
    uint64_t at = 0;
    for (uint32_t b = 0; b < footer->head->buffer_count; b++) {
        uint64_t chunks = ckpt_chunks(footer->buffers[b].dtype, footer->buffers[b].count);
        set->buffer_first[b] = at;
        if (chunks > set->place_count - at)
            return "a chunk is in no file";
        for (uint64_t i = 0; i < chunks; i++, at++) {
            const struct disk_reference *it = &set->places[at].reference;
            if (it->buffer != b || it->index != i)
                return "a chunk is in no file, or in two";
        }
    }
    for (uint32_t b = 0; b < set->blob_count; b++) {
        uint64_t chunks = ckpt_chunks(CKPT_U8, set->blobs[b].size);
        set->blobs[b].first = at;
        if (chunks > set->place_count - at)
            return "a blob's chunk is in no file";
        for (uint64_t i = 0; i < chunks; i++, at++) {
            const struct ckpt_place *it = &set->places[at];
            if ((it->reference.buffer & DISK_BLOB) == 0 || it->blob != b ||
                it->reference.index != i)
                return "a blob's chunk is in no file, or in two";
        }
    }
    return at == set->place_count ? NULL : "a chunk is in two files";
}

enum status ckpt_set_join(struct ckpt_set *set, const struct ckpt_manifest *manifest,
                          struct ckpt_findings *findings)
{
    uint64_t raw = 0;
    CHECK(set->shard_count > 0);
    CHECK(set->places == NULL); /* once */
    for (uint32_t i = 0; i < set->shard_count; i++) {
        raw += set->shards[i].footer.head->raw_size;
        const char *what = compare_shards(&set->shards[0].footer, &set->shards[i].footer);
        if (what != NULL)
            return ckpt_finding(findings, ST_CORRUPT, manifest->files[i].name, "%s", what);
    }
    enum status st = collect_places(set);
    if (st != ST_OK)
        return st;
    const char *what = check_places(set);
    if (what == NULL && raw != manifest->raw_bytes)
        what = "the files don't hold as many raw bytes as it says";
    if (what == NULL && set->shards[0].footer.scalars->step != manifest->step)
        what = "the scalars are of another step";
    return what == NULL ? ST_OK : ckpt_finding(findings, ST_CORRUPT, "manifest.json", "%s", what);
}

struct tensor_reference {
    const struct disk_tensor *entry;
};

static int compare_tensors(const void *a, const void *b)
{
    const struct disk_tensor *x = ((const struct tensor_reference *)a)->entry;
    const struct disk_tensor *y = ((const struct tensor_reference *)b)->entry;
    if (x->buffer != y->buffer)
        return x->buffer < y->buffer ? -1 : 1;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return strcmp(x->name, y->name);
}

struct tensor_name {
    const char *text;
};

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct tensor_name *)a)->text, ((const struct tensor_name *)b)->text);
}

/* A name that two tensors have; NULL: none. names: room for all. */
static const char *find_namesake(const struct ckpt_tensor *tensors, size_t count,
                                 struct tensor_name *names)
{
    for (size_t i = 0; i < count; i++)
        names[i].text = tensors[i].name;
    if (count > 0)
        qsort(names, count, sizeof(*names), compare_names);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(names[i - 1].text, names[i].text) == 0)
            return names[i].text;
    }
    return NULL;
}

static struct ckpt_tensor from_disk(const struct disk_tensor *entry)
{
    struct ckpt_tensor tensor = {
        .buffer = entry->buffer,
        .offset = entry->offset,
        .ndim = (int32_t)entry->ndim,
    };
    memcpy(tensor.name, entry->name, sizeof(tensor.name));
    for (uint32_t i = 0; i < entry->ndim; i++)
        tensor.dims[i] = entry->extent[i];
    return tensor;
}

/* Equal but for the number of an alias, which counts within one file's table. */
static bool same_tensor(const struct disk_tensor *a, const struct disk_tensor *b)
{
    struct disk_tensor x = *a, y = *b;
    x.alias = 0;
    y.alias = 0;
    return memcmp(&x, &y, sizeof(x)) == 0;
}

enum status ckpt_set_tensors(const struct ckpt_set *set, const struct ckpt_manifest *manifest,
                             struct ckpt_findings *findings, struct ckpt_tensor **out,
                             uint32_t *out_count)
{
    size_t total = 0;
    for (uint32_t i = 0; i < set->shard_count; i++)
        total += set->shards[i].footer.head->tensor_count;
    auto_free struct tensor_reference *all = malloc((total + 1) * sizeof(*all));
    auto_free struct ckpt_tensor *tensors = calloc(total + 1, sizeof(*tensors));
    auto_free struct tensor_name *names = calloc(total + 1, sizeof(*names));
    if (all == NULL || tensors == NULL || names == NULL)
        return ST_NO_MEMORY;
    size_t at = 0;
    for (uint32_t i = 0; i < set->shard_count; i++) {
        for (uint32_t k = 0; k < set->shards[i].footer.head->tensor_count; k++)
            all[at++].entry = &set->shards[i].footer.tensors[k];
    }
    qsort(all, total, sizeof(*all), compare_tensors);
    uint32_t count = 0;
    for (size_t i = 0; i < total; i++) {
        bool again = i > 0 && compare_tensors(&all[i - 1], &all[i]) == 0;
        if (again && !same_tensor(all[i - 1].entry, all[i].entry)) {
            return ckpt_finding(findings, ST_CORRUPT, manifest->files[0].name,
                                "tensor %s is described differently in another file",
                                all[i].entry->name);
        }
        if (!again)
            tensors[count++] = from_disk(all[i].entry);
    }
    if (count > LIMIT_TENSORS)
        return ckpt_finding(findings, ST_CORRUPT, manifest->files[0].name, "too many tensors");
    const char *twice = find_namesake(tensors, count, names);
    if (twice != NULL) {
        return ckpt_finding(findings, ST_CORRUPT, manifest->files[0].name,
                            "tensor %s has two places", twice);
    }
    *out = TAKE_PTR(tensors);
    *out_count = count;
    return ST_OK;
}
