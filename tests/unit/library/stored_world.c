#include "stored_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "common/check.h"
#include "common/unconst.h"
#include "tests/test.h"

int stored_world_set_up(void **state)
{
    struct stored_world *w = calloc(1, sizeof(*w));
    (void)snprintf(w->folder, sizeof(w->folder), "/tmp/cairn-library-XXXXXX");
    if (mkdtemp(w->folder) == NULL)
        return -1;
    *state = w;
    return 0;
}

int stored_world_tear_down(void **state)
{
    struct stored_world *w = *state;
    const int removed = rmdir(w->folder);
    free(w);
    return removed;
}

void stored_world_begin(struct stored_world *w, uint32_t size)
{
    w->size = size;
    w->made = 0;
    w->checkpoint[0] = '\0';
}

void stored_world_end(struct stored_world *w)
{
    for (uint32_t i = 0; i < w->size; i++) {
        for (uint32_t t = 0; t < w->ranks[i].tensor_count; t++)
            free(stored_rank_data(&w->ranks[i].tensors[t]));
        fake_release(&w->workers[i]);
        layout_places_release(&w->places[i]);
        for (uint32_t f = 0; f < FAKE_FILES; f++) {
            char path[128];
            (void)snprintf(path, sizeof(path), "%s/g3-r%u-%u.copy", w->folder, i, f);
            (void)unlink(path);
        }
    }
    if (w->checkpoint[0] != '\0') {
        assert_int_equal(ckpt_remove(io_system(), w->checkpoint), ST_OK);
        char job[128];
        (void)snprintf(job, sizeof(job), "%s/j-test", w->folder);
        assert_int_equal(rmdir(job), 0);
    }
    memset(w->ranks, 0, sizeof(w->ranks));
    memset(w->workers, 0, sizeof(w->workers));
}

struct stored_rank *stored_world_rank(struct stored_world *w)
{
    CHECK(w->made < w->size);
    return &w->ranks[w->made++];
}

uint64_t stored_tensor_bytes(const struct cairn_tensor *tensor)
{
    uint64_t bytes = cairn_dtype_size((int)tensor->dtype);
    for (uint32_t d = 0; d < tensor->ndim; d++)
        bytes *= tensor->kind == CAIRN_SHARDED ? tensor->extent[d] : tensor->shape[d];
    return bytes;
}

void *stored_rank_data(const struct cairn_tensor *tensor)
{
    return unconst(tensor->data);
}

