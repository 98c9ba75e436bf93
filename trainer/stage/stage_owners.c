/* Who updates what: each stage its parameters, or (parallel.zero) each of its ranks a part. */
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

/* Starts of buckets of a stage's parameters: as those of a whole vector, but that all but the first
 * begin at units of the buffer. */
static enum status cut_params(const struct stage *s, const struct lane_run *params, size_t *out,
                              size_t *out_count)
{
    const size_t unit = s->options.owns ? unit_of(s) : PIECE_ELEMENTS;
    const size_t from = s->options.owns ? params->first / unit * unit : params->first;
    const size_t count = params->end - from;
    const size_t wanted = s->options.owns ? lane_owned_wanted(count) : LANE_BUCKET_ELEMENTS;
    *out_count = 0;
    if (params->first == params->end)
        return ST_OK;
    enum status st = lane_cut(count, unit, wanted, out, LANE_BUCKETS_MAX - LANE_PARTS, out_count);
    for (size_t b = 0; st == ST_OK && b < *out_count; b++)
        out[b] = b == 0 ? params->first : out[b] + from;
    return st;
}

/* Whole units of [begin, end) to `width` ranks; *turn: who is next to get one more. */
static void deal(size_t begin, size_t end, size_t unit, size_t width, size_t *turn, size_t *borders)
{
    const size_t first = begin / unit, units = (end + unit - 1) / unit - first;
    const size_t more = units % width;
    size_t at = first;
    for (size_t r = 0; r < width; r++) {
        borders[r] = at * unit < begin ? begin : (at * unit < end ? at * unit : end);
        at += units / width + ((r + width - *turn) % width < more);
    }
    borders[width] = end;
    *turn = (*turn + more) % width;
}

/* The chunks of a stage's buckets; the parameters' are owned, others cut evenly. */
static void deal_buckets(const struct stage *s, uint32_t stage, const size_t *begin, size_t params,
                         size_t count, size_t *borders)
{
    const size_t width = s->stages[stage].data_width, unit = unit_of(s);
    const struct lane_run *own = &s->extent[stage].part[LANE_PARAMS];
    size_t turn = 0, even = 0;
    for (size_t b = 0; b < count; b++, borders += width + 1) {
        size_t end = own->end;
        if (b < params) {
            end = b + 1 < params ? begin[b + 1] : own->end;
            deal(begin[b], end, unit, width, &turn, borders);
            continue;
        }
        for (size_t i = 0; i < s->run_count; i++) {
            if (s->runs[i].first == begin[b])
                end = s->runs[i].first + s->runs[i].count;
        }
        deal(begin[b], end, STAGE_LINE, width, &even, borders);
    }
}

enum status stage_cut_buckets(struct stage *stage)
{
    struct stage *s = stage;
    const struct lane_run *params = &s->extent[s->box.stage].part[LANE_PARAMS];
    s->bucket_begin = calloc(LANE_BUCKETS_MAX, sizeof(*s->bucket_begin));
    if (s->bucket_begin == NULL)
        return ST_NO_MEMORY;
    enum status st = cut_params(s, params, s->bucket_begin, &s->kept);
    if (st != ST_OK)
        return st;
    s->bucket_count = s->kept;
    for (size_t i = 0; i < s->run_count; i++) {
        if (s->runs[i].first != params->first || params->first == params->end)
            s->bucket_begin[s->bucket_count++] = s->runs[i].first;
    }
    if (!s->options.owns) {
        s->kept = 0;
        return ST_OK;
    }
    const size_t row = (size_t)s->stages[s->box.stage].data_width + 1;
    s->borders = calloc(s->bucket_count * row, sizeof(*s->borders));
    if (s->borders == NULL)
        return ST_NO_MEMORY;
    deal_buckets(s, s->box.stage, s->bucket_begin, s->kept, s->bucket_count, s->borders);
    return ST_OK;
}

/* ---- owners ---- */

/* Appends what each rank of a stage owns. */
static enum status append_ranks(struct stage *s, uint32_t stage)
{
    const uint32_t width = s->stages[stage].data_width;
    const struct lane_run *params = &s->extent[stage].part[LANE_PARAMS];
    auto_free size_t *begin = calloc(LANE_BUCKETS_MAX, sizeof(*begin));
    size_t count = 0;
    struct owners of = { .size = 0 };
    enum status st = begin == NULL ? ST_NO_MEMORY : cut_params(s, params, begin, &count);
    if (st != ST_OK)
        return st;
    auto_free size_t *borders = calloc(count * (width + 1) + 1, sizeof(*borders));
    if (borders == NULL)
        return ST_NO_MEMORY;
    deal_buckets(s, stage, begin, count, count, borders);
    st = owners_make(borders, count, s->options.tape->param_elements, 0, width, &of);
    struct owners *all = &s->owners;
    const uint32_t first = layout_first_rank(&s->layout, stage), before = all->begin[first];
    if (st == ST_OK) {
        struct owned_run *more = realloc(all->run, (before + of.begin[width] + 1) * sizeof(*more));
        st = more == NULL ? ST_NO_MEMORY : ST_OK;
        all->run = more == NULL ? all->run : more;
    }
    if (st == ST_OK)
        memcpy(all->run + before, of.run, of.begin[width] * sizeof(*of.run));
    for (uint32_t r = 0; st == ST_OK && r < width; r++)
        all->begin[first + r + 1] = before + of.begin[r + 1];
    owners_release(&of);
    return st;
}

static void append_stage(struct stage *s, uint32_t stage)
{
    const struct lane_run *params = &s->extent[stage].part[LANE_PARAMS];
    uint32_t *end = &s->owners.begin[stage + 1];
    *end = s->owners.begin[stage];
    if (params->first < params->end)
        s->owners.run[(*end)++] = (struct owned_run){ params->first, params->end - params->first };
}

enum status stage_note_owners(struct stage *stage)
{
    struct stage *s = stage;
    const uint32_t stages = s->layout.stage_count;
    s->owners.rank = s->options.owns ? s->options.rank : s->box.stage;
    s->owners.size = s->options.owns ? s->size : stages;
    s->owners.run = calloc((size_t)stages + 1, sizeof(*s->owners.run));
    s->owners.begin = calloc((size_t)s->owners.size + 1, sizeof(*s->owners.begin));
    if (s->owners.run == NULL || s->owners.begin == NULL)
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
            if (element >= o->run[i].first && element < o->run[i].first + o->run[i].count)
                return r;
        }
    }
    CHECK(false); /* each element has one */
    return 0;
}
