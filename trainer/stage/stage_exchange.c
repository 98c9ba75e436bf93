/* What stages have of the state, and what they tell each other beside micro-batches. */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/fault.h"
#include "trainer/stage/stage.h"

static uint32_t width_of(const struct stage *s, uint32_t stage)
{
    return s->stages[stage].data_width;
}

static bool is_leader(const struct stage *s)
{
    return s->box.data == 0;
}

/* ---- what a stage has ---- */

static uint64_t chunk_below(uint64_t at)
{
    return at / OPTIMIZER_CHUNK * OPTIMIZER_CHUNK;
}

static uint64_t chunk_above(uint64_t at, uint64_t count)
{
    const uint64_t above = (at + OPTIMIZER_CHUNK - 1) / OPTIMIZER_CHUNK * OPTIMIZER_CHUNK;
    return above < count ? above : count;
}

/* What a stage updates of a buffer. */
static struct lane_run updated(const struct stage *s, uint32_t stage, uint32_t buffer)
{
    const size_t stat_at = lane_layout(s->options.tape).stat_at;
    const struct lane_run *stats = &s->extent[stage].part[LANE_STATS];
    if (optimizer_buffer_kind(s->optimizer, buffer) != OPTIMIZER_STATISTICS)
        return s->extent[stage].part[LANE_PARAMS];
    return (struct lane_run){ stats->first - stat_at, stats->end - stat_at };
}

/* What it saves: the chunks whose first element it updates. */
static struct lane_run saved(const struct stage *s, uint32_t stage, uint32_t buffer, uint64_t count)
{
    const struct lane_run own = updated(s, stage, buffer);
    return (struct lane_run){ chunk_above(own.first, count), chunk_above(own.end, count) };
}

/* The chunks around runs, which ascend. */
static enum status hold_runs(const struct ckpt_state *state, uint32_t buffer,
                             const struct lane_run *runs, size_t run_count,
                             struct ckpt_share *share)
{
    const uint64_t count = state->buffers[buffer].count;
    uint64_t behind = 0;
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < run_count; i++) {
        uint64_t first = chunk_below(runs[i].first);
        const uint64_t end = chunk_above(runs[i].end, count);
        first = first < behind ? behind : first;
        if (runs[i].first < runs[i].end && first < end)
            st = ckpt_share_add(state, buffer, first, end - first, share);
        behind = end > behind ? end : behind;
    }
    return st;
}

static enum status note_held(struct stage *s, const struct ckpt_state *state)
{
    enum status st = ST_OK;
    s->held.count = 0;
    for (uint32_t i = 0; st == ST_OK && i < state->buffer_count; i++) {
        const struct lane_run own = updated(s, s->box.stage, i);
        if (optimizer_buffer_kind(s->optimizer, i) == OPTIMIZER_PARAMETERS) {
            st = hold_runs(state, i, s->params, s->param_runs, &s->held);
        } else {
            st = hold_runs(state, i, &own, 1, &s->held);
        }
    }
    return st;
}

