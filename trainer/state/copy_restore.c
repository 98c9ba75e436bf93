#include "trainer/state/copy_restore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "trainer/state/host_state.h"
#include "trainer/state/state.h"

#define SEND_MS  INT64_C(60000)
#define HEAD_MAX ((uint64_t)256 * 1024 * 1024) /* holds the hashes of a share of some TB */
/* Most bytes of an extent that are read and sent at once: whole chunks, on all ranks the same. */
#define STRETCH ((size_t)16 * 1024 * 1024)

struct share_restore {
    struct worker *worker;
    const struct copy_source *from;
    struct host_state host;
    struct state_view view;
    uint8_t *covered;                        /* of each chunk of the state: 1: a share had it */
    uint64_t chunk_at[CKPT_BUFFERS_MAX + 1]; /* of a buffer's first chunk there; their number */
    uint64_t covered_count;
    uint8_t *scratch; /* STRETCH, for what isn't held; NULL: all is */
    uint32_t share;
    struct reason *reason;
};

static enum status share_fail(const struct share_restore *r, enum status st, const char *cause)
{
    const struct session_copy *copy = &r->from->assignment->memory;
    reason_set(r->reason, "copy in memory of step %llu, share %u of %u: %s: %s",
               (unsigned long long)copy->step, r->share, copy->size, cause, status_string(st));
    return st;
}

static bool same_node(const struct session_assignment *assignment, uint32_t a, uint32_t b)
{
    return strcmp(assignment->nodes[a], assignment->nodes[b]) == 0;
}

/* True if some rank is on another node than the share: the rank that holds it sends it to all. */
static bool is_sent(const struct session_assignment *assignment, uint32_t share)
{
    for (uint32_t r = 0; r < assignment->size; r++) {
        if (!same_node(assignment, r, assignment->holders[share]))
            return true;
    }
    return false;
}

bool copy_restore_travels(const struct session_assignment *assignment)
{
    for (uint32_t i = 0; i < assignment->memory.size; i++) {
        if (is_sent(assignment, i))
            return true;
    }
    return false;
}

/* ---- one share ---- */

/* The holder's bytes to all; every rank calls with the same size. */
static enum status send_all(const struct share_restore *r, void *data, size_t size)
{
    const struct copy_source *from = r->from;
    auto_free struct comm_segment *segments = calloc(from->assignment->size, sizeof(*segments));
    if (segments == NULL)
        return ST_NO_MEMORY;
    segments[from->assignment->holders[r->share]] =
        (struct comm_segment){ .data = data, .size = size };
    return from->table->all_gather_v(from->comm, segments, SEND_MS);
}

/* Checks that the copy is of this job's state, cut into as many shares as the assignment says. */
static enum status check_share(const struct share_restore *r, const struct copy_view *view)
{
    const struct ckpt_state *state = &r->view.state;
    const struct copy_head *head = view->head;
    const struct session_copy *copy = &r->from->assignment->memory;
    bool same = head->buffer_count == state->buffer_count && head->step == copy->step &&
                head->generation == copy->generation && head->rank == r->share &&
                head->size == copy->size && head->seed == r->worker->settings.seed;
    for (uint32_t i = 0; same && i < head->buffer_count; i++) {
        const struct copy_buffer *b = &head->buffers[i];
        same = strcmp(b->name, state->buffers[i].name) == 0 &&
               b->dtype == (uint32_t)state->buffers[i].dtype &&
               b->elements == state->buffers[i].count;
    }
    return same ? ST_OK : share_fail(r, ST_CORRUPT, "is not of this job's state");
}

/* Notes which chunks it has: no other share may have them. */
static enum status cover(struct share_restore *r, const struct copy_view *view)
{
    const struct copy_extent *extents = copy_view_extents(view);
    for (uint32_t i = 0; i < view->head->extent_count; i++) {
        const uint32_t buffer = extents[i].buffer;
        const enum ckpt_dtype dtype = r->view.state.buffers[buffer].dtype;
        const uint64_t index = extents[i].first / ckpt_chunk_elements(dtype);
        uint8_t *chunk = r->covered + r->chunk_at[buffer] + index;
        const size_t count = (size_t)ckpt_chunks(dtype, extents[i].count);
        if (memchr(chunk, 1, count) != NULL)
            return share_fail(r, ST_CORRUPT, "has what another one has, too");
        memset(chunk, 1, count);
        r->covered_count += count;
    }
    return ST_OK;
}

