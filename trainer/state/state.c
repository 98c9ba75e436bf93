#include "trainer/state/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "common/fault.h"
#include "trainer/state/host_state.h"
#include "trainer/state/initial_state.h"
#include "trainer/tape/initial_values.h"

static bool lies_on_host(const struct worker *w)
{
    return w->device.table->host_memory;
}

static enum status upload(struct worker *w, void *to, const void *from, size_t bytes)
{
    const struct device *d = &w->device;
    enum status st = d->table->vector.copy(d->backend, to, from, bytes, d->compute);
    return st == ST_OK ? d->table->stream_sync(d->backend, d->compute) : st;
}

enum status state_clear(struct worker *worker)
{
    struct worker *w = worker;
    const struct device *d = &w->device;
    struct state_view view;
    struct ckpt_share held;
    enum status st = worker_hold(w, NULL);
    if (st != ST_OK)
        return st;
    state_describe(w, 0, NULL, &view);
    st = ckpt_share_held(&view.state, &held);
    for (uint32_t i = 0; st == ST_OK && i < held.count; i++) {
        const struct ckpt_extent *extent = &held.extent[i];
        const struct ckpt_buffer *buffer = &view.state.buffers[extent->buffer];
        const size_t width = (size_t)ckpt_dtype_size(buffer->dtype);
        char *live = optimizer_buffer(w->optimizer, buffer->name);
        CHECK(live != NULL && width % sizeof(float) == 0);
        st = d->table->vector.fill(d->backend, (float *)(void *)(live + extent->first * width), 0,
                                   (size_t)extent->count * (width / sizeof(float)), d->compute);
    }
    return st == ST_OK ? d->table->stream_sync(d->backend, d->compute) : st;
}

static bool is_within(size_t at, const struct lane_extent *extents, size_t count)
{
    bool within = false;
    for (size_t i = 0; i < count; i++)
        within = within || (at >= extents[i].first && at < extents[i].end);
    return within;
}

/* Draws the values of a stage in place. */
static void draw_stage(struct worker *w, float *params, float *stats)
{
    const struct stage *s = w->stage;
    for (int i = 0; i < w->tape->param_count; i++) {
        if (is_within(w->tape->params[i].offset, s->params, s->param_extents))
            initial_values_param(w->tape, (uint64_t)w->options.job->train.seed, i, params);
    }
    for (int i = 0; i < w->tape->stat_count; i++) {
        if (is_within(w->tape->stats[i].offset, s->stats, stage_chunks(s)))
            initial_values_stat(w->tape, i, stats);
    }
}

/* Copies this rank's parts of a buffer that the host has filled in as a whole to their places. */
static enum status upload_held(struct worker *w, uint32_t buffer, float *live, const float *host,
                               size_t count)
{
    const struct lane_extent all = { 0, count };
    const struct lane_extent *extents = &all;
    size_t extent_count = 1;
    if (w->stage != NULL) {
        const bool params = buffer == 0;
        extents = params ? w->stage->params : w->stage->stats;
        extent_count = params ? w->stage->param_extents : stage_chunks(w->stage);
    }
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < extent_count; i++) {
        const size_t bytes = (extents[i].end - extents[i].first) * sizeof(*live);
        if (bytes > 0)
            st = upload(w, live + extents[i].first, host + extents[i].first, bytes);
    }
    return st;
}

static enum status fill_in(struct worker *w, struct reason *reason)
{
    struct initial_state_options initial = { .job = w->options.job,
                                             .io = w->options.io,
                                             .tape = w->tape };
    w->scaler = scaler_start(&w->settings.scaler);
    optimizer_describe(w->optimizer, &initial.buffers, &initial.buffer_count, &initial.tensors,
                       &initial.tensor_count);
    float *params = optimizer_params(w->optimizer), *stats = optimizer_stats(w->optimizer);
    enum status st = state_clear(w); /* a process that goes on has moments of another state */
    if (st != ST_OK)
        return st;
    const bool imports = w->options.job->model.weights[0] != '\0';
    if (lies_on_host(w) && w->stage != NULL && !imports) {
        draw_stage(w, params, stats);
        return ST_OK;
    }
    if (lies_on_host(w) && w->stage == NULL)
        return initial_state_fill(&initial, params, stats, reason);
    const struct lane_layout *layout = &w->layout;
    auto_free float *host = calloc(layout->param_count + layout->stat_count, sizeof(*host));
    if (host == NULL)
        return ST_NO_MEMORY;
    st = initial_state_fill(&initial, host, host + layout->param_count, reason);
    if (st == ST_OK)
        st = upload_held(w, 0, params, host, layout->param_count);
    if (st == ST_OK && layout->stat_count > 0)
        st = upload_held(w, 1, stats, host + layout->param_count, layout->stat_count);
    return st;
}

