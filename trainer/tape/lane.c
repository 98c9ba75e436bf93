#include "trainer/tape/lane.h"

struct lane_layout lane_layout(const struct tape *tape)
{
    struct lane_layout layout = { 0 };
    layout.param_count = tape->param_elements;
    layout.stat_at = layout.param_count;
    layout.stat_count = tape->stat_elements;
    layout.loss_at = layout.stat_at + layout.stat_count;
    layout.targets_at = layout.loss_at + 1;
    layout.micro_at = layout.loss_at + 2;
    layout.count = layout.loss_at + 3;
    return layout;
}

enum status lane_buckets(const struct lane_layout *layout, size_t wanted, size_t *out_begin,
                         size_t capacity, size_t *out_count)
{
    size_t most = (wanted + PIECE_ELEMENTS - 1) / PIECE_ELEMENTS * PIECE_ELEMENTS;
    if (most == 0)
        most = PIECE_ELEMENTS;
    size_t count = 0;
    size_t size = PIECE_ELEMENTS;
    size_t begin = 0;
    while (begin < layout->count) {
        if (count == capacity)
            return ST_FULL;
        out_begin[count++] = begin;
        /* A rest of less than a piece is not worth a message of its own. */
        if (layout->count - begin < size + PIECE_ELEMENTS)
            break;
        begin += size;
        size = 2 * size < most ? 2 * size : most;
    }
    *out_count = count;
    return ST_OK;
}
