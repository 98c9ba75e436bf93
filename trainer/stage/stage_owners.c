/* Owners of the parameters: each stage updates its own, or (parallel.zero) each of its ranks a
 * part. */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "trainer/stage/stage_internal.h"
#include "trainer/tape/lane_owners.h"

static size_t unit_of(const struct stage *s)
{
    return owners_unit(s->options.device->table->host_memory);
}

/* ---- buckets ---- */

/* Buckets [begin[b], end[b]) of a lane vector: the parameters', part by part; then other
 * extents. */
struct buckets {
    size_t *begin, *end; /* [LANE_BUCKETS_MAX] */
    size_t count, params;
};

static enum status buckets_new(struct buckets *b)
{
    *b = (struct buckets){ .begin = calloc(LANE_BUCKETS_MAX, sizeof(*b->begin)),
                           .end = calloc(LANE_BUCKETS_MAX, sizeof(*b->end)) };
    return b->begin == NULL || b->end == NULL ? ST_NO_MEMORY : ST_OK;
}

static void buckets_release(struct buckets *b)
{
    free(b->begin);
    free(b->end);
}

/* Most buckets of a stage's parameters: the others are for the rest of the vector, and for those
 * that lead up to the second part's. */
#define BUCKETS_MAX (LANE_BUCKETS_MAX - (size_t)STAGE_CHUNKS_MAX * (LANE_PARTS + LANE_LEADING))

/* Cuts a part's parameters into buckets like those of a whole vector, but all except the first
 * begin at units of the buffer. Where they are owned, a stage's parts together have about as many
 * as one vector. */
static enum status cut_part(const struct stage *s, uint32_t part, struct buckets *b)
{
    const struct lane_extent *params = &s->slice[part].part[LANE_PARAMS];
    const size_t most = s->options.owns ? LANE_OWNED_BUCKETS_MAX : BUCKETS_MAX;
    const size_t wanted = lane_wanted((params->end - params->first) * stage_chunks(s), most);
    const size_t unit = s->options.owns ? lane_owned_cut(unit_of(s), wanted) : PIECE_ELEMENTS;
    const size_t from = s->options.owns ? params->first / unit * unit : params->first;
    const size_t count = params->end - from;
    const size_t room = LANE_BUCKETS_MAX - b->count - (size_t)STAGE_CHUNKS_MAX * LANE_PARTS;
    size_t *begin = b->begin + b->count, cut = 0;
    if (params->first == params->end)
        return ST_OK;
    enum status st = lane_cut(count, unit, wanted, begin, room, &cut);
    for (size_t i = 0; st == ST_OK && i < cut; i++)
        begin[i] = i == 0 ? params->first : begin[i] + from;
    for (size_t i = 0; st == ST_OK && i < cut; i++)
        b->end[b->count + i] = i + 1 < cut ? begin[i + 1] : params->end;
    b->count += cut;
    return st;
}

static enum status cut_params(const struct stage *s, uint32_t stage, struct buckets *b)
{
    enum status st = ST_OK;
    for (uint32_t c = 0; st == ST_OK && c < stage_chunks(s); c++)
        st = cut_part(s, pipeline_part(&s->table, stage, c), b);
    b->params = b->count;
    return st;
}

static bool is_of_params(const struct stage *s, const struct reducer_extent *extent)
{
    return extent->first < s->options.tape->param_elements;
}

/* The chunks of a stage's buckets; the parameters' are owned, others cut evenly. */
static void deal_buckets(const struct stage *s, uint32_t stage, const struct buckets *b,
                         size_t *borders)
{
    const size_t width = s->stages[stage].data_width;
    size_t turn = 0, even = 0;
    for (size_t i = 0; i < b->count; i++, borders += width + 1) {
        const bool owned = i < b->params;
        const size_t unit = lane_owned_unit(unit_of(s), b->end[i] - b->begin[i], width);
        lane_deal(b->begin[i], b->end[i], owned ? unit : STAGE_LINE, width, owned ? &turn : &even,
                  borders);
    }
}

