#include "trainer/state/live_sync.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/hash.h"
#include "common/check.h"
#include "common/cleanup.h"
#include "trainer/state/chunk_stream.h"
#include "trainer/state/owned_sync.h"
#include "trainer/state/replica_group.h"
#include "trainer/state/state.h"

/* Extents that all of a replica group have: of each buffer one for each part of a stage, and of
 * ties. */
#define LIVE_EXTENTS_MAX (STAGE_CHUNKS_MAX * OPTIMIZER_BUFFERS_MAX + TAPE_TIES_MAX)

#define SEND_MS INT64_C(60000)

/* The first message of every rank to all others. Sent between builds of one version. */
struct live_hello {
    uint64_t step; /* of a source: of the state that it has */
    uint64_t seed, good_steps, skip_count;
    uint64_t skip_check; /* XXH3-64 of the skip list */
    uint64_t layout;     /* ... of names, dtypes and sizes of the buffers */
    double loss_scale;
    uint32_t complete;    /* the source has that state */
    uint32_t part, parts; /* ... of what ranks own that part; 0, 0: all */
    uint32_t note_size;
    uint8_t note[LIVE_NOTE_MAX];
};

struct live {
    struct worker *worker;
    const struct live_sync_options *options;
    struct state_view view;
    struct live_hello *hellos; /* [ranks] */
    struct comm_segment *segments;
    uint64_t *skip; /* of the first source */
    uint32_t *blamed;
    struct reason *reason;
};

static enum status live_fail(const struct live *l, enum status st, const char *cause)
{
    reason_set(l->reason, "the state of step %llu from other workers: %s: %s",
               (unsigned long long)l->options->assignment->live_step, cause, status_string(st));
    return st;
}

bool live_sync_is_source(const struct session_assignment *assignment, uint32_t rank)
{
    bool found = false;
    for (size_t i = 0; i < assignment->live_source_count; i++)
        found = found || assignment->live_sources[i] == rank;
    return found;
}

/* ---- agreeing ---- */

static uint64_t layout_of(const struct ckpt_state *state)
{
    uint64_t all[1 + 3 * CKPT_BUFFERS_MAX] = { state->buffer_count };
    size_t at = 1;
    for (uint32_t i = 0; i < state->buffer_count; i++) {
        const struct ckpt_buffer *b = &state->buffers[i];
        all[at++] = ckpt_check_of(b->name, strlen(b->name));
        all[at++] = (uint64_t)b->dtype;
        all[at++] = b->count;
    }
    return ckpt_check_of(all, at * sizeof(all[0]));
}

static enum status greet(struct live *l)
{
    const struct live_sync_options *o = l->options;
    const struct ckpt_scalars *scalars = &l->view.state.scalars;
    const size_t skip_bytes = (size_t)scalars->skip_count * sizeof(*scalars->skip);
    struct live_hello *own = &l->hellos[o->assignment->rank];
    *own = (struct live_hello){ .step = o->kept->step,
                                .complete = o->kept->complete,
                                .part = o->kept->part,
                                .parts = o->kept->parts,
                                .seed = scalars->seed,
                                .good_steps = scalars->loss_scale_good_steps,
                                .loss_scale = scalars->loss_scale,
                                .skip_count = scalars->skip_count,
                                .skip_check = ckpt_check_of(scalars->skip, skip_bytes),
                                .layout = layout_of(&l->view.state),
                                .note_size = (uint32_t)o->note_size };
    if (o->note_size > 0)
        memcpy(own->note, o->note, o->note_size);
    for (uint32_t r = 0; r < o->assignment->size; r++)
        l->segments[r] = (struct comm_segment){ &l->hellos[r], sizeof(l->hellos[r]) };
    enum status st = o->table->all_gather_v(o->comm, l->segments, SEND_MS);
    return st == ST_OK ? ST_OK : live_fail(l, st, "agreeing");
}

static enum status blame(const struct live *l, enum status st, uint32_t rank, const char *cause)
{
    *l->blamed = rank;
    reason_set(l->reason, "the state of step %llu from other workers: rank %u %s",
               (unsigned long long)l->options->assignment->live_step, rank, cause);
    return st;
}