enum status state_seed(struct worker *worker, struct reason *reason)
{
    const struct device *d = &worker->device;
    enum status st = fill_in(worker, reason);
    if (st == ST_OK)
        st = optimizer_begin(worker->optimizer, d->compute);
    return st == ST_OK ? d->table->stream_sync(d->backend, d->compute) : st;
}

/* ---- describe ---- */

static void add_text_blob(struct state_view *view, const char *name, const char *text)
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
    s->share = w->share;
    s->held = w->held;
    if (w->staging != NULL) {
        s->buffers = staging_buffers(w->staging);
        s->share = staging_share(w->staging);
    }
    CHECK(w->settings.steps_per_epoch > 0);
    size_t skips = 0;
    const uint64_t *skip = worker_skip_list(w, step, &skips);
    s->scalars = (struct ckpt_scalars){ .seed = w->settings.seed,
                                        .step = step,
                                        .epoch = step / w->settings.steps_per_epoch,
                                        .epoch_step = step % w->settings.steps_per_epoch,
                                        .loss_scale = w->scaler.scale,
                                        .loss_scale_good_steps = w->scaler.good_steps,
                                        .skip = skip,
                                        .skip_count = skips };
    s->blobs = view->blobs;
    if (beside == NULL)
        return;
    (void)snprintf(s->job, sizeof(s->job), "%s", beside->job);
    s->generation = beside->generation;
    (void)snprintf(view->metrics, sizeof(view->metrics), "{\"through_step\":%llu}",
                   (unsigned long long)step);
    add_text_blob(view, "job.yaml", beside->job_file);
    add_text_blob(view, STATE_PINS_BLOB, beside->pins);
    add_text_blob(view, "metrics.json", view->metrics);
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

enum status state_allow_saves(struct worker *worker)
{
    if (lies_on_host(worker))
        return ST_OK;
    struct state_view view;
    state_describe(worker, 0, NULL, &view);
    return staging_open(&worker->device, &view.state, worker->options.rank, worker->options.size,
                        &worker->staging);
}

enum status state_share_bytes(struct worker *worker, size_t *out, struct reason *reason)
{
    struct state_view view;
    struct ckpt_share share;
    state_describe(worker, 0, NULL, &view);
    const enum status st =
        ckpt_share_of(&view.state, worker->options.rank, worker->options.size, &share);
    if (st != ST_OK) {
        reason_set(reason,
                   "worker %u's part of the state can't be saved: %s; use more workers, or "
                   "leave parallel.zero out",
                   worker->options.rank, status_string(st));
        return st;
    }
    *out = (size_t)ckpt_share_bytes(&view.state, &share);
    return ST_OK;
}

/* ---- digest ---- */

enum status state_digest(struct worker *worker, uint64_t step, struct ckpt_hash *out)
{
    struct state_view view;
    struct host_state host = { 0 };
    state_describe(worker, step, NULL, &view);
    if (view.state.held != NULL)
        return ST_INVALID;
    enum status st = host_state_make(worker, &view.state, &host);
    if (st == ST_OK)
        st = host_state_fetch(worker, &host);
    if (st == ST_OK)
        st = ckpt_state_digest(&view.state, out);
    host_state_release(&host);
    return st;
}

enum status state_read_pins(const struct io *io, const char *dir, char **out)
{
    struct ckpt_reader *reader = NULL;
    size_t size = 0;
    enum status st = ckpt_open(io, dir, NULL, NULL, &reader);
    if (st != ST_OK)
        return st;
    st = ckpt_read_blob(reader, STATE_PINS_BLOB, out, &size);
    ckpt_close(reader);
    return st;
}
