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

/* Counts the statistics that belong to nodes before this one. */
static int stats_before(const struct tape *tape, int node)
{
    int count = 0;
    for (int n = 0; n < node; n++) {
        for (int i = 0; i < OP_STAT_MAX; i++) {
            if (tape->nodes[n].stat[i] >= count)
                count = tape->nodes[n].stat[i] + 1;
        }
    }
    return count;
}

/* Returns where the elements of a node and those after it begin, part by part. */
static void begins_at(const struct tape *tape, int node, size_t out[LANE_PARTS])
{
    const struct lane_layout layout = lane_layout(tape);
    int param = 0, tie = 0;
    const int stat = stats_before(tape, node);
    while (param < tape->param_count && tape->params[param].first_node < node)
        param++;
    while (tie < tape->tie_count && tape->ties[tie].node < node)
        tie++;
    out[LANE_PARAMS] = param < tape->param_count ? tape->params[param].offset : layout.param_count;
    out[LANE_TIES] =
        layout.tie_at + (tie < tape->tie_count ? tape->ties[tie].offset : layout.tie_count);
    out[LANE_STATS] =
        layout.stat_at + (stat < tape->stat_count ? tape->stats[stat].offset : layout.stat_count);
}

struct lane_slice lane_slice(const struct tape *tape, int begin, int end)
{
    const struct lane_layout layout = lane_layout(tape);
    struct lane_slice slice = { .part[LANE_SCALARS] = { layout.loss_at, layout.count } };
    size_t first[LANE_PARTS], last[LANE_PARTS];
    begins_at(tape, begin, first);
    begins_at(tape, end, last);
    for (int i = 0; i < LANE_SCALARS; i++)
        slice.part[i] = (struct lane_extent){ first[i], last[i] };
    return slice;
}

size_t lane_gradient_at(const struct tape *tape, int node, int i)
{
    const struct tape_node *at = &tape->nodes[node];
    if (at->tie[i] < 0)
        return tape->params[at->param[i]].offset;
    return tape->param_elements + tape->ties[at->tie[i]].offset;
}

static float *tie_of(const struct tape *tape, float *sum, float *const *ties, int tie)
{
    return ties != NULL ? ties[tie] : sum + tape->param_elements + tape->ties[tie].offset;
}

/* Returns the gradient of the reader before this one: another tie's, or the parameter's. */
static float *reader_before(const struct tape *tape, float *sum, float *const *ties, int tie)
{
    const int param = tape->ties[tie].param;
    for (int i = tie - 1; i >= 0; i--) {
        if (tape->ties[i].param == param)
            return tie_of(tape, sum, ties, i);
    }
    return sum + tape->params[param].offset;
}

enum status lane_add_ties(const struct tape *tape, const struct backend_table *table,
                          struct backend *backend, float *sum, float *const *ties, size_t first,
                          size_t count, struct stream *stream)
{
    enum status st = ST_OK;
    for (int i = tape->tie_count - 1; st == ST_OK && i >= 0; i--) {
        const struct tape_tensor *param = &tape->params[tape->ties[i].param];
        const size_t begin = first > param->offset ? first - param->offset : 0;
        const size_t last = first + count > param->offset ? first + count - param->offset : 0;
        const size_t end = last < param->count ? last : param->count;
        if (begin >= end)
            continue;
        float *before = reader_before(tape, sum, ties, i) + begin;
        st = table->vector.add(backend, before, tie_of(tape, sum, ties, i) + begin, before,
                               end - begin, stream);
    }
    return st;
}

size_t lane_wanted(size_t count, size_t buckets)
{
    size_t wanted = LANE_BUCKET_ELEMENTS;
    while (count / wanted >= buckets - LANE_LEADING)
        wanted *= 2;
    return wanted;
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
