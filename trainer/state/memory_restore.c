#include "trainer/state/memory_restore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "trainer/state/host_state.h"
#include "trainer/state/state.h"

#define SEND_MS  INT64_C(60000)
#define HEAD_MAX ((uint64_t)256 * 1024 * 1024) /* hashes of some TB */

struct restore {
    struct worker *worker;
    const struct state_memory *from;
    struct whole whole;
    struct state_view view;
    uint32_t share;
    char *message;
    size_t capacity;
};

static enum status fail(const struct restore *r, enum status st, const char *cause)
{
    const struct session_copy *copy = &r->from->plan->memory;
    (void)snprintf(r->message, r->capacity, "copy in memory of step %llu, share %u of %u: %s: %s",
                   (unsigned long long)copy->step, r->share, copy->size, cause, status_string(st));
    return st;
}

static bool same_node(const struct session_assignment *plan, uint32_t a, uint32_t b)
{
    return strcmp(plan->nodes[a], plan->nodes[b]) == 0;
}

/* Some rank has no way to the share but by the holder. */
static bool is_sent(const struct session_assignment *plan, uint32_t share)
{
    for (uint32_t r = 0; r < plan->size; r++) {
        if (!same_node(plan, r, plan->holders[share]))
            return true;
    }
    return false;
}

bool state_memory_travels(const struct session_assignment *plan)
{
    for (uint32_t i = 0; i < plan->memory.size; i++) {
        if (is_sent(plan, i))
            return true;
    }
    return false;
}

/* ---- one share ---- */

/* The same bytes of the holder to all; every rank calls. */
static enum status send_all(const struct restore *r, void *data, size_t size)
{
    const struct state_memory *from = r->from;
    auto_free struct comm_segment *segments = calloc(from->plan->size, sizeof(*segments));
    if (segments == NULL)
        return ST_NO_MEMORY;
    segments[from->plan->holders[r->share]] = (struct comm_segment){ .data = data, .size = size };
    return from->table->all_gather_v(from->comm, segments, SEND_MS);
}

/* It is this job's state, cut as this job's state of so many ranks is cut. */
static enum status check_kind(const struct restore *r, const struct copy_view *view)
{
    const struct ckpt_state *state = &r->view.state;
    const struct copy_head *head = view->head;
    const struct session_copy *copy = &r->from->plan->memory;
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
    return same ? ST_OK : fail(r, ST_CORRUPT, "is not of this job's state");
}

/* All shares tell the same scalars; the first sets them. */
static enum status take_scalars(const struct restore *r, const struct copy_view *view)
{
    struct worker *w = r->worker;
    struct ckpt_scalars scalars;
    copy_view_scalars(view, &scalars);
    if (r->share == 0) {
        enum status st = worker_skip(w, scalars.skip, (size_t)scalars.skip_count);
        if (st != ST_OK)
            return fail(r, st, "skip list");
        w->scaler.scale = scalars.loss_scale;
        w->scaler.good_steps = scalars.loss_scale_good_steps;
        return ST_OK;
    }
    const bool same = w->scaler.scale == scalars.loss_scale &&
                      w->scaler.good_steps == scalars.loss_scale_good_steps &&
                      worker_skipped(w, scalars.step) == scalars.skip_count;
    return same ? ST_OK : fail(r, ST_CORRUPT, "is of another state than the others");
}

static enum status take_data(const struct restore *r, const struct copy_view *view, bool here,
                             bool sent)
{
    enum status st = ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < view->head->buffer_count; i++) {
        const struct copy_buffer *b = &view->head->buffers[i];
        const size_t width = (size_t)ckpt_dtype_size((enum ckpt_dtype)b->dtype);
        uint8_t *to = (uint8_t *)r->whole.data[i] + b->first * width;
        const size_t size = (size_t)b->count * width;
        if (size == 0)
            continue;
        if (here)
            memcpy(to, view->memory + b->data, size);
        if (sent)
            st = send_all(r, to, size);
        if (st != ST_OK)
            return fail(r, st, "could not be sent");
        st = copy_view_check_data(view, i, to);
        marks_tick(r->worker->options.marks);
    }
    return st == ST_OK ? ST_OK : fail(r, st, "is damaged");
}