struct cairn_tensor *stored_rank_add(struct stored_rank *rank, const char *name, int dtype,
                                     int kind, uint32_t ndim, const uint64_t *shape)
{
    CHECK(rank->tensor_count < STORED_TENSORS);
    struct cairn_tensor *tensor = &rank->tensors[rank->tensor_count++];
    tensor->dtype = (uint32_t)dtype;
    tensor->kind = (uint32_t)kind;
    tensor->ndim = ndim;
    (void)snprintf(tensor->name, sizeof(tensor->name), "%s", name);
    for (uint32_t d = 0; d < ndim; d++)
        tensor->shape[d] = tensor->extent[d] = shape[d];
    const uint64_t bytes = stored_tensor_bytes(tensor);
    uint8_t *data = malloc(bytes + 1);
    CHECK(data != NULL);
    for (uint64_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(i * 7 + i / 251 + (uint8_t)name[0]);
    tensor->data = data;
    return tensor;
}

void stored_rank_blob(struct stored_rank *rank, const char *name, const void *data, size_t size)
{
    CHECK(rank->blob_count < STORED_BLOBS && size <= sizeof(rank->blobs[0].data));
    rank->blobs[rank->blob_count].name = name;
    rank->blobs[rank->blob_count].size = size;
    memcpy(rank->blobs[rank->blob_count++].data, data, size);
}

const struct cairn_tensor *stored_rank_find(const struct stored_rank *rank, const char *name)
{
    for (uint32_t i = 0; i < rank->tensor_count; i++) {
        if (strcmp(rank->tensors[i].name, name) == 0)
            return &rank->tensors[i];
    }
    fail_msg("no tensor %s", name);
    return NULL;
}

/* ---- saving ---- */

static void place_rank(struct stored_world *w, uint32_t rank)
{
    struct wire_entry entries[STORED_TENSORS];
    struct reason why;
    const struct stored_rank *it = &w->ranks[rank];
    memset(entries, 0, sizeof(entries));
    for (uint32_t i = 0; i < it->tensor_count; i++) {
        const struct cairn_tensor *tensor = &it->tensors[i];
        memcpy(entries[i].name, tensor->name, sizeof(entries[i].name));
        entries[i].dtype = tensor->dtype;
        entries[i].kind = tensor->kind;
        entries[i].ndim = tensor->ndim;
        memcpy(entries[i].shape, tensor->shape, sizeof(tensor->shape));
        memcpy(entries[i].start, tensor->start, sizeof(tensor->start));
        memcpy(entries[i].extent, tensor->extent, sizeof(tensor->extent));
    }
    layout_places_release(&w->places[rank]);
    assert_int_equal(layout_places_make(entries, it->tensor_count, 64, &w->places[rank], &why),
                     ST_OK);
}

static void save_rank(struct stored_world *w, uint32_t rank)
{
    struct fake_worker *worker = &w->workers[rank];
    const struct stored_rank *it = &w->ranks[rank];
    struct cairn *c = NULL;
    fake_release(worker);
    memset(worker, 0, sizeof(*worker));
    worker->folder = w->folder;
    worker->rank = rank;
    worker->size = w->size;
    for (uint32_t r = 0; r < w->size; r++)
        worker->areas[r] = w->places[r].buffer_bytes[PLACE_RANKS];
    fake_start(worker);
    assert_int_equal(cairn_open(NULL, &c), CAIRN_OK);
    assert_int_equal(cairn_layout(c, it->tensors, it->tensor_count, 64), CAIRN_OK);
    assert_int_equal(cairn_ready(c, 0, 1000, 0), CAIRN_OK);
    /* Twice: what the second copy doesn't use of the file must not be the first one's. */
    for (uint32_t twice = 0; twice < 2; twice++) {
        assert_int_equal(cairn_save_begin(c, w->step, NULL), CAIRN_OK);
        for (uint32_t i = 0; i < it->blob_count; i++) {
            assert_int_equal(
                cairn_save_blob(c, it->blobs[i].name, it->blobs[i].data, it->blobs[i].size),
                CAIRN_OK);
        }
        assert_int_equal(cairn_save_start(c), CAIRN_OK);
        assert_int_equal(cairn_save_copied(c), CAIRN_OK);
    }
    fake_await(worker, WIRE_COPIED, 2);
    cairn_close(c);
    fake_stop(worker);
}

void stored_world_save(struct stored_world *w, uint64_t step)
{
    w->step = step;
    for (uint32_t i = 0; i < w->size; i++)
        place_rank(w, i);
    for (uint32_t i = 0; i < w->size; i++)
        save_rank(w, i);
}

const char *stored_world_path(const struct stored_world *w, uint32_t rank)
{
    return fake_path(&w->workers[rank]);
}

/* ---- a checkpoint ---- */

static void write_shard(struct stored_world *w, uint32_t rank, struct ckpt_report *report)
{
    static struct ckpt_share share;
    struct copy_view view;
    struct ckpt_buffer buffers[CKPT_BUFFERS_MAX] = { 0 };
    assert_int_equal(copy_view_map(stored_world_path(w, rank), &view), ST_OK);
    struct ckpt_state state = { .job = "j-test",
                                .generation = 3,
                                .buffers = buffers,
                                .buffer_count = view.head->buffer_count,
                                .share = &share };
    struct ckpt_blob blob = { .name = PLACE_AREAS };
    size_t size = 0;
    copy_view_scalars(&view, &state.scalars);
    for (uint32_t i = 0; i < state.buffer_count; i++) {
        memcpy(buffers[i].name, view.head->buffers[i].name, sizeof(buffers[i].name));
        buffers[i].dtype = (enum ckpt_dtype)view.head->buffers[i].dtype;
        buffers[i].count = view.head->buffers[i].elements;
        buffers[i].packed = true;
    }
    share.count = view.head->extent_count;
    for (uint32_t i = 0; i < share.count; i++) {
        const struct copy_extent *it = &copy_view_extents(&view)[i];
        share.extent[i] = (struct ckpt_extent){ it->buffer, it->first, it->count };
        if (buffers[it->buffer].data != NULL)
            continue;
        buffers[it->buffer].data = copy_view_data(&view, i, &size);
        buffers[it->buffer].pieces = (const void *)(view.memory + it->hashes);
    }
    blob.data = copy_view_blob(&view, PLACE_AREAS, &size);
    blob.size = size;
    state.blobs = &blob;
    state.blob_count = blob.data != NULL ? 1 : 0;
    assert_int_equal(
        ckpt_shard_write(io_system(), w->checkpoint, &state, rank, w->size, NULL, report), ST_OK);
    memcpy(w->shards[rank], report->file, sizeof(report->file));
    copy_view_unmap(&view);
}

void stored_world_commit(struct stored_world *w)
{
    struct ckpt_report reports[FAKE_RANKS];
    struct ckpt_hash digest;
    struct buf manifest;
    buf_init(&manifest, LIMIT_MANIFEST_BYTES);
    assert_int_equal(
        ckpt_folder_path(w->folder, "j-test", w->step, 3, 0, w->checkpoint, sizeof(w->checkpoint)),
        ST_OK);
    assert_int_equal(ckpt_folder_create(io_system(), w->checkpoint), ST_OK);
    for (uint32_t i = 0; i < w->size; i++)
        write_shard(w, i, &reports[i]);
    assert_int_equal(ckpt_commit_check(io_system(), w->checkpoint, reports, w->size), ST_OK);
    assert_int_equal(
        ckpt_manifest_make(reports, w->size, "j-test", "2026-01-01T00:00:00Z", &manifest, &digest),
        ST_OK);
    assert_int_equal(
        ckpt_manifest_publish(io_system(), w->checkpoint, manifest.data, manifest.size), ST_OK);
    buf_release(&manifest);
    for (uint32_t i = 0; i < w->size; i++)
        ckpt_report_release(&reports[i]);
}

/* ---- reading ---- */

int stored_world_restore(struct stored_world *w, enum wire_source source, struct cairn_state **out)
{
    struct fake_worker worker = { .folder = w->folder, .size = 1, .step = w->step };
    struct cairn *c = NULL;
    worker.source = source;
    worker.path_count = source == WIRE_MEMORY ? w->size : 1;
    for (uint32_t i = 0; i < worker.path_count; i++) {
        const char *path = source == WIRE_MEMORY ? stored_world_path(w, i) : w->checkpoint;
        CHECK(worker.paths_bytes + strlen(path) < sizeof(worker.paths));
        memcpy(worker.paths + worker.paths_bytes, path, strlen(path) + 1);
        worker.paths_bytes += strlen(path) + 1;
    }
    fake_start(&worker);
    assert_int_equal(cairn_open(NULL, &c), CAIRN_OK);
    struct cairn_info info;
    cairn_info(c, &info);
    assert_int_equal(info.has_state, 1);
    assert_int_equal(info.step, w->step);
    assert_int_equal(info.from_memory, source == WIRE_MEMORY);
    const int status = cairn_restore(c, out);
    cairn_close(c); /* the state needs no connection */
    fake_stop(&worker);
    fake_release(&worker);
    return status;
}
