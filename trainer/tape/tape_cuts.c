#include "trainer/tape/tape_cuts.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/check.h"
#include "common/cleanup.h"

bool tape_is_cut(const struct tape *tape, int node)
{
    if (node < 1 || node >= tape->node_count)
        return false;
    /* The value of the node before is read by some node (tape_finish), so at the cut or later. */
    if (!tape->values[tape->nodes[node - 1].out].batched)
        return false;
    for (int n = node; n < tape->node_count; n++) {
        for (int i = 0; i < tape->nodes[n].in_count; i++) {
            const int producer = tape->values[tape->nodes[n].in[i]].producer;
            if (producer >= 0 && producer < node - 1)
                return false;
        }
    }
    return true;
}

enum status tape_cuts(const struct tape *tape, int *out_nodes, int capacity, int *out_count)
{
    int count = 0;
    for (int n = 1; n < tape->node_count; n++) {
        if (!tape_is_cut(tape, n))
            continue;
        if (count == capacity)
            return ST_FULL;
        out_nodes[count++] = n;
    }
    *out_count = count;
    return ST_OK;
}

/*
 * Borders are the tape's start, its cuts and its end, by index. Whatever is best from a border to
 * the end is made of what is best from a later border on, with one stage less.
 */
struct balance {
    int node[TAPE_NODES_MAX + 1]; /* of each border */
    double before[TAPE_NODES_MAX + 1];
    int last; /* border: the tape's end */
    double best[2][TAPE_NODES_MAX + 1];
    int16_t next[TAPE_STAGES_MAX + 1][TAPE_NODES_MAX + 1]; /* border after the first stage */
};

static enum status find_borders(struct balance *b, const struct tape *tape, const double *cost)
{
    int cuts = 0;
    enum status st = tape_cuts(tape, b->node + 1, TAPE_NODES_MAX - 1, &cuts);
    if (st != ST_OK)
        return st;
    b->last = cuts + 1;
    b->node[b->last] = tape->node_count;
    for (int i = 1; i <= b->last; i++) {
        b->before[i] = b->before[i - 1];
        for (int n = b->node[i - 1]; n < b->node[i]; n++) {
            CHECK(cost[n] >= 0 && cost[n] <= 1e100);
            b->before[i] += cost[n];
        }
    }
    return ST_OK;
}

/* Returns the cost of a stage between two borders. */
static double stage_cost(const struct balance *b, int from, int to)
{
    return b->before[to] - b->before[from];
}

/* Returns the least that the costliest stage can cost. */
static double least_maximum(struct balance *b, int stages)
{
    for (int i = 0; i < b->last; i++)
        b->best[1][i] = stage_cost(b, i, b->last);
    for (int k = 2; k <= stages; k++) {
        double *best = b->best[k % 2];
        const double *rest = b->best[1 - k % 2];
        for (int i = 0; i <= b->last - k; i++) {
            best[i] = INFINITY;
            for (int j = i + 1; j <= b->last - k + 1; j++)
                best[i] = fmin(best[i], fmax(stage_cost(b, i, j), rest[j]));
        }
    }
    return b->best[stages % 2][0];
}

/* Finds the smallest sum of squares of k stages from a border on, none of which costs above
 * `most`. */
static void least_squares(struct balance *b, int k, int from, double most)
{
    double *best = &b->best[k % 2][from];
    const double *rest = b->best[1 - k % 2];
    *best = INFINITY;
    for (int j = from + 1; j <= b->last - k + 1; j++) {
        const double cost = stage_cost(b, from, j);
        const double sum = cost <= most ? cost * cost + rest[j] : INFINITY;
        if (sum < *best) {
            *best = sum;
            b->next[k][from] = (int16_t)j;
        }
    }
}

/* Fills in the next borders, for all borders and numbers of stages. */
static void fill_in_next(struct balance *b, int stages, double most)
{
    for (int i = 0; i < b->last; i++) {
        const double cost = stage_cost(b, i, b->last);
        b->best[1][i] = cost <= most ? cost * cost : INFINITY;
        b->next[1][i] = (int16_t)b->last;
    }
    for (int k = 2; k <= stages; k++) {
        for (int i = 0; i <= b->last - k; i++)
            least_squares(b, k, i, most);
    }
}

enum status tape_balance(const struct tape *tape, const double *cost, int stages, int *out_first,
                         int *out_possible)
{
    auto_free struct balance *b = calloc(1, sizeof(*b));
    if (b == NULL)
        return ST_NO_MEMORY;
    enum status st = find_borders(b, tape, cost);
    if (st != ST_OK)
        return st;
    *out_possible = b->last < TAPE_STAGES_MAX ? b->last : TAPE_STAGES_MAX;
    if (stages < 1 || stages > *out_possible)
        return ST_INVALID;
    fill_in_next(b, stages, least_maximum(b, stages));
    int border = 0;
    for (int s = 0; s < stages; s++) {
        out_first[s] = b->node[border];
        border = b->next[stages - s][border];
    }
    CHECK(border == b->last);
    return ST_OK;
}
