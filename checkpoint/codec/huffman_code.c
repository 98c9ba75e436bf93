#include "checkpoint/codec/huffman_code.h"

#include <stdbool.h>
#include <string.h>

#define LENGTH_MAX 11u
#define VALUES     256u
#define DIRECT_MAX 128u /* weights that a description can have half a byte each */
#define LOG_MAX    6u   /* of the table that codes the weights */
#define WEIGHTS    (LENGTH_MAX + 1)

/* Bits from the lowest on, into bytes; the reader of such a stream begins at its end. */
struct bits {
    uint64_t held;
    unsigned count;
    bool full;
    uint8_t *at, *end;
};

static void put_bits(struct bits *bits, uint32_t value, unsigned count)
{
    bits->held |= (uint64_t)(value & ((1u << count) - 1)) << bits->count;
    bits->count += count;
    for (; bits->count >= 8; bits->count -= 8, bits->held >>= 8) {
        bits->full = bits->full || bits->at == bits->end;
        if (!bits->full)
            *bits->at++ = (uint8_t)bits->held;
    }
}

static void fill_byte(struct bits *bits)
{
    if (bits->count > 0)
        put_bits(bits, 0, 8 - bits->count);
}

/* ---- lengths ---- */

struct leaf {
    uint32_t seen;
    uint16_t value;
};

/* Sorts by frequency, rare values first. */
static void sort_leaves(struct leaf *leaf, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        struct leaf moved = leaf[i];
        size_t k = i;
        for (; k > 0 && leaf[k - 1].seen > moved.seen; k--)
            leaf[k] = leaf[k - 1];
        leaf[k] = moved;
    }
}

/* Lengths without a limit: the two smallest of leaves and inner nodes are joined, again and again;
 * inner nodes come to be in order of their sums. */
static void tree_lengths(const struct leaf *leaf, size_t count, uint8_t *length)
{
    uint32_t sum[VALUES] = { 0 };
    uint16_t parent_of_leaf[VALUES] = { 0 }, parent_of_node[VALUES] = { 0 };
    uint8_t depth[VALUES] = { 0 };
    size_t next_leaf = 0, next_node = 0, nodes = 0;
    for (; nodes < count - 1; nodes++) {
        sum[nodes] = 0;
        for (int side = 0; side < 2; side++) {
            bool take_leaf =
                next_leaf < count && (next_node == nodes || leaf[next_leaf].seen <= sum[next_node]);
            sum[nodes] += take_leaf ? leaf[next_leaf].seen : sum[next_node];
            if (take_leaf) {
                parent_of_leaf[next_leaf++] = (uint16_t)nodes;
            } else {
                parent_of_node[next_node++] = (uint16_t)nodes;
            }
        }
    }
    depth[nodes - 1] = 0;
    for (size_t i = nodes - 1; i-- > 0;)
        depth[i] = (uint8_t)(depth[parent_of_node[i]] + 1);
    for (size_t i = 0; i < count; i++)
        length[i] = (uint8_t)(depth[parent_of_leaf[i]] + 1);
}

/* Limits the lengths, and leaves no code over: shares of 2^-11 add up to one. */
static void limit_lengths(uint8_t *length, size_t count)
{
    const uint32_t whole = 1u << LENGTH_MAX;
    uint32_t used = 0;
    for (size_t i = 0; i < count; i++) {
        length[i] = length[i] > LENGTH_MAX ? LENGTH_MAX : length[i];
        used += whole >> length[i];
    }
    while (used > whole) { /* the longest that can still grow, the most seldom first */
        size_t best = count;
        for (size_t i = 0; i < count; i++) {
            if (length[i] < LENGTH_MAX && (best == count || length[i] > length[best]))
                best = i;
        }
        length[best]++;
        used -= whole >> length[best];
    }
    for (size_t i = count; i-- > 0 && used < whole;) { /* the most frequent first */
        while (length[i] > 1 && (whole >> length[i]) <= whole - used) {
            used += whole >> length[i];
            length[i]--;
        }
    }
}

/* ---- description ---- */

/* Shares of 2^log, each weight that occurs at least one; false: they don't fit. */
static bool normalize(const uint32_t *seen, size_t total, unsigned log, uint16_t *share)
{
    int32_t left = 1 << log;
    uint32_t most = 0;
    for (uint32_t w = 0; w < WEIGHTS; w++) {
        uint32_t part = (uint32_t)(((uint64_t)seen[w] << log) / total);
        share[w] = (uint16_t)(seen[w] > 0 && part == 0 ? 1 : part);
        left -= share[w];
        most = seen[w] > seen[most] ? w : most;
    }
    left += share[most];
    share[most] = (uint16_t)left;
    return left > 0 && left < 1 << log; /* one weight alone has no table */
}

/* RFC 8878, 4.1.1: each share in as few bits as those that are left need. */
static void put_shares(const uint16_t *share, unsigned log, struct bits *bits)
{
    int32_t left = (1 << log) + 1, threshold = 1 << log;
    unsigned width = log + 1;
    put_bits(bits, log - 5, 4);
    for (size_t w = 0; w < WEIGHTS && left > 1;) {
        int32_t most = 2 * threshold - 1 - left, value = share[w] + 1;
        left -= share[w];
        value += value >= threshold ? most : 0;
        put_bits(bits, (uint32_t)value, value < most ? width - 1 : width);
        for (; left < threshold; threshold /= 2)
            width--;
        if (share[w++] > 0)
            continue;
        size_t zeros = 0; /* that follow: by threes, then the rest */
        while (w + zeros < WEIGHTS && share[w + zeros] == 0)
            zeros++;
        w += zeros;
        for (; zeros >= 3; zeros -= 3)
            put_bits(bits, 3, 2);
        put_bits(bits, (uint32_t)zeros, 2);
    }
    fill_byte(bits);
}

