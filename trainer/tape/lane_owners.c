#include "trainer/tape/lane_owners.h"

#include <stdbool.h>

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

size_t lane_owned_wanted(size_t params)
{
    size_t wanted = LANE_BUCKET_ELEMENTS;
    while (params / wanted >= LANE_OWNED_BUCKETS_MAX - LANE_OWNED_LEADING)
        wanted *= 2;
    return wanted;
}

enum status lane_owned_buckets(const struct tape *tape, size_t unit, size_t wanted,
                               size_t *out_begin, size_t capacity, struct lane_owned *out)
{
    struct lane_owned made = { 0 };
    enum status st =
        lane_cut(tape->param_elements, unit, wanted, out_begin, capacity, &made.params);
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

/* Units go to the ranks in order, evenly; who gets one more changes from bucket to bucket, so that
 * all have as many in the end. *turn: the rank that is next to get one. */
static void deal_units(size_t begin, size_t end, size_t unit, uint32_t size, size_t *turn,
                       size_t *borders)
{
    const size_t units = units_of(end - begin, unit), more = units % size;
    size_t at = 0;
    CHECK(begin % unit == 0);
    for (size_t r = 0; r < size; r++) {
        const bool has_more = (r + size - *turn) % size < more;
        borders[r] = min_size(begin + at * unit, end);
        at += units / size + has_more;
    }
    CHECK(at == units);
    borders[size] = end;
    *turn = (*turn + more) % size;
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
    /* So the last one more goes to the last rank: its last unit is a short one. */
    size_t turn = (size - units_of(tape->param_elements, unit) % size) % size;
    for (size_t b = 0; b < buckets->params; b++) {
        const size_t end = b + 1 < buckets->params ? begin[b + 1] : tape->param_elements;
        deal_units(begin[b], end, unit, size, &turn, borders + b * row);
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