/* Takes the scalars of the first share and compares those of the others: all have the same. */
static enum status take_share_scalars(const struct share_restore *r, const struct copy_view *view)
{
    struct worker *w = r->worker;
    struct ckpt_scalars scalars;
    copy_view_scalars(view, &scalars);
    if (r->share == 0) {
        enum status st = worker_skip_add(w, scalars.skip, (size_t)scalars.skip_count);
        if (st != ST_OK)
            return share_fail(r, st, "skip list");
        w->scaler.scale = scalars.loss_scale;
        w->scaler.good_steps = scalars.loss_scale_good_steps;
        return ST_OK;
    }
    size_t skips = 0;
    const uint64_t *skip = worker_skip_list(w, scalars.step, &skips);
    const bool same = w->scaler.scale == scalars.loss_scale &&
                      w->scaler.good_steps == scalars.loss_scale_good_steps &&
                      skips == scalars.skip_count &&
                      (skips == 0 || memcmp(skip, scalars.skip, skips * sizeof(*skip)) == 0);
    return same ? ST_OK : share_fail(r, ST_CORRUPT, "is of another state than the others");
}

/* Elements [first, first + count) of a buffer: part of an extent of the share. */
struct stretch {
    uint32_t extent, buffer;
    uint64_t first, count;
    uint64_t offset; /* bytes of the extent before it */
    size_t size;
};

/* Copies the held elements of a stretch to their places. */
static void place_held(const struct share_restore *r, const struct stretch *s, const uint8_t *bytes)
{
    const size_t width = s->size / (size_t)s->count;
    const uint64_t end = s->first + s->count;
    uint64_t first = 0, count = 0;
    for (uint64_t at = s->first;
         ckpt_share_part(&r->host.held, s->buffer, at, end - at, &first, &count);
         at = first + count) {
        memcpy((uint8_t *)r->host.data[s->buffer] + first * width,
               bytes + (first - s->first) * width, (size_t)count * width);
    }
}

/* here: the share lies on this node; sent: it goes to ranks on others. */
static enum status take_stretch(const struct share_restore *r, const struct copy_view *view,
                                const struct stretch *s, bool here, bool sent)
{
    uint64_t first = 0, count = 0;
    const bool some = ckpt_share_part(&r->host.held, s->buffer, s->first, s->count, &first, &count);
    const bool all = some && count == s->count;
    if (!some && !sent)
        return ST_OK;
    const size_t width = s->size / (size_t)s->count;
    uint8_t *to = all ? (uint8_t *)r->host.data[s->buffer] + s->first * width : r->scratch;
    size_t size = 0;
    if (here)
        memcpy(to, (const uint8_t *)copy_view_data(view, s->extent, &size) + s->offset, s->size);
    enum status st = sent ? send_all(r, to, s->size) : ST_OK;
    if (st != ST_OK)
        return share_fail(r, st, "could not be sent");
    st = copy_view_check_data(view, s->extent, s->offset, to, s->size);
    if (st != ST_OK)
        return share_fail(r, st, "is damaged");
    if (!all)
        place_held(r, s, to);
    progress_tick(r->worker->options.progress);
    return ST_OK;
}

static enum status take_share_data(const struct share_restore *r, const struct copy_view *view,
                                   bool here, bool sent)
{
    const struct copy_extent *extents = copy_view_extents(view);
    enum status st = ST_OK;
    for (uint32_t i = 0; i < view->head->extent_count; i++) {
        const size_t width = ckpt_dtype_size(r->view.state.buffers[extents[i].buffer].dtype);
        const uint64_t most = STRETCH / width;
        for (uint64_t at = 0; st == ST_OK && at < extents[i].count; at += most) {
            const uint64_t left = extents[i].count - at, count = left < most ? left : most;
            const struct stretch stretch = { .extent = i,
                                             .buffer = extents[i].buffer,
                                             .first = extents[i].first + at,
                                             .count = count,
                                             .offset = at * width,
                                             .size = (size_t)count * width };
            st = take_stretch(r, view, &stretch, here, sent);
        }
    }
    return st;
}