/* A table of tANS (RFC 8878, 4.1): of each weight, how its states are left. */
struct weight_table {
    uint32_t size;
    uint16_t next[1u << LOG_MAX];
    uint16_t share[WEIGHTS];
    uint16_t first[WEIGHTS]; /* of its states in next */
};

static void make_table(struct weight_table *table)
{
    uint32_t size = table->size, step = (size >> 1) + (size >> 3) + 3, at = 0;
    uint8_t weight[1u << LOG_MAX];
    uint16_t place[WEIGHTS], sum = 0;
    for (size_t w = 0; w < WEIGHTS; w++) {
        table->first[w] = place[w] = sum;
        sum = (uint16_t)(sum + table->share[w]);
        for (uint32_t i = 0; i < table->share[w]; i++, at = (at + step) & (size - 1))
            weight[at] = (uint8_t)w;
    }
    for (uint32_t i = 0; i < size; i++)
        table->next[place[weight[i]]++] = (uint16_t)(size + i);
}

/* Puts the bits that bring state among those that weight can follow; returns the state after. */
static uint32_t code_weight(const struct weight_table *table, uint32_t state, uint8_t weight,
                            struct bits *bits)
{
    uint32_t share = table->share[weight], width = 0;
    while (state >> width >= 2 * share)
        width++;
    put_bits(bits, state, width);
    return table->next[table->first[weight] + (state >> width) - share];
}

/* Weights coded by two states in turn; returns the bytes at out, 0: more than room. */
static size_t put_coded_weights(const uint8_t *weights, size_t count, uint8_t *out, size_t room)
{
    const unsigned log = count >= 48 ? LOG_MAX : LOG_MAX - 1;
    struct weight_table table = { .size = 1u << log };
    uint32_t seen[WEIGHTS] = { 0 };
    for (size_t i = 0; i < count; i++)
        seen[weights[i]]++;
    if (count < 3 || !normalize(seen, count, log, table.share))
        return 0;
    struct bits bits = { .at = out, .end = out + room };
    put_shares(table.share, log, &bits);
    make_table(&table);
    uint32_t state[2] = { 0, 0 };
    for (size_t i = count; i-- > 0;) {
        uint32_t *mine = &state[i & 1];
        if (i + 2 < count) {
            *mine = code_weight(&table, *mine, weights[i], &bits);
        } else { /* the smallest: the reader sees the end by the bits that it would want next */
            *mine = table.next[table.first[weights[i]]];
        }
    }
    put_bits(&bits, state[1], log);
    put_bits(&bits, state[0], log);
    put_bits(&bits, 1, 1); /* where the reader begins */
    fill_byte(&bits);
    return bits.full ? 0 : (size_t)(bits.at - out);
}

static size_t put_direct_weights(const uint8_t *weights, size_t count, uint8_t *out)
{
    for (size_t i = 0; i < count; i += 2)
        out[i / 2] = (uint8_t)(weights[i] << 4 | (i + 1 < count ? weights[i + 1] : 0));
    return (count + 1) / 2;
}

/* The weights of all values below the last one that occurs, whose weight follows from theirs. */
static size_t describe_lengths(const uint8_t *length, size_t last, unsigned longest,
                               uint8_t tree[HUFFMAN_TREE_MAX])
{
    uint8_t weights[VALUES];
    for (size_t v = 0; v < last; v++)
        weights[v] = (uint8_t)(length[v] == 0 ? 0 : longest + 1 - length[v]);
    size_t direct = last <= DIRECT_MAX ? (last + 1) / 2 : VALUES;
    size_t coded = put_coded_weights(weights, last, tree + 1, 127);
    if (coded > 0 && coded < direct) {
        tree[0] = (uint8_t)coded;
        return coded + 1;
    }
    if (last > DIRECT_MAX)
        return 0;
    tree[0] = (uint8_t)(127 + last);
    return put_direct_weights(weights, last, tree + 1) + 1;
}

size_t huffman_code(const uint32_t seen[256], struct huffman_code *out,
                    uint8_t tree[HUFFMAN_TREE_MAX])
{
    struct leaf leaf[VALUES];
    uint8_t by_leaf[VALUES], length[VALUES] = { 0 };
    size_t count = 0, last = 0;
    for (size_t v = 0; v < VALUES; v++) {
        if (seen[v] == 0)
            continue;
        out->first = count == 0 ? (uint8_t)v : out->first;
        last = v;
        leaf[count++] = (struct leaf){ seen[v], (uint16_t)v };
    }
    if (count < 2 || last - out->first >= HUFFMAN_SPAN)
        return 0;
    sort_leaves(leaf, count);
    tree_lengths(leaf, count, by_leaf);
    limit_lengths(by_leaf, count);
    uint32_t of_length[LENGTH_MAX + 2] = { 0 }, next[LENGTH_MAX + 2] = { 0 };
    unsigned longest = 0;
    for (size_t i = 0; i < count; i++) {
        length[leaf[i].value] = by_leaf[i];
        of_length[by_leaf[i]]++;
        longest = by_leaf[i] > longest ? by_leaf[i] : longest;
    }
    for (unsigned l = longest; l > 0; l--) /* the longest codes are the lowest */
        next[l - 1] = (next[l] + of_length[l]) / 2;
    for (size_t v = out->first; v < (size_t)out->first + HUFFMAN_SPAN; v++) {
        uint8_t l = v < VALUES ? length[v] : 0;
        out->entry[v - out->first] =
            l == 0 ? 0 : (uint16_t)((uint32_t)l << HUFFMAN_LENGTH_SHIFT | next[l]++);
    }
    return describe_lengths(length, last, longest, tree);
}