static enum status compare(const struct live *l)
{
    const struct session_assignment *a = l->options->assignment;
    const struct live_hello *first = &l->hellos[a->live_sources[0]];
    for (uint32_t r = 0; r < a->size; r++) {
        const struct live_hello *h = &l->hellos[r];
        if (h->layout != first->layout || h->seed != first->seed ||
            h->note_size != first->note_size)
            return blame(l, ST_CORRUPT, r, "has a state of another shape");
        if (!live_sync_is_source(a, r))
            continue;
        if (!h->complete || h->step != a->live_step || h->parts != first->parts)
            return blame(l, r == a->rank ? ST_INVALID : ST_CORRUPT, r, "has another state");
        if (h->loss_scale != first->loss_scale || h->good_steps != first->good_steps ||
            h->skip_count != first->skip_count || h->skip_check != first->skip_check)
            return blame(l, ST_CORRUPT, r, "has another loss scale or other skipped steps");
    }
    return ST_OK;
}

/* ---- scalars ---- */

/* Sends the skip list from the first source to all. */
static enum status share_skip_list(struct live *l)
{
    const struct session_assignment *a = l->options->assignment;
    const uint32_t source = a->live_sources[0];
    const struct live_hello *first = &l->hellos[source];
    const size_t bytes = (size_t)first->skip_count * sizeof(*l->skip);
    if (bytes == 0)
        return ST_OK;
    if (first->skip_count > CKPT_SKIPS_MAX)
        return blame(l, ST_CORRUPT, source, "has too many skipped steps");
    l->skip = malloc(bytes);
    if (l->skip == NULL)
        return live_fail(l, ST_NO_MEMORY, "skip list");
    if (a->rank == source)
        memcpy(l->skip, l->view.state.scalars.skip, bytes);
    memset(l->segments, 0, a->size * sizeof(*l->segments));
    l->segments[source] = (struct comm_segment){ l->skip, bytes };
    enum status st = l->options->table->all_gather_v(l->options->comm, l->segments, SEND_MS);
    return st == ST_OK ? ST_OK : live_fail(l, st, "skip list");
}

static enum status share_tail(struct live *l)
{
    const struct live_sync_options *o = l->options;
    if (o->tail_size == 0)
        return ST_OK;
    memset(l->segments, 0, o->assignment->size * sizeof(*l->segments));
    l->segments[o->assignment->live_sources[0]] = (struct comm_segment){ o->tail, o->tail_size };
    enum status st = o->table->all_gather_v(o->comm, l->segments, SEND_MS);
    return st == ST_OK ? ST_OK : live_fail(l, st, "rows");
}

static enum status take_scalars(const struct live *l)
{
    struct worker *w = l->worker;
    const struct session_assignment *a = l->options->assignment;
    const struct live_hello *first = &l->hellos[a->live_sources[0]];
    if (live_sync_is_source(a, a->rank))
        return ST_OK;
    worker_skip_clear(w);
    w->scaler.scale = first->loss_scale;
    w->scaler.good_steps = first->good_steps;
    enum status st = worker_skip_add(w, l->skip, (size_t)first->skip_count);
    return st == ST_OK ? ST_OK : live_fail(l, st, "skip list");
}

/* ---- what ranks own ---- */

/* Finds the first source of each part. */
static enum status find_parts(const struct live *l, uint32_t parts, uint32_t *sources)
{
    const struct session_assignment *a = l->options->assignment;
    uint32_t found = 0;
    for (uint32_t p = 0; p < parts; p++)
        sources[p] = UINT32_MAX;
    for (size_t i = 0; i < a->live_source_count; i++) {
        const uint32_t rank = a->live_sources[i], part = l->hellos[rank].part;
        if (part >= parts || sources[part] != UINT32_MAX)
            continue;
        sources[part] = rank;
        found++;
    }
    return found == parts ? ST_OK : live_fail(l, ST_INCOMPLETE, "not all parts are there");
}

/* Checks that ranks of each stage of a pipeline have that stage's state. */
static enum status check_stages(const struct live *l)
{
    const struct stage *stage = l->worker->stage;
    const struct session_assignment *a = l->options->assignment;
    uint32_t sources[LIMIT_STAGES];
    for (size_t i = 0; i < a->live_source_count; i++) {
        const uint32_t rank = a->live_sources[i];
        const struct live_hello *h = &l->hellos[rank];
        if (h->parts != stage->layout.stage_count ||
            h->part != layout_box(&stage->layout, rank).stage)
            return live_fail(l, ST_INVALID, "is of other stages");
    }
    return find_parts(l, stage->layout.stage_count, sources);
}

static enum status sync_owned(const struct live *l)
{
    const struct live_sync_options *o = l->options;
    const struct live_hello *first = &l->hellos[o->assignment->live_sources[0]];
    const uint32_t parts = first->parts == 0 ? 1 : first->parts;
    uint32_t sources[LIMIT_RANKS];
    if (!l->worker->ownership.options.owns)
        return ST_OK;
    enum status st = parts <= LIMIT_RANKS ? find_parts(l, parts, sources) : ST_INVALID;
    if (st != ST_OK)
        return st;
    const struct owned_sync_options options = {
        .table = o->table, .comm = o->comm, .parts = parts, .sources = sources
    };
    st = owned_sync(l->worker, &options);
    return st == ST_OK ? ST_OK : live_fail(l, st, "moments");
}