static enum status note_buckets(struct stage *s, struct buckets *b)
{
    enum status st = cut_params(s, s->box.stage, b);
    for (size_t i = 0; st == ST_OK && i < s->extent_count; i++) {
        const struct reducer_extent *extent = &s->extents[i];
        if (is_of_params(s, extent))
            continue;
        b->begin[b->count] = extent->first;
        b->end[b->count++] = extent->first + extent->count;
    }
    const size_t row = (size_t)s->stages[s->box.stage].data_width + 1;
    if (st == ST_OK && s->options.owns) {
        s->borders = calloc(b->count * row, sizeof(*s->borders));
        st = s->borders == NULL ? ST_NO_MEMORY : ST_OK;
    }
    if (st != ST_OK)
        return st;
    if (s->options.owns)
        deal_buckets(s, s->box.stage, b, s->borders);
    s->kept = s->options.owns ? b->params : 0;
    s->bucket_count = b->count;
    s->bucket_begin = b->begin;
    b->begin = NULL;
    return ST_OK;
}

enum status stage_cut_buckets(struct stage *stage)
{
    struct buckets buckets;
    enum status st = buckets_new(&buckets);
    if (st == ST_OK)
        st = note_buckets(stage, &buckets);
    buckets_release(&buckets);
    return st;
}

/* ---- owners ---- */

/* Appends what each rank of a stage owns, of these buckets. */
static enum status append_buckets(struct stage *s, uint32_t stage, const struct buckets *b)
{
    const uint32_t width = s->stages[stage].data_width;
    struct owners of = { .size = 0 };
    auto_free size_t *borders = calloc(b->count * (width + 1) + 1, sizeof(*borders));
    if (borders == NULL)
        return ST_NO_MEMORY;
    deal_buckets(s, stage, b, borders);
    enum status st = owners_make(borders, b->count, s->options.tape->param_elements, 0, width, &of);
    struct owners *all = &s->owners;
    const uint32_t first = layout_first_rank(&s->layout, stage), before = all->begin[first];
    if (st == ST_OK) {
        struct owned_extent *more =
            realloc(all->extent, (before + of.begin[width] + 1) * sizeof(*more));
        st = more == NULL ? ST_NO_MEMORY : ST_OK;
        all->extent = more == NULL ? all->extent : more;
    }
    if (st == ST_OK)
        memcpy(all->extent + before, of.extent, of.begin[width] * sizeof(*of.extent));
    for (uint32_t r = 0; st == ST_OK && r < width; r++)
        all->begin[first + r + 1] = before + of.begin[r + 1];
    owners_release(&of);
    return st;
}

static enum status append_ranks(struct stage *s, uint32_t stage)
{
    struct buckets buckets;
    enum status st = buckets_new(&buckets);
    if (st == ST_OK)
        st = cut_params(s, stage, &buckets);
    if (st == ST_OK)
        st = append_buckets(s, stage, &buckets);
    buckets_release(&buckets);
    return st;
}

static void append_stage(struct stage *s, uint32_t stage)
{
    uint32_t *end = &s->owners.begin[stage + 1];
    *end = s->owners.begin[stage];
    for (uint32_t c = 0; c < stage_chunks(s); c++) {
        const struct lane_extent *params =
            &s->slice[pipeline_part(&s->table, stage, c)].part[LANE_PARAMS];
        if (params->first < params->end) {
            s->owners.extent[(*end)++] =
                (struct owned_extent){ params->first, params->end - params->first };
        }
    }
}

enum status stage_note_owners(struct stage *stage)
{
    struct stage *s = stage;
    const uint32_t stages = s->layout.stage_count;
    s->owners.rank = s->options.owns ? s->options.rank : s->box.stage;
    s->owners.size = s->options.owns ? s->size : stages;
    s->owners.extent = calloc((size_t)s->parts + 1, sizeof(*s->owners.extent));
    s->owners.begin = calloc((size_t)s->owners.size + 1, sizeof(*s->owners.begin));
    if (s->owners.extent == NULL || s->owners.begin == NULL)
        return ST_NO_MEMORY;
    enum status st = ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < stages; i++) {
        if (s->options.owns) {
            st = append_ranks(s, i);
        } else {
            append_stage(s, i);
        }
    }
    return st;
}

uint32_t stage_owner_of(const struct stage *stage, size_t element)
{
    const struct owners *o = &stage->owners;
    for (uint32_t r = 0; r < o->size; r++) {
        for (uint32_t i = o->begin[r]; i < o->begin[r + 1]; i++) {
            if (element >= o->extent[i].first && element < o->extent[i].first + o->extent[i].count)
                return r;
        }
    }
    CHECK(false); /* each element has one */
    return 0;
}
