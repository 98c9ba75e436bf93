/* The parts of the state that a rank of a stage has and saves. */
#include <stdlib.h>

#include "common/cleanup.h"
#include "trainer/stage/stage_internal.h"
#include "trainer/tape/lane_owners.h"

/* Most extents of an owner in one moment. A share also has extents of the parameters, its own and
 * those of ties, and of the statistics. */
#define OWNED_EXTENTS_MAX (LANE_OWNED_BUCKETS_MAX + (size_t)(STAGE_CHUNKS_MAX - 1) * LANE_LEADING)
_Static_assert((size_t)OPTIMIZER_MOMENTS_MAX *OWNED_EXTENTS_MAX + TAPE_TIES_MAX +
                       (size_t)2 * STAGE_CHUNKS_MAX <=
                   CKPT_EXTENTS_MAX,
               "a share has room for all runs of an owner");
/* Most hashes of a report: those of each extent's loose pieces, and those of all whole branches
 * with the ends of what a part has in a row. */
_Static_assert((size_t)OPTIMIZER_MOMENTS_MAX *OWNED_EXTENTS_MAX *LANE_OWNED_LOOSE_PIECES +
                       LIMIT_SHARE_BYTES / (LANE_OWNED_BRANCH * sizeof(float)) +
                       (TAPE_TIES_MAX + (size_t)OPTIMIZER_BUFFERS_MAX * STAGE_CHUNKS_MAX) * 2 *
                           CKPT_BRANCH_PIECES <=
                   CKPT_REPORT_HASHES_MAX,
               "the report of a share of an owner fits a message");

static uint64_t chunk_below(uint64_t at)
{
    return at / OPTIMIZER_CHUNK * OPTIMIZER_CHUNK;
}

static uint64_t chunk_above(uint64_t at, uint64_t count)
{
    const uint64_t above = (at + OPTIMIZER_CHUNK - 1) / OPTIMIZER_CHUNK * OPTIMIZER_CHUNK;
    return above < count ? above : count;
}

struct lane_extent stage_updated(const struct stage *stage, uint32_t part, uint32_t buffer)
{
    const size_t stat_at = lane_layout(stage->options.tape).stat_at;
    const struct lane_extent *stats = &stage->slice[part].part[LANE_STATS];
    if (optimizer_buffer_kind(stage->optimizer, buffer) != OPTIMIZER_STATISTICS)
        return stage->slice[part].part[LANE_PARAMS];
    return (struct lane_extent){ stats->first - stat_at, stats->end - stat_at };
}

struct lane_extent stage_saved(const struct stage *stage, uint32_t part, uint32_t buffer,
                               uint64_t count)
{
    const struct lane_extent own = stage_updated(stage, part, buffer);
    return (struct lane_extent){ chunk_above(own.first, count), chunk_above(own.end, count) };
}

/* The chunks around extents, which ascend. */
static enum status hold_extents(const struct ckpt_state *state, uint32_t buffer,
                                const struct lane_extent *extents, size_t extent_count,
                                struct ckpt_share *share)
{
    const uint64_t count = state->buffers[buffer].count;
    uint64_t behind = 0;
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < extent_count; i++) {
        uint64_t first = chunk_below(extents[i].first);
        const uint64_t end = chunk_above(extents[i].end, count);
        first = first < behind ? behind : first;
        if (extents[i].first < extents[i].end && first < end)
            st = ckpt_share_add(state, buffer, first, end - first, share);
        behind = end > behind ? end : behind;
    }
    return st;
}

bool stage_is_owned(const struct stage *stage, uint32_t buffer)
{
    return stage->options.owns &&
           optimizer_buffer_kind(stage->optimizer, buffer) == OPTIMIZER_MOMENT;
}

static enum status hold_owned(const struct stage *s, const struct ckpt_state *state,
                              uint32_t buffer, struct ckpt_share *share)
{
    uint32_t count = 0;
    const struct owned_extent *own = owners_own(&s->owners, &count);
    auto_free struct lane_extent *extents = calloc((size_t)count + 1, sizeof(*extents));
    if (extents == NULL)
        return ST_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++)
        extents[i] = (struct lane_extent){ own[i].first, own[i].first + own[i].count };
    return hold_extents(state, buffer, extents, count, share);
}

