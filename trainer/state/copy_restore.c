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

struct share_restore {
    struct worker *worker;
    const struct copy_source *from;
    struct host_state host;
    struct state_view view;
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

/* Some rank is on another node than the share: the rank that holds it sends it to all. */
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

/* It is this job's state, cut into as many shares as the assignment says. */
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
        uint64_t first = 0, count = 0;
        ckpt_share_elements(state, i, r->share, copy->size, &first, &count);
        same = strcmp(b->name, state->buffers[i].name) == 0 &&
               b->dtype == (uint32_t)state->buffers[i].dtype &&
               b->elements == state->buffers[i].count && b->first == first && b->count == count;
    }
    return same ? ST_OK : share_fail(r, ST_CORRUPT, "is not of this job's state");
}

/* All shares carry the same scalars: the first one's are taken, the others' compared. */
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
    const bool same = w->scaler.scale == scalars.loss_scale &&
                      w->scaler.good_steps == scalars.loss_scale_good_steps &&
                      worker_skip_before(w, scalars.step) == scalars.skip_count;
    return same ? ST_OK : share_fail(r, ST_CORRUPT, "is of another state than the others");
}

/* here: the share lies on this node; sent: it goes to ranks on others. */
static enum status take_share_data(const struct share_restore *r, const struct copy_view *view,
                                   bool here, bool sent)
{
    enum status st = ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < view->head->buffer_count; i++) {
        const struct copy_buffer *b = &view->head->buffers[i];
        const size_t width = (size_t)ckpt_dtype_size((enum ckpt_dtype)b->dtype);
        uint8_t *to = (uint8_t *)r->host.data[i] + b->first * width;
        const size_t size = (size_t)b->count * width;
        if (size == 0)
            continue;
        if (here)
            memcpy(to, view->memory + b->data, size);
        if (sent)
            st = send_all(r, to, size);
        if (st != ST_OK)
            return share_fail(r, st, "could not be sent");
        st = copy_view_check_data(view, i, to);
        progress_tick(r->worker->options.progress);
    }
    return st == ST_OK ? ST_OK : share_fail(r, st, "is damaged");
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
        st = take_share_scalars(r, &view);
    if (st == ST_OK)
        st = take_share_data(r, &view, here, sent);
    if (here)
        copy_view_unmap(&view);
    return st;
}

enum status copy_restore(struct worker *worker, const struct copy_source *from,
                         struct reason *reason)
{
    struct share_restore r = { .worker = worker, .from = from, .reason = reason };
    state_describe(worker, from->assignment->memory.step, NULL, &r.view);
    enum status st = host_state_make(worker, &r.view.state, &r.host);
    if (st != ST_OK)
        (void)share_fail(&r, st, "memory");
    for (; st == ST_OK && r.share < from->assignment->memory.size; r.share++)
        st = take_share(&r);
    if (st == ST_OK)
        st = host_state_upload(worker, &r.host);
    host_state_release(&r.host);
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
