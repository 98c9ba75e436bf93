#include "comm/reducer_order.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/limits.h"

_Static_assert(LIMIT_LANES < 1 << REDUCER_PARTIALS_MAX, "a node per level");

/* Granularity of chunks in a bucket with fewer pieces than owners: a cache line. */
#define FINE_ELEMENTS 16

void reducer_counter_init(struct reducer_counter *counter, uint32_t lanes, struct reducer_add *adds)
{
    memset(counter, 0, sizeof(*counter));
    counter->lanes = lanes;
    while ((UINT32_C(1) << counter->height) < lanes)
        counter->height++;
    counter->adds = adds;
}

void reducer_spread(const uint32_t *shares, uint32_t size, uint32_t *order)
{
    uint32_t begin[LIMIT_RANKS], lane = 0;
    CHECK(size >= 1 && size <= LIMIT_RANKS);
    for (uint32_t r = 0, at = 0; r < size; at += shares[r++])
        begin[r] = at;
    for (uint32_t level = REDUCER_PARTIALS_MAX; level > 0; level--) {
        const uint32_t node = UINT32_C(1) << (level - 1);
        for (uint32_t r = 0; r < size; r++) {
            for (uint32_t i = 0; i < (shares[r] & node); i++)
                order[begin[r]++] = lane++;
        }
    }
}

/* The first lane right of a node. */
static uint64_t end_of(const struct reducer_tree_node *node)
{
    return ((uint64_t)node->index + 1) << node->level;
}

static bool are_siblings(const struct reducer_tree_node *left,
                         const struct reducer_tree_node *right)
{
    return left->level == right->level && right->index % 2 == 1 && left->index + 1 == right->index;
}

static bool is_only_child(const struct reducer_counter *counter,
                          const struct reducer_tree_node *node)
{
    return node->level < counter->height && node->index % 2 == 0 && end_of(node) >= counter->lanes;
}

void reducer_counter_push(struct reducer_counter *counter, struct reducer_tree_node node)
{
    if (counter->count > 0) { /* disjoint and ascending */
        const struct reducer_tree_node *last = &counter->partial[counter->count - 1];
        CHECK(end_of(last) <= (uint64_t)node.index << node.level);
    }
    for (;;) {
        struct reducer_tree_node *below = counter->partial + counter->count - 1;
        if (counter->count > 0 && are_siblings(below, &node)) {
            const struct reducer_add add = { below->place, node.place };
            if (counter->adds != NULL)
                counter->adds[counter->add_count] = add;
            counter->add_count++;
            node.place = below->place;
            counter->count--;
        } else if (!is_only_child(counter, &node)) {
            break;
        }
        node.level++;
        node.index /= 2;
    }
    CHECK(counter->count < REDUCER_PARTIALS_MAX);
    counter->partial[counter->count++] = node;
}

/* The lowest place that no partial sum is in. */
static uint32_t free_place(const struct reducer_counter *counter)
{
    for (uint32_t place = 0;; place++) {
        bool used = false;
        for (uint32_t i = 0; i < counter->count; i++)
            used = used || counter->partial[i].place == place;
        if (!used)
            return place;
    }
}

uint32_t reducer_gradient_buffers(uint32_t n)
{
    uint32_t buffers = 0;
    for (; n > 0; n /= 2)
        buffers++;
    return buffers;
}

enum status reducer_local_init(struct reducer_local *local, const uint32_t *lane, uint32_t n,
                               uint32_t lanes)
{
    struct reducer_local made = { .n = n, .buffers = reducer_gradient_buffers(n) };
    CHECK(n >= 1);
    CHECK(lane[n - 1] < lanes);
    made.buffer_of = calloc(n, sizeof(*made.buffer_of));
    made.add_begin = calloc((size_t)n + 1, sizeof(*made.add_begin));
    made.adds = calloc(n, sizeof(*made.adds));
    if (made.buffer_of == NULL || made.add_begin == NULL || made.adds == NULL) {
        reducer_local_release(&made);
        return ST_NO_MEMORY;
    }
    struct reducer_counter counter;
    reducer_counter_init(&counter, lanes, made.adds);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t place = free_place(&counter);
        CHECK(place < made.buffers);
        made.buffer_of[i] = place;
        made.add_begin[i] = counter.add_count;
        reducer_counter_push(&counter, (struct reducer_tree_node){ 0, lane[i], place });
    }
    CHECK(counter.add_count < n); /* each addition makes one partial sum of two */
    made.add_begin[n] = counter.add_count;
    memcpy(made.partial, counter.partial, sizeof(made.partial));
    made.partial_count = counter.count;
    *local = made;
    return ST_OK;
}

void reducer_local_release(struct reducer_local *local)
{
    free(local->buffer_of);
    free(local->add_begin);
    free(local->adds);
    memset(local, 0, sizeof(*local));
}

void reducer_chunk(size_t bucket_begin, size_t bucket_end, uint32_t rank, uint32_t size,
                   size_t *begin, size_t *end)
{
    const size_t count = bucket_end - bucket_begin;
    size_t unit = PIECE_ELEMENTS;
    if ((count + unit - 1) / unit < size)
        unit = FINE_ELEMENTS;
    const size_t units = (count + unit - 1) / unit;
    const size_t from = units * rank / size * unit, to = units * (rank + 1) / size * unit;
    *begin = bucket_begin + (from < count ? from : count);
    *end = bucket_begin + (to < count ? to : count);
}
