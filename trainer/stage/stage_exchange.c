/* The stages' parts of the state, and their exchanges beside micro-batches. */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/fault.h"
#include "trainer/stage/stage_internal.h"

static uint32_t width_of(const struct stage *s, uint32_t stage)
{
    return s->stages[stage].data_width;
}

/* True if the rank sends for all ranks that have the same: one of them does. */
static bool is_teller(const struct stage *s, uint32_t rank)
{
    return s->options.owns || layout_box(&s->layout, rank).data == 0;
}

/* True if the rank sends the scalars: they come last in a gathering. */
static bool tells_scalars(const struct stage *s, uint32_t rank)
{
    const uint32_t last = layout_first_rank(&s->layout, s->layout.stage_count - 1);
    return rank == (s->options.owns ? s->size - 1 : last);
}

/* ---- exchanges ---- */

static void begin(const struct stage *s, const char *name)
{
    progress_phase(s->options.progress, PHASE_REDUCE);
    progress_collective_begin(s->options.progress, name);
}

static enum status end(const struct stage *s, const char *name, enum status st)
{
    if (st == ST_OK)
        progress_collective_end(s->options.progress, name);
    progress_phase(s->options.progress, PHASE_UPDATE);
    return st;
}

static void clear_segments(struct stage *s)
{
    memset(s->send, 0, s->size * sizeof(*s->send));
    memset(s->recv, 0, s->size * sizeof(*s->recv));
}

/* Every rank of stage `to` gets the bytes from one of stage `from`, where this one is either. */
static void route(struct stage *s, uint32_t from, const void *source, uint32_t to, void *target,
                  size_t bytes)
{
    const uint32_t senders = layout_first_rank(&s->layout, from);
    const uint32_t receivers = layout_first_rank(&s->layout, to);
    for (uint32_t i = 0; s->box.stage == from && i < width_of(s, to); i++) {
        if (i % width_of(s, from) == s->box.data)
            s->send[receivers + i] = (struct comm_segment){ (void *)source, bytes };
    }
    if (s->box.stage == to) {
        s->recv[senders + s->box.data % width_of(s, from)] = (struct comm_segment){ target, bytes };
    }
}

static enum status exchange(struct stage *s)
{
    const struct device *d = s->options.device;
    enum status st = ST_OK;
    if (!d->table->host_memory)
        st = d->table->stream_sync(d->backend, d->compute);
    if (st == ST_OK)
        st = d->comm->all_to_all_v(s->world, s->send, s->recv, s->options.timeout_ms);
    if (st == ST_OK && !d->table->host_memory)
        st = d->comm->wait(s->world, s->options.timeout_ms);
    return st;
}

static uint32_t stage_of(const struct stage *s, int node)
{
    uint32_t part = s->parts - 1;
    while (s->node_begin[part] > (uint32_t)node)
        part--;
    return part % s->layout.stage_count;
}

/* A tie whose parameter another stage updates. */
struct crossing {
    uint32_t holder, reader;
    const struct tape_tensor *param;
};

static bool crosses(const struct stage *s, int tie, struct crossing *out)
{
    const struct tape *tape = s->options.tape;
    out->param = &tape->params[tape->ties[tie].param];
    out->holder = stage_of(s, out->param->first_node);
    out->reader = stage_of(s, tape->ties[tie].node);
    return out->holder != out->reader;
}

/* ---- ties ---- */

enum status stage_gather_ties(struct stage *stage, float *sum, float *const **out_ties)
{
    struct stage *s = stage;
    const struct tape *tape = s->options.tape;
    enum status st = ST_OK;
    *out_ties = s->ties;
    begin(s, "ties");
    for (int t = 0; st == ST_OK && t < tape->tie_count; t++) {
        struct crossing c;
        float *own = sum + tape->param_elements + tape->ties[t].offset;
        s->ties[t] = own;
        if (!crosses(s, t, &c))
            continue;
        s->ties[t] = s->arriving[t];
        clear_segments(s);
        route(s, c.reader, own, c.holder, s->arriving[t], c.param->count * sizeof(float));
        st = exchange(s);
    }
    return end(s, "ties", st);
}