/* The stage's chunks, dealt out among its ranks. */
static enum status note_share(struct stage *s, const struct ckpt_state *state)
{
    uint64_t total = 0, first = 0, count = 0, before = 0;
    enum status st = ST_OK;
    s->share.count = 0;
    for (uint32_t i = 0; i < state->buffer_count; i++) {
        const struct lane_run run = saved(s, s->box.stage, i, state->buffers[i].count);
        total += ckpt_chunks(CKPT_F32, run.end - run.first);
    }
    ckpt_share_chunks(total, s->box.data, width_of(s, s->box.stage), &first, &count);
    for (uint32_t i = 0; st == ST_OK && i < state->buffer_count; i++) {
        const struct lane_run run = saved(s, s->box.stage, i, state->buffers[i].count);
        const uint64_t chunks = ckpt_chunks(CKPT_F32, run.end - run.first);
        const uint64_t from = first > before ? first - before : 0;
        uint64_t to = first + count > before ? first + count - before : 0;
        to = to < chunks ? to : chunks;
        before += chunks;
        if (from >= to)
            continue;
        const uint64_t begin = run.first + from * OPTIMIZER_CHUNK;
        const uint64_t end = run.first + to * OPTIMIZER_CHUNK;
        st = ckpt_share_add(state, i, begin, (end < run.end ? end : run.end) - begin, &s->share);
    }
    return st;
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
    uint32_t stage = s->layout.stage_count - 1;
    while (s->stages[stage].node_begin > (uint32_t)node)
        stage--;
    return stage;
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

/* Of each chunk that a stage saves what later ones update. */
static enum status spread_fringe(struct stage *s, uint32_t buffer, uint64_t count, float *data)
{
    bool any = false;
    clear_segments(s);
    for (uint32_t to = 0; to < s->layout.stage_count; to++) {
        const struct lane_run own = updated(s, to, buffer), wants = saved(s, to, buffer, count);
        for (uint32_t from = to + 1; wants.first < wants.end && from < s->layout.stage_count;
             from++) {
            const struct lane_run has = updated(s, from, buffer);
            const size_t first = has.first > own.end ? has.first : own.end;
            const size_t last = has.end < wants.end ? has.end : wants.end;
            if (first >= last)
                continue;
            any = true;
            route(s, from, data + first, to, data + first, (last - first) * sizeof(float));
        }
    }
    return any ? exchange(s) : ST_OK;
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
        st = spread_fringe(s, i, b->count, optimizer_buffer(s->optimizer, b->name));
    }
    return end(s, "parameters", st);
}

static enum status share_params(void *arg, float *params)
{
    (void)params;
    return stage_spread(arg);
}

static enum status share_squares(void *arg, double *packed, float *scalars)
{
    struct stage *s = arg;
    const struct device *d = s->options.device;
    struct gather *g = &s->squares;
    const struct comm_segment *own = &g->segments[s->options.rank];
    const bool last = s->box.stage + 1 == s->layout.stage_count;
    const size_t squares = g->bytes - OPTIMIZER_SCALARS * sizeof(float);
    begin(s, "norm");
    fault_point("trainer.norm");
    if (is_leader(s)) {
        const size_t mine = own->size - (last ? OPTIMIZER_SCALARS * sizeof(float) : 0);
        const size_t at = (size_t)((uint8_t *)own->data - g->data);
        memcpy(own->data, (const uint8_t *)packed + at, mine);
        if (last)
            memcpy((uint8_t *)own->data + mine, scalars, OPTIMIZER_SCALARS * sizeof(float));
    }
    enum status st = gather_exchange(g, d, s->world, s->options.rank, s->options.timeout_ms);
    if (st == ST_OK) { /* leaders' parts follow each other as stages do, scalars are the end */
        memcpy(packed, g->data, squares);
        memcpy(scalars, g->data + squares, OPTIMIZER_SCALARS * sizeof(float));
    }
    return end(s, "norm", st);
}

static enum status open_squares(struct stage *s)
{
    size_t bytes[LIMIT_RANKS] = { 0 };
    for (uint32_t i = 0; i < s->layout.stage_count; i++) {
        size_t *of = &bytes[layout_first_rank(&s->layout, i)];
        *of = optimizer_squares(s->optimizer, i) * sizeof(double);
        if (i + 1 == s->layout.stage_count)
            *of += OPTIMIZER_SCALARS * sizeof(float);
    }
    return gather_open(&s->squares, s->options.device, bytes, s->size);
}

/* ---- a generation ---- */

enum status stage_hold(struct stage *stage, struct optimizer *optimizer)
{
    struct stage *s = stage;
    struct ckpt_state state = { .share = NULL };
    s->optimizer = optimizer;
    s->peers = (struct optimizer_peers){ share_squares, share_params, s };
    optimizer_describe(optimizer, &state.buffers, &state.buffer_count, &state.tensors,
                       &state.tensor_count);
    enum status st = note_held(s, &state);
    if (st == ST_OK)
        st = note_share(s, &state);
    if (st == ST_OK)
        st = open_ties(s);
    return st == ST_OK ? open_squares(s) : st;
}

void stage_connect(struct stage *stage, struct comm *world)
{
    stage->world = world;
}

const struct optimizer_peers *stage_peers(const struct stage *stage)
{
    return &stage->peers;
}
