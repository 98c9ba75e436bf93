/* A state in a checkpoint's folder: that of a program, or of a model of Cairn's. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "library/stored/stored.h"

#define THREADS_MAX   3                         /* decoders beside the caller's */
#define THREADS_BYTES ((size_t)8 * 1024 * 1024) /* of a read that is worth threads */

struct folder {
    struct ckpt_reader *reader;
    uint32_t threads;
    struct reason found; /* what is wrong with it, if something is */
};

static void close_folder(void *self)
{
    struct folder *folder = self;
    ckpt_close(folder->reader);
    free(folder);
}

/* A ckpt_finding_fn: keeps the first one. */
static void keep_finding(void *arg, const char *line)
{
    struct folder *folder = arg;
    if (folder->found.text[0] == '\0')
        reason_set(&folder->found, "%s", line);
}

/* A stored_source's read. */
static enum status read_folder(void *self, uint32_t buffer, uint64_t first, uint64_t size,
                               void *out, struct reason *out_why)
{
    struct folder *folder = self;
    const struct ckpt_buffer *buffers = NULL;
    (void)ckpt_reader_buffers(folder->reader, &buffers);
    const uint64_t width = ckpt_dtype_size(buffers[buffer].dtype);
    const struct ckpt_read_options options = { .threads =
                                                   size >= THREADS_BYTES ? folder->threads : 0 };
    const enum status st = ckpt_read_buffer(folder->reader, buffers[buffer].name, first / width,
                                            size / width, out, &options);
    if (st != ST_OK) {
        reason_set(out_why, "%s",
                   folder->found.text[0] != '\0' ? folder->found.text : status_string(st));
    }
    return st;
}

/* ---- open ---- */

static void describe(struct cairn_state *state, const struct ckpt_reader *reader)
{
    const struct ckpt_manifest *manifest = ckpt_reader_manifest(reader);
    const struct ckpt_buffer *buffers = NULL;
    memcpy(state->info.job, manifest->job, strnlen(manifest->job, sizeof(state->info.job) - 1));
    state->info.step = manifest->step;
    state->info.ranks = manifest->file_count;
    state->buffer_count = ckpt_reader_buffers(reader, &buffers);
    for (uint32_t i = 0; i < state->buffer_count; i++) {
        struct stored_buffer *it = &state->buffers[i];
        memcpy(it->name, buffers[i].name, sizeof(it->name));
        it->width = ckpt_dtype_size(buffers[i].dtype);
        it->bytes = buffers[i].count * it->width;
        it->block = ckpt_chunk_elements(buffers[i].dtype) * it->width;
    }
}

/* The tensors of a model: all ranks have them. */
static enum status list_model(struct cairn_state *state, const struct ckpt_reader *reader)
{
    const struct ckpt_tensor *tensors = NULL;
    const struct ckpt_buffer *buffers = NULL;
    const uint32_t count = ckpt_reader_tensors(reader, &tensors);
    (void)ckpt_reader_buffers(reader, &buffers);
    const enum status st = stored_state_grow(state, count, 0);
    for (uint32_t i = 0; i < count && st == ST_OK; i++) {
        const struct ckpt_tensor *from = &tensors[i];
        struct stored_tensor *to = &state->tensors[state->info.tensors++];
        const uint64_t width = state->buffers[from->buffer].width;
        memset(to, 0, sizeof(*to));
        memcpy(to->entry.name, from->name, sizeof(to->entry.name));
        to->entry.dtype = (uint32_t)buffers[from->buffer].dtype;
        to->entry.kind = CAIRN_REPLICATED;
        to->entry.ndim = (uint32_t)from->ndim;
        for (int32_t d = 0; d < from->ndim; d++)
            to->entry.shape[d] = to->entry.extent[d] = from->dims[d];
        to->buffer = from->buffer;
        to->offset = from->offset * width;
        to->bytes = ckpt_tensor_elements(from) * width;
    }
    return st;
}

static enum status load(struct cairn_state *state, struct ckpt_reader *reader,
                        struct reason *out_why)
{
    auto_free char *sizes = NULL;
    size_t size = 0;
    describe(state, reader);
    enum status st = ckpt_read_blob(reader, PLACE_AREAS, &sizes, &size);
    if (st == ST_NOT_FOUND) {
        st = list_model(state, reader);
    } else if (st == ST_OK) {
        st = stored_areas_load(state, sizes, size);
        *out_why = state->why;
    }
    return st == ST_OK ? stored_state_sort(state, out_why) : st;
}

static uint32_t threads(void)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores <= 1 ? 0 : cores > THREADS_MAX ? THREADS_MAX : (uint32_t)cores - 1;
}

enum status stored_open_checkpoint(const char *path, struct cairn_state **out,
                                   struct reason *out_why)
{
    struct cairn_state *state = NULL;
    enum status st = stored_state_new(&state);
    if (st != ST_OK)
        return st;
    struct folder *folder = calloc(1, sizeof(*folder));
    if (folder == NULL) {
        stored_state_free(state);
        return ST_NO_MEMORY;
    }
    folder->threads = threads();
    st = ckpt_open(io_system(), path, keep_finding, folder, &folder->reader);
    if (st == ST_OK) {
        state->source = (struct stored_source){ folder, read_folder, close_folder };
        st = load(state, folder->reader, out_why);
    }
    if (st == ST_OK) {
        *out = state;
        return ST_OK;
    }
    if (out_why->text[0] == '\0') {
        reason_set(out_why, "%s",
                   folder->found.text[0] != '\0' ? folder->found.text : status_string(st));
    }
    if (state->source.self == NULL)
        free(folder);
    stored_state_free(state);
    return st;
}
