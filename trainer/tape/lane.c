#include "trainer/tape/lane.h"

struct lane_layout lane_layout(const struct tape *tape)
{
    struct lane_layout layout = { 0 };
    layout.param_count = tape->param_elements;
    layout.tie_at = layout.param_count;
    layout.tie_count = tape->tie_elements;
    layout.stat_at = layout.tie_at + layout.tie_count;
    layout.stat_count = tape->stat_elements;
    layout.loss_at = layout.stat_at + layout.stat_count;
    layout.targets_at = layout.loss_at + 1;
    layout.micro_at = layout.loss_at + 2;
    layout.count = layout.loss_at + 3;
    return layout;
}

size_t lane_gradient_at(const struct tape *tape, int node, int i)
{
    const struct tape_node *at = &tape->nodes[node];
    if (at->tie[i] < 0)
        return tape->params[at->param[i]].offset;
    return tape->param_elements + tape->ties[at->tie[i]].offset;
}

/* Where the reader before this one has its gradient: in another tie's place, or the parameter's. */
static size_t reader_before(const struct tape *tape, int tie)
{
    const int param = tape->ties[tie].param;
    for (int i = tie - 1; i >= 0; i--) {
        if (tape->ties[i].param == param)
            return tape->param_elements + tape->ties[i].offset;
    }
    return tape->params[param].offset;
}

enum status lane_add_ties(const struct tape *tape, const struct backend_table *table,
                          struct backend *backend, float *sum, size_t first, size_t count,
                          struct stream *stream)
{
    enum status st = ST_OK;
    for (int i = tape->tie_count - 1; st == ST_OK && i >= 0; i--) {
        const struct tape_tie *tie = &tape->ties[i];
        const struct tape_tensor *param = &tape->params[tie->param];
        const size_t begin = first > param->offset ? first - param->offset : 0;
        const size_t last = first + count > param->offset ? first + count - param->offset : 0;
        const size_t end = last < param->count ? last : param->count;
        if (begin >= end)
            continue;
        float *before = sum + reader_before(tape, i) + begin;
        st = table->vector.add(backend, before, sum + tape->param_elements + tie->offset + begin,
                               before, end - begin, stream);
    }
    return st;
}

enum status lane_cut(size_t end, size_t unit, size_t wanted, size_t *out_begin, size_t capacity,
                     size_t *out_count)
{
    size_t most = (wanted + unit - 1) / unit * unit;
    if (most == 0)
        most = unit;
    size_t count = 0;
    size_t size = unit;
    size_t begin = 0;
    while (begin < end) {
        if (count == capacity)
            return ST_FULL;
        out_begin[count++] = begin;
        /* A rest of less than a unit is not worth a message of its own. */
        if (end - begin < size + unit)
            break;
        begin += size;
        size = 2 * size < most ? 2 * size : most;
    }
    *out_count = count;
    return ST_OK;
}

enum status lane_buckets(const struct lane_layout *layout, size_t wanted, size_t *out_begin,
                         size_t capacity, size_t *out_count)
{
    return lane_cut(layout->count, PIECE_ELEMENTS, wanted, out_begin, capacity, out_count);
}