/* ---- all of it ---- */

/* Lists what this rank holds, a buffer for each extent of it. */
static uint32_t list_buffers(const struct live *l, struct chunk_buffer *out)
{
    const struct ckpt_state *state = &l->view.state;
    struct ckpt_share held;
    uint32_t count = 0;
    const enum status st = ckpt_share_held(state, &held);
    CHECK(st == ST_OK); /* worker_hold has made it */
    for (uint32_t i = 0; i < held.count; i++) {
        const struct ckpt_extent *extent = &held.extent[i];
        const struct ckpt_buffer *b = &state->buffers[extent->buffer];
        const size_t width = (size_t)ckpt_dtype_size(b->dtype);
        uint8_t *live = optimizer_buffer(l->worker->optimizer, b->name);
        if (!replica_group_has(l->worker, extent->buffer))
            continue; /* moments that ranks own go another way */
        CHECK(live != NULL && count < LIVE_EXTENTS_MAX);
        out[count++] =
            (struct chunk_buffer){ live + extent->first * width, (size_t)extent->count * width };
    }
    return count;
}

static enum status stream(struct live *l)
{
    const struct live_sync_options *o = l->options;
    const struct session_assignment *a = o->assignment;
    const struct replica_group replica_group = replica_group_of(l->worker, o->comm);
    struct chunk_buffer buffers[LIVE_EXTENTS_MAX];
    uint32_t sources[LIMIT_RANKS];
    size_t source_count = 0;
    for (size_t i = 0; i < a->live_source_count; i++) {
        const uint32_t rank = a->live_sources[i];
        if (rank >= replica_group.first && rank < replica_group.first + replica_group.size)
            sources[source_count++] = rank - replica_group.first;
    }
    if (replica_group.size == source_count)
        return ST_OK; /* nobody lacks anything */
    const struct chunk_stream_options options = { .table = o->table,
                                                  .comm = replica_group.comm,
                                                  .rank = replica_group.rank,
                                                  .size = replica_group.size,
                                                  .sources = sources,
                                                  .source_count = source_count,
                                                  .buffers = buffers,
                                                  .buffer_count = list_buffers(l, buffers),
                                                  .device = &l->worker->device,
                                                  .tick = progress_tick,
                                                  .tick_arg = l->worker->options.progress };
    enum status st = chunk_stream_run(&options, l->blamed, l->reason);
    *l->blamed += st == ST_CORRUPT ? replica_group.first : 0;
    return st == ST_OK || st == ST_CORRUPT ? st : live_fail(l, st, "transfer");
}

static void take_notes(const struct live *l)
{
    const struct live_sync_options *o = l->options;
    for (uint32_t r = 0; o->note_size > 0 && r < o->assignment->size; r++) {
        if (live_sync_is_source(o->assignment, r))
            memcpy((uint8_t *)o->notes + r * o->note_size, l->hellos[r].note, o->note_size);
    }
}

enum status live_sync(struct worker *worker, const struct live_sync_options *options,
                      uint32_t *out_blamed, struct reason *reason)
{
    const uint32_t size = options->assignment->size;
    struct live l = { .worker = worker, .options = options, .reason = reason };
    l.blamed = out_blamed;
    CHECK(options->assignment->live_source_count >= 1);
    CHECK(options->note_size <= LIVE_NOTE_MAX);
    state_describe(worker, options->assignment->live_step, NULL, &l.view);
    l.hellos = calloc(size, sizeof(*l.hellos));
    l.segments = calloc(size, sizeof(*l.segments));
    enum status st = l.hellos == NULL || l.segments == NULL ? ST_NO_MEMORY : ST_OK;
    if (st == ST_OK)
        st = greet(&l);
    if (st == ST_OK)
        st = compare(&l);
    if (st == ST_OK)
        st = share_skip_list(&l);
    if (st == ST_OK)
        st = share_tail(&l);
    if (st == ST_OK)
        st = worker->stage != NULL ? check_stages(&l) : sync_owned(&l);
    if (st == ST_OK) /* of what was moved this rank has another part now */
        state_describe(worker, options->assignment->live_step, NULL, &l.view);
    if (st == ST_OK)
        st = stream(&l);
    if (st == ST_OK)
        st = take_scalars(&l);
    if (st == ST_OK)
        take_notes(&l);
    free(l.hellos);
    free(l.segments);
    free(l.skip);
    return st;
}