static enum status note_held(struct stage *s, const struct ckpt_state *state)
{
    enum status st = ST_OK;
    s->held.count = 0;
    for (uint32_t i = 0; st == ST_OK && i < state->buffer_count; i++) {
        struct lane_extent own[STAGE_CHUNKS_MAX];
        for (uint32_t c = 0; c < stage_chunks(s); c++)
            own[c] = stage_updated(s, stage_part(s, c), i);
        if (stage_is_owned(s, i)) {
            st = hold_owned(s, state, i, &s->held);
        } else if (optimizer_buffer_kind(s->optimizer, i) == OPTIMIZER_PARAMETERS) {
            st = hold_extents(state, i, s->params, s->param_extents, &s->held);
        } else {
            st = hold_extents(state, i, own, stage_chunks(s), &s->held);
        }
    }
    return st;
}

/* Adds the chunks that this rank saves: those whose first element it owns. */
static enum status save_owned(struct stage *s, const struct ckpt_state *state, uint32_t buffer)
{
    const uint64_t all = state->buffers[buffer].count;
    uint32_t count = 0;
    const struct owned_extent *own = owners_own(&s->owners, &count);
    enum status st = ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < count; i++) {
        const uint64_t first = chunk_above(own[i].first, all);
        const uint64_t end = chunk_above(own[i].first + own[i].count, all);
        if (first < end)
            st = ckpt_share_add(state, buffer, first, end - first, &s->share);
    }
    return st;
}

/* Chunks [first, end) of those that a stage's ranks deal out among themselves, in order. */
struct dealt {
    uint64_t first, end;
    uint64_t before; /* chunks that were looked at */
};

/* Adds the chunks of a part's buffer that are among the dealt ones. */
static enum status save_part(struct stage *s, const struct ckpt_state *state, uint32_t buffer,
                             uint32_t part, struct dealt *dealt)
{
    const struct lane_extent extent = stage_saved(s, part, buffer, state->buffers[buffer].count);
    const uint64_t chunks = ckpt_chunks(CKPT_F32, extent.end - extent.first),
                   before = dealt->before;
    const uint64_t from = dealt->first > before ? dealt->first - before : 0;
    uint64_t to = dealt->end > before ? dealt->end - before : 0;
    to = to < chunks ? to : chunks;
    dealt->before += chunks;
    if (from >= to)
        return ST_OK;
    const uint64_t begin = extent.first + from * OPTIMIZER_CHUNK;
    const uint64_t end = extent.first + to * OPTIMIZER_CHUNK;
    return ckpt_share_add(state, buffer, begin, (end < extent.end ? end : extent.end) - begin,
                          &s->share);
}

/* The stage's chunks of what all its ranks have, dealt out among them. */
static enum status note_share(struct stage *s, const struct ckpt_state *state)
{
    const uint32_t chunks = stage_chunks(s);
    uint64_t total = 0, count = 0;
    struct dealt dealt = { .before = 0 };
    enum status st = ST_OK;
    s->share.count = 0;
    for (uint32_t i = 0; i < state->buffer_count * chunks; i++) {
        const uint32_t buffer = i / chunks;
        const struct lane_extent extent =
            stage_saved(s, stage_part(s, i % chunks), buffer, state->buffers[buffer].count);
        total += stage_is_owned(s, buffer) ? 0 : ckpt_chunks(CKPT_F32, extent.end - extent.first);
    }
    ckpt_share_chunks(total, s->box.data, s->stages[s->box.stage].data_width, &dealt.first, &count);
    dealt.end = dealt.first + count;
    for (uint32_t i = 0; st == ST_OK && i < state->buffer_count; i++) {
        if (stage_is_owned(s, i)) {
            st = save_owned(s, state, i);
            continue;
        }
        for (uint32_t c = 0; st == ST_OK && c < chunks; c++)
            st = save_part(s, state, i, stage_part(s, c), &dealt);
    }
    return st;
}

enum status stage_note_held(struct stage *stage)
{
    struct ckpt_state state = { .share = NULL };
    optimizer_describe(stage->optimizer, &state.buffers, &state.buffer_count, &state.tensors,
                       &state.tensor_count);
    enum status st = note_held(stage, &state);
    return st == ST_OK ? note_share(stage, &state) : st;
}