static enum status open_ties(struct stage *s)
{
    const struct device *d = s->options.device;
    enum status st = ST_OK;
    for (int t = 0; st == ST_OK && t < s->options.tape->tie_count; t++) {
        struct crossing c;
        void *memory = NULL;
        if (!crosses(s, t, &c) || c.holder != s->box.stage || s->arriving[t] != NULL)
            continue;
        st = d->table->alloc(d->backend, c.param->count * sizeof(float), &memory);
        s->arriving[t] = memory;
    }
    return st;
}

/* ---- an update ---- */

static enum status spread_ties(struct stage *s, float *params)
{
    enum status st = ST_OK;
    for (int t = 0; st == ST_OK && t < s->options.tape->tie_count; t++) {
        struct crossing c;
        if (!crosses(s, t, &c))
            continue;
        clear_segments(s);
        route(s, c.holder, params + c.param->offset, c.reader, params + c.param->offset,
              c.param->count * sizeof(float));
        st = exchange(s);
    }
    return st;
}

/* Routes a segment from one rank to another. */
static void route_one(struct stage *s, uint32_t from, uint32_t to, struct comm_segment segment)
{
    if (s->options.rank == from)
        s->send[to] = segment;
    if (s->options.rank == to)
        s->recv[from] = segment;
}

/* A buffer, and those chunks of the stages between which it is spread: two stages have but one
 * message for each other then. */
struct fringe {
    uint32_t buffer;
    uint64_t count;
    float *data;
    uint32_t from, to; /* chunks */
};

/* Routes the elements of a part's saved chunks that a later part's stage updates to the stage that
 * saves them. Where ranks own parts of the state, one rank has them all, since it owns whole
 * chunks. false: there is nothing to send. */
static bool route_fringe(struct stage *s, const struct fringe *f, uint32_t from, uint32_t to)
{
    const uint32_t stages = s->layout.stage_count;
    const struct lane_extent own = stage_updated(s, to, f->buffer);
    const struct lane_extent wants = stage_saved(s, to, f->buffer, f->count);
    const struct lane_extent has = stage_updated(s, from, f->buffer);
    const size_t first = has.first > own.end ? has.first : own.end;
    const size_t last = has.end < wants.end ? has.end : wants.end;
    const struct comm_segment segment = { f->data + first, (last - first) * sizeof(float) };
    if (wants.first >= wants.end || first >= last)
        return false;
    if (stage_is_owned(s, f->buffer)) {
        const uint32_t owner = stage_owner_of(s, first), saver = stage_owner_of(s, own.end - 1);
        if (owner != saver)
            route_one(s, owner, saver, segment);
        return owner != saver;
    }
    if (from % stages == to % stages)
        return false; /* all of the stage have it */
    route(s, from % stages, segment.data, to % stages, segment.data, segment.size);
    return true;
}

static enum status spread_fringe(struct stage *s, const struct fringe *f)
{
    const uint32_t stages = s->layout.stage_count;
    bool any = false;
    clear_segments(s);
    for (uint32_t to = f->to * stages; to < (f->to + 1) * stages; to++) {
        for (uint32_t from = f->from * stages; from < (f->from + 1) * stages; from++)
            any = (from > to && route_fringe(s, f, from, to)) || any;
    }
    return any ? exchange(s) : ST_OK;
}

static enum status spread_buffer(struct stage *s, struct fringe *f)
{
    enum status st = ST_OK;
    for (f->to = 0; f->to < stage_chunks(s); f->to++) {
        for (f->from = f->to; st == ST_OK && f->from < stage_chunks(s); f->from++)
            st = spread_fringe(s, f);
    }
    return st;
}

