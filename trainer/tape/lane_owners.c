#include "trainer/tape/lane_owners.h"

#include "common/check.h"
#include "trainer/tape/lane.h"

/* The last bucket is cut at multiples of a cache line. */
#define LINE_ELEMENTS 16

static size_t units_of(size_t count, size_t unit)
{
    return (count + unit - 1) / unit;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

enum status lane_owned_buckets(const struct tape *tape, size_t unit, size_t wanted,
                               size_t *out_begin, size_t capacity, struct lane_owned *out)
{
    struct lane_owned made = { 0 };
    enum status st = lane_cut(tape->param_elements, lane_owned_cut(unit, wanted), wanted, out_begin,
                              capacity, &made.params);
    if (st != ST_OK)
        return st;
    made.kept = made.params;
    for (int t = 0; t < tape->tie_count; t++) {
        const struct tape_tensor *param = &tape->params[tape->ties[t].param];
        const size_t at = tape->param_elements + tape->ties[t].offset;
        for (size_t b = 0; b < made.params; b++) {
            const size_t end = b + 1 < made.params ? out_begin[b + 1] : tape->param_elements;
            if (end <= param->offset || out_begin[b] >= param->offset + param->count)
                continue;
            if (made.kept == capacity)
                return ST_FULL;
            out_begin[made.kept++] =
                out_begin[b] > param->offset ? at + (out_begin[b] - param->offset) : at;
        }
    }
    if (made.kept == capacity)
        return ST_FULL;
    out_begin[made.kept] = tape->param_elements + tape->tie_elements;
    made.count = made.kept + 1;
    *out = made;
    return ST_OK;
}

size_t lane_owned_cut(size_t unit, size_t wanted)
{
    return wanted >= 2 * LANE_OWNED_BRANCH ? LANE_OWNED_BRANCH : unit;
}

size_t lane_owned_unit(size_t unit, size_t count, size_t size)
{
    return 4 * count >= 3 * LANE_OWNED_BRANCH * size ? LANE_OWNED_BRANCH : unit;
}

/* Units that have elements of [begin, end). */
static size_t units_within(size_t begin, size_t end, size_t unit)
{
    return units_of(end, unit) - begin / unit;
}

void lane_deal(size_t begin, size_t end, size_t unit, size_t size, size_t *turn, size_t *borders)
{
    CHECK(size > 0);
    const size_t units = units_within(begin, end, unit), more = units % size;
    size_t at = begin / unit;
    for (size_t r = 0; r < size; r++) {
        borders[r] = at * unit < begin ? begin : min_size(at * unit, end);
        at += units / size + ((r + size - *turn) % size < more);
    }
    CHECK(at == units_of(end, unit));
    borders[size] = end;
    *turn += more;
    *turn -= *turn >= size ? size : 0;
}

/* The parameter's element whose gradient the tie at `at` has there. */
static size_t origin_of(const struct tape *tape, size_t at)
{
    int t = tape->tie_count - 1;
    while (t > 0 && tape->param_elements + tape->ties[t].offset > at)
        t--;
    CHECK(t >= 0);
    const size_t begin = tape->param_elements + tape->ties[t].offset;
    CHECK(at >= begin);
    return tape->params[tape->ties[t].param].offset + (at - begin);
}

/* The bucket [begin, end) of a tie is the image of what begins at `origin`, in a bucket whose
 * borders are `origins`. */
static void follow_origin(size_t begin, size_t end, size_t origin, const size_t *origins,
                          uint32_t size, size_t *borders)
{
    CHECK(origins[0] <= origin && origin + (end - begin) <= origins[size]);
    for (size_t r = 0; r <= size; r++) {
        const size_t ahead = origins[r] > origin ? origins[r] - origin : 0;
        borders[r] = begin + min_size(ahead, end - begin);
    }
}

static void cut_lines(size_t begin, size_t end, uint32_t size, size_t *borders)
{
    const size_t lines = units_of(end - begin, LINE_ELEMENTS);
    for (size_t r = 0; r <= size; r++)
        borders[r] = min_size(begin + lines * r / size * LINE_ELEMENTS, end);
}

void lane_owners(const struct tape *tape, size_t unit, const size_t *begin,
                 const struct lane_owned *buckets, uint32_t size, size_t *borders)
{
    const size_t row = (size_t)size + 1;
    size_t units = 0;
    for (size_t b = 0; b < buckets->params; b++) {
        const size_t end = b + 1 < buckets->params ? begin[b + 1] : tape->param_elements;
        units += units_within(begin[b], end, lane_owned_unit(unit, end - begin[b], size));
    }
    /* With this turn the last extra unit goes to the last rank: its last unit is a short one. */
    size_t turn = (size - units % size) % size;
    for (size_t b = 0; b < buckets->params; b++) {
        const size_t end = b + 1 < buckets->params ? begin[b + 1] : tape->param_elements;
        lane_deal(begin[b], end, lane_owned_unit(unit, end - begin[b], size), size, &turn,
                  borders + b * row);
    }
    for (size_t b = buckets->params; b < buckets->kept; b++) {
        const size_t origin = origin_of(tape, begin[b]);
        size_t from = 0;
        while (from + 1 < buckets->params && begin[from + 1] <= origin)
            from++;
        follow_origin(begin[b], begin[b + 1], origin, borders + from * row, size,
                      borders + b * row);
    }
    cut_lines(begin[buckets->kept], lane_layout(tape).count, size, borders + buckets->kept * row);
}