/* Who has no copy gets its head: tables, scalars, hashes. *out_memory: free(). */
static enum status send_head(const struct restore *r, struct copy_view *view, bool here,
                             void **out_memory)
{
    uint64_t sizes[2] = { 0, 0 };
    if (here) {
        sizes[0] = view->seal->head_size;
        sizes[1] = view->size;
    }
    enum status st = send_all(r, sizes, sizeof(sizes));
    if (st != ST_OK)
        return fail(r, st, "could not be sent");
    if (sizes[0] > HEAD_MAX)
        return fail(r, ST_CORRUPT, "is damaged");
    void *memory = malloc((size_t)sizes[0] + 1);
    if (memory == NULL)
        return fail(r, ST_NO_MEMORY, "head");
    if (here)
        memcpy(memory, view->memory, (size_t)sizes[0]);
    st = send_all(r, memory, (size_t)sizes[0]);
    if (st == ST_OK && !here)
        st = copy_view_parse(memory, (size_t)sizes[0], (size_t)sizes[1], view);
    if (st != ST_OK) {
        free(memory);
        return fail(r, st, "head");
    }
    *out_memory = memory;
    return ST_OK;
}

static enum status take_share(struct restore *r)
{
    const struct session_assignment *plan = r->from->plan;
    const bool sent = is_sent(plan, r->share);
    const bool here = same_node(plan, plan->rank, plan->holders[r->share]);
    struct copy_view view = { .size = 0 };
    auto_free void *head = NULL;
    enum status st = ST_OK;
    if (here) {
        struct session_copy wanted = plan->memory;
        wanted.rank = r->share;
        st = copy_folder_find(r->from->dir, plan->job, &wanted, &view);
        if (st != ST_OK)
            return fail(r, st, "is not there");
    }
    if (sent)
        st = send_head(r, &view, here, &head);
    if (st == ST_OK && view.head == NULL)
        st = fail(r, ST_CORRUPT, "is damaged");
    if (st == ST_OK)
        st = check_kind(r, &view);
    if (st == ST_OK)
        st = take_scalars(r, &view);
    if (st == ST_OK)
        st = take_data(r, &view, here, sent);
    if (here)
        copy_view_unmap(&view);
    return st;
}

enum status state_restore_memory(struct worker *worker, const struct state_memory *from,
                                 char *message, size_t capacity)
{
    struct restore r = { .worker = worker, .from = from, .capacity = capacity };
    r.message = message;
    state_describe(worker, from->plan->memory.step, NULL, &r.view);
    enum status st = whole_make(worker, &r.view, &r.whole);
    if (st != ST_OK)
        (void)fail(&r, st, "memory");
    for (; st == ST_OK && r.share < from->plan->memory.size; r.share++)
        st = take_share(&r);
    if (st == ST_OK)
        st = whole_move(worker, &r.whole, r.view.state.buffer_count, true);
    whole_release(&r.whole);
    return st;
}

enum status state_memory_pins(const char *dir, const struct session_assignment *plan, char **out)
{
    struct session_copy copy = plan->memory;
    for (copy.rank = 0; copy.rank < copy.size; copy.rank++) {
        struct copy_view view;
        if (copy_folder_find(dir, plan->job, &copy, &view) != ST_OK)
            continue;
        size_t size = 0;
        const char *text = copy_view_blob(&view, STATE_PINS_BLOB, &size);
        *out = text != NULL ? strndup(text, size) : NULL;
        copy_view_unmap(&view);
        return *out != NULL ? ST_OK : ST_NOT_FOUND;
    }
    return ST_NOT_FOUND;
}