enum status stage_spread(struct stage *stage)
{
    struct stage *s = stage;
    struct ckpt_state state = { .share = NULL };
    optimizer_describe(s->optimizer, &state.buffers, &state.buffer_count, &state.tensors,
                       &state.tensor_count);
    begin(s, "parameters");
    fault_point("trainer.gather");
    enum status st = spread_ties(s, optimizer_params(s->optimizer));
    for (uint32_t i = 0; st == ST_OK && i < state.buffer_count; i++) {
        const struct ckpt_buffer *b = &state.buffers[i];
        struct fringe fringe = { .buffer = i,
                                 .count = b->count,
                                 .data = optimizer_buffer(s->optimizer, b->name) };
        st = spread_buffer(s, &fringe);
    }
    return end(s, "parameters", st);
}

/* Shares the parameters within the stage, where its ranks own parts; then with the others.
 * Collectives are counted alike in all stages, also in one with nobody to gather from
 * (server/jobfsm/hang). */
static enum status gather_params(void *arg, float *params)
{
    struct stage *s = arg;
    const struct device *d = s->options.device;
    if (s->options.owns) {
        enum status st = ST_OK;
        begin(s, "gather");
        if (width_of(s, s->box.stage) > 1) {
            st = reducer_gather(s->reducer, params, s->kept);
            if (st == ST_OK && !d->table->host_memory)
                st = d->comm->wait(s->group, s->options.timeout_ms);
        }
        st = end(s, "gather", st);
        if (st != ST_OK)
            return st;
    }
    return stage_spread(s);
}

static enum status exchange_squares(void *arg, double *packed, float *scalars)
{
    struct stage *s = arg;
    const struct device *d = s->options.device;
    struct gather *g = &s->squares;
    const struct comm_segment *own = &g->segments[s->options.rank];
    const bool last = tells_scalars(s, s->options.rank);
    const size_t squares = g->bytes - OPTIMIZER_SCALARS * sizeof(float);
    begin(s, "norm");
    fault_point("trainer.norm");
    if (is_teller(s, s->options.rank)) {
        const size_t mine = own->size - (last ? OPTIMIZER_SCALARS * sizeof(float) : 0);
        const size_t at = (size_t)((uint8_t *)own->data - g->data);
        memcpy(own->data, (const uint8_t *)packed + at, mine);
        if (last)
            memcpy((uint8_t *)own->data + mine, scalars, OPTIMIZER_SCALARS * sizeof(float));
    }
    enum status st = gather_exchange(g, d, s->world, s->options.rank, s->options.timeout_ms);
    if (st == ST_OK) { /* parts follow each other as owners do, scalars are the end */
        memcpy(packed, g->data, squares);
        memcpy(scalars, g->data + squares, OPTIMIZER_SCALARS * sizeof(float));
    }
    return end(s, "norm", st);
}

static enum status open_squares(struct stage *s)
{
    size_t bytes[LIMIT_RANKS] = { 0 };
    for (uint32_t r = 0; r < s->size; r++) {
        const uint32_t owner = s->options.owns ? r : layout_box(&s->layout, r).stage;
        if (is_teller(s, r))
            bytes[r] = optimizer_squares(s->optimizer, owner) * sizeof(double);
        if (tells_scalars(s, r))
            bytes[r] += OPTIMIZER_SCALARS * sizeof(float);
    }
    return gather_open(&s->squares, s->options.device, bytes, s->size);
}

/* ---- a generation ---- */

enum status stage_hold(struct stage *stage, struct optimizer *optimizer)
{
    struct stage *s = stage;
    s->optimizer = optimizer;
    s->peers = (struct optimizer_peers){ exchange_squares, gather_params, s };
    enum status st = stage_note_held(s);
    if (st == ST_OK)
        st = open_ties(s);
    return st == ST_OK ? open_squares(s) : st;
}

void stage_connect(struct stage *stage, struct comm *world, struct comm *group,
                   struct reducer *reducer)
{
    stage->world = world;
    stage->group = group;
    stage->reducer = reducer;
}

const struct optimizer_peers *stage_peers(const struct stage *stage)
{
    return &stage->peers;
}
