#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "trainer/state/peers.h"

struct place {
    const char *node;
    uint32_t rank;
};

static int compare(const void *left, const void *right)
{
    const struct place *a = left, *b = right;
    const int nodes = strcmp(a->node, b->node);
    return nodes != 0 ? nodes : (a->rank > b->rank) - (a->rank < b->rank);
}

/* The largest node's ranks: the first of them, and how many. */
static void find_largest(const struct place *order, uint32_t size, uint32_t *first, uint32_t *count)
{
    *first = *count = 0;
    for (uint32_t i = 0, begin = 0; i < size; i++) {
        if (strcmp(order[i].node, order[begin].node) != 0)
            begin = i;
        if (i - begin + 1 > *count) {
            *first = begin;
            *count = i - begin + 1;
        }
    }
}

/*
 * Sorted by node. Rotated by the largest node's count, each rank leaves its own node, if that is no
 * more than half of all. Else the others go to the largest, and it shares them.
 */
enum status peers_pair(char *const *nodes, uint32_t size, uint32_t *out)
{
    auto_free struct place *order = calloc(size, sizeof(*order));
    if (order == NULL)
        return ST_NO_MEMORY;
    for (uint32_t r = 0; r < size; r++)
        order[r] = (struct place){ nodes[r], r };
    qsort(order, size, sizeof(*order), compare);
    uint32_t first = 0, count = 0;
    find_largest(order, size, &first, &count);
    const uint32_t rest = size - count;
    if (rest == 0)
        return ST_NOT_FOUND;
    for (uint32_t i = 0; i < size; i++) {
        const uint32_t after = (i + size - first) % size; /* place behind the largest's first */
        uint32_t to = (i + count) % size;
        if (count > rest && after < count) {
            to = (first + count + after % rest) % size;
        } else if (count > rest) {
            to = first + (after - count);
        }
        out[order[i].rank] = order[to].rank;
    }
    return ST_OK;
}

uint32_t peers_wards(const uint32_t *partners, uint32_t size, uint32_t rank)
{
    uint32_t wards = 0;
    for (uint32_t r = 0; r < size; r++)
        wards += partners[r] == rank;
    return wards;
}
