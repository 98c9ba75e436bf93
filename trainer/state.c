#include "trainer/state.h"

#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "trainer/init.h"

void state_seed(struct worker *worker)
{
    init_params(worker->tape, worker->settings.seed, optimizer_params(worker->optimizer));
    init_stats(worker->tape, optimizer_stats(worker->optimizer));
}

/* ---- describe ---- */

static void add_blob(struct state_view *view, const char *name, const char *text)
{
    CHECK(view->state.blob_count < STATE_BLOBS);
    struct ckpt_blob *blob = &view->blobs[view->state.blob_count++];
    (void)snprintf(blob->name, sizeof(blob->name), "%s", name);
    blob->data = text;
    blob->size = strlen(text);
}

void state_describe(struct worker *worker, uint64_t step, const struct state_beside *beside,
                    struct state_view *view)
{
    struct worker *w = worker;
    memset(view, 0, sizeof(*view));
    struct ckpt_state *s = &view->state;
    optimizer_describe(w->optimizer, &s->buffers, &s->buffer_count, &s->tensors, &s->tensor_count);
    s->scalars = (struct ckpt_scalars){ .seed = w->settings.seed,
                                        .step = step,
                                        .epoch = step / w->settings.steps_per_epoch,
                                        .epoch_step = step % w->settings.steps_per_epoch,
                                        .loss_scale = 1,
                                        .skip = w->skip,
                                        .skip_count = worker_skipped(w, step) };
    s->blobs = view->blobs;
    if (beside == NULL)
        return;
    (void)snprintf(s->job, sizeof(s->job), "%s", beside->job);
    s->generation = beside->generation;
    (void)snprintf(view->metrics, sizeof(view->metrics), "{\"through_step\":%llu}",
                   (unsigned long long)step);
    add_blob(view, "job.yaml", beside->job_file);
    add_blob(view, "pins.json", beside->pins);
    add_blob(view, "metrics.json", view->metrics);
}

uint64_t state_bytes(struct worker *worker)
{
    struct state_view view;
    state_describe(worker, 0, NULL, &view);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < view.state.buffer_count; i++) {
        const struct ckpt_buffer *b = &view.state.buffers[i];
        bytes += b->count * ckpt_dtype_size(b->dtype);
    }
    return bytes;
}

size_t state_share_bytes(struct worker *worker)
{
    struct state_view view;
    state_describe(worker, 0, NULL, &view);
    size_t bytes = 0;
    for (uint32_t i = 0; i < view.state.buffer_count; i++) {
        uint64_t first = 0;
        uint64_t count = 0;
        ckpt_share_elements(&view.state, i, worker->options.rank, worker->options.size, &first,
                            &count);
        bytes += count * ckpt_dtype_size(view.state.buffers[i].dtype);
    }
    return bytes;
}

/* ---- restore ---- */

struct restore {
    struct worker *worker;
    const char *dir;
    char *message;
    size_t capacity;
};

static enum status fail(const struct restore *r, enum status st, const char *cause)
{
    (void)snprintf(r->message, r->capacity, "%s: %s: %s", r->dir, cause, status_string(st));
    return st;
}

static void chunk_read(void *arg, uint64_t done)
{
    (void)done;
    marks_tick(arg);
}

static enum status read_buffers(const struct restore *r, struct ckpt_reader *reader)
{
    struct worker *w = r->worker;
    struct state_view view;
    state_describe(w, 0, NULL, &view);
    const struct ckpt_buffer *stored = NULL;
    uint32_t count = ckpt_reader_buffers(reader, &stored);
    if (count != view.state.buffer_count)
        return fail(r, ST_CORRUPT, "holds other buffers than this job's state");
    struct ckpt_write_options progress = { .progress = chunk_read,
                                           .progress_arg = w->options.marks };
    for (uint32_t i = 0; i < count; i++) {
        const struct ckpt_buffer *b = &view.state.buffers[i];
        if (strcmp(b->name, stored[i].name) != 0 || b->dtype != stored[i].dtype ||
            b->count != stored[i].count)
            return fail(r, ST_CORRUPT, "holds buffers of another shape than this job's state");
        void *to = optimizer_buffer(w->optimizer, b->name);
        CHECK(to != NULL);
        enum status st = ckpt_read_buffer(reader, b->name, 0, b->count, to, &progress);
        if (st != ST_OK)
            return fail(r, st, b->name);
    }
    return ST_OK;
}

/* The scalars are this job's, and the digest of all that was read is the manifest's. */
static enum status check_whole(const struct restore *r, struct ckpt_reader *reader, uint64_t step)
{
    struct worker *w = r->worker;
    const struct ckpt_scalars *scalars = ckpt_reader_scalars(reader);
    if (scalars->step != step || scalars->seed != w->settings.seed)
        return fail(r, ST_CORRUPT, "is of another step or seed");
    enum status st = worker_skip(w, scalars->skip, scalars->skip_count);
    if (st != ST_OK)
        return fail(r, st, "skip list");
    struct state_view view;
    state_describe(w, step, NULL, &view);
    view.state.scalars = *scalars;
    struct ckpt_hash digest;
    st = ckpt_state_digest(&view.state, &digest);
    if (st != ST_OK)
        return fail(r, st, "digest");
    const struct ckpt_manifest *manifest = ckpt_reader_manifest(reader);
    if (memcmp(&digest, &manifest->digest, sizeof(digest)) != 0)
        return fail(r, ST_CORRUPT, "the digest of its contents is not its manifest's");
    return ST_OK;
}

enum status state_restore(struct worker *worker, const char *dir, uint64_t step, char *message,
                          size_t capacity)
{
    struct restore r = { .worker = worker, .dir = dir, .capacity = capacity };
    r.message = message;
    struct ckpt_reader *reader = NULL;
    enum status st = ckpt_open(worker->options.io, dir, &reader);
    if (st != ST_OK)
        return fail(&r, st, "cannot be restored");
    st = read_buffers(&r, reader);
    if (st == ST_OK)
        st = check_whole(&r, reader, step);
    ckpt_close(reader);
    return st;
}