/* Ranks that have no copy get its head: tables, scalars, hashes. *out_memory: free() */
static enum status send_share_head(const struct share_restore *r, struct copy_view *view, bool here,
                                   void **out_memory)
{
    uint64_t sizes[2] = { 0, 0 };
    if (here) {
        sizes[0] = view->seal->head_size;
        sizes[1] = view->size;
    }
    enum status st = send_all(r, sizes, sizeof(sizes));
    if (st != ST_OK)
        return share_fail(r, st, "could not be sent");
    if (sizes[0] > HEAD_MAX)
        return share_fail(r, ST_CORRUPT, "is damaged");
    void *memory = malloc((size_t)sizes[0] + 1);
    if (memory == NULL)
        return share_fail(r, ST_NO_MEMORY, "head");
    if (here)
        memcpy(memory, view->memory, (size_t)sizes[0]);
    st = send_all(r, memory, (size_t)sizes[0]);
    if (st == ST_OK && !here)
        st = copy_view_parse(memory, (size_t)sizes[0], (size_t)sizes[1], view);
    if (st != ST_OK) {
        free(memory);
        return share_fail(r, st, "head");
    }
    *out_memory = memory;
    return ST_OK;
}

/* Share number r->share to its place in the state. */
static enum status take_share(struct share_restore *r)
{
    CHECK(r->share < r->from->assignment->memory.size);
    const struct session_assignment *assignment = r->from->assignment;
    const bool sent = is_sent(assignment, r->share);
    const bool here = same_node(assignment, assignment->rank, assignment->holders[r->share]);
    struct copy_view view = { .size = 0 };
    auto_free void *head = NULL;
    enum status st = ST_OK;
    if (here) {
        struct session_copy wanted = assignment->memory;
        wanted.rank = r->share;
        st = copy_folder_find(r->from->dir, assignment->job, &wanted, &view);
        if (st != ST_OK)
            return share_fail(r, st, "is not there");
    }
    if (sent)
        st = send_share_head(r, &view, here, &head);
    if (st == ST_OK && view.head == NULL)
        st = share_fail(r, ST_CORRUPT, "is damaged");
    if (st == ST_OK)
        st = check_share(r, &view);
    if (st == ST_OK)
        st = cover(r, &view);
    if (st == ST_OK)
        st = take_share_scalars(r, &view);
    if (st == ST_OK)
        st = take_share_data(r, &view, here, sent);
    if (here)
        copy_view_unmap(&view);
    return st;
}

static enum status make_tables(struct share_restore *r)
{
    const struct ckpt_state *state = &r->view.state;
    for (uint32_t i = 0; i < state->buffer_count; i++) {
        const struct ckpt_buffer *b = &state->buffers[i];
        r->chunk_at[i + 1] = r->chunk_at[i] + ckpt_chunks(b->dtype, b->count);
    }
    r->covered = calloc((size_t)r->chunk_at[state->buffer_count] + 1, 1);
    if (state->held != NULL)
        r->scratch = malloc(STRETCH);
    return r->covered == NULL || (state->held != NULL && r->scratch == NULL) ? ST_NO_MEMORY : ST_OK;
}

static enum status check_covered(const struct share_restore *r)
{
    const struct session_copy *copy = &r->from->assignment->memory;
    if (r->covered_count == r->chunk_at[r->view.state.buffer_count])
        return ST_OK;
    reason_set(r->reason, "copy in memory of step %llu: its %u shares are not the whole state",
               (unsigned long long)copy->step, copy->size);
    return ST_CORRUPT;
}

enum status copy_restore(struct worker *worker, const struct copy_source *from,
                         struct reason *reason)
{
    struct share_restore r = { .worker = worker, .from = from, .reason = reason };
    enum status st = worker_hold(worker, NULL);
    state_describe(worker, from->assignment->memory.step, NULL, &r.view);
    if (st == ST_OK)
        st = host_state_make(worker, &r.view.state, &r.host);
    if (st == ST_OK)
        st = make_tables(&r);
    if (st != ST_OK)
        (void)share_fail(&r, st, "memory");
    for (; st == ST_OK && r.share < from->assignment->memory.size; r.share++)
        st = take_share(&r);
    if (st == ST_OK)
        st = check_covered(&r);
    if (st == ST_OK)
        st = host_state_upload(worker, &r.host);
    host_state_release(&r.host);
    free(r.covered);
    free(r.scratch);
    return st;
}

enum status copy_restore_pins(const char *dir, const struct session_assignment *assignment,
                              char **out)
{
    struct session_copy copy = assignment->memory;
    for (copy.rank = 0; copy.rank < copy.size; copy.rank++) {
        struct copy_view view;
        if (copy_folder_find(dir, assignment->job, &copy, &view) != ST_OK)
            continue;
        size_t size = 0;
        const char *text = copy_view_blob(&view, STATE_PINS_BLOB, &size);
        *out = text != NULL ? strndup(text, size) : NULL;
        copy_view_unmap(&view);
        return *out != NULL ? ST_OK : ST_NOT_FOUND;
    }
    return ST_NOT_FOUND;
}
