#include "trainer/state/copy_peers.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"

struct rank_on_node {
    const char *node;
    uint32_t rank;
};

static int by_node(const void *left, const void *right)
{
    const struct rank_on_node *a = left, *b = right;
    const int nodes = strcmp(a->node, b->node);
    return nodes != 0 ? nodes : (a->rank > b->rank) - (a->rank < b->rank);
}

/* The node with the most ranks: the place of its first one, and how many it has. */
static void find_largest(const struct rank_on_node *order, uint32_t size, uint32_t *first,
                         uint32_t *count)
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
 * The ranks stand in a replica group, sorted by node. Where the largest node has no more than half
 * of them, each one's copy peer stands as many places on as that node has ranks: so nobody finds
 * one of its own node. Else the ranks of the largest node go to the others in turn, and the others
 * to it.
 */
enum status copy_peers_choose(char *const *nodes, uint32_t size, uint32_t *out)
{
    auto_free struct rank_on_node *order = calloc(size, sizeof(*order));
    if (order == NULL)
        return ST_NO_MEMORY;
    for (uint32_t r = 0; r < size; r++)
        order[r] = (struct rank_on_node){ nodes[r], r };
    qsort(order, size, sizeof(*order), by_node);
    uint32_t first = 0, count = 0;
    find_largest(order, size, &first, &count);
    const uint32_t rest = size - count;
    if (rest == 0)
        return ST_NOT_FOUND;
    for (uint32_t i = 0; i < size; i++) {
        const uint32_t after = (i + size - first) % size; /* places after the largest's first */
        uint32_t to = (i + count) % size;
        if (count > rest && after < count) {
            to = (first + count + after % rest) % size;
        } else if (count > rest) {
            to = first + (after - count);
        }
        CHECK(strcmp(order[i].node, order[to].node) != 0);
        out[order[i].rank] = order[to].rank;
    }
    return ST_OK;
}

uint32_t copy_peers_count(const uint32_t *copy_peers, uint32_t size, uint32_t rank)
{
    uint32_t peer_copies = 0;
    for (uint32_t r = 0; r < size; r++)
        peer_copies += copy_peers[r] == rank;
    return peer_copies;
}
