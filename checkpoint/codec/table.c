#include "checkpoint/codec/table.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint/codec/planes_choose.h"

#define COLUMNS_MIN 16u
#define COLUMNS_MAX 8192u
#define PROBE       384u /* levels at the beginning that are looked for again further on */
#define SMOOTH      64u  /* words around a word whose mean is taken off its level */
#define LEVELS      (PROBE + COLUMNS_MAX)
#define LIKE        4096u  /* levels that a likeness is taken of, at most */
#define ALIKE       200    /* thousandths: from here on levels count as alike */
#define EDGE        24u    /* words on each side of a row's edge that are compared */
#define EDGE_WORDS  16384u /* in which edges are looked for */
#define HEAD        8u     /* bytes of constant, columns, phase */

typedef uint32_t word32 __attribute__((may_alias, aligned(1)));

struct table_maker {
    const struct plane_loops *loops;
    int16_t level[LEVELS];
    int32_t match[COLUMNS_MAX];
    int32_t sum[EDGE_WORDS + 1];
    uint32_t column_sum[COLUMNS_MAX];
    int32_t column_mean[COLUMNS_MAX];
    uint64_t edge[COLUMNS_MAX];
    uint8_t terms[TABLE_TERMS_MAX];
};

struct table_maker *table_maker_new(void)
{
    struct table_maker *maker = calloc(1, sizeof(*maker));
    if (maker != NULL)
        maker->loops = ckpt_loops();
    return maker;
}

void table_maker_free(struct table_maker *maker)
{
    free(maker);
}

/* The level of a word is its binary order in sixty-fourths, less the mean of the words around it,
 * cut to 4 orders on both sides. */
static void make_levels(struct table_maker *maker, const word32 *words, size_t count)
{
    int32_t sum = 0;
    for (size_t i = 0; i < SMOOTH; i++)
        sum += (int32_t)(words[i] >> 17);
    for (size_t i = 0; i < count; i++) {
        int32_t level = (int32_t)(words[i + SMOOTH / 2] >> 17) - sum / (int32_t)SMOOTH;
        maker->level[i] = (int16_t)(level > 255 ? 255 : level < -255 ? -255 : level);
        sum += (int32_t)(words[i + SMOOTH] >> 17) - (int32_t)(words[i] >> 17);
    }
}

/* Returns how alike the levels are at a distance, in thousandths; 0 when there are too few. */
static int32_t likeness(struct table_maker *maker, size_t levels, uint32_t distance)
{
    if (distance == 0 || levels < distance + PROBE)
        return 0;
    int32_t same = 0, moved = 0;
    size_t size = levels - distance < LIKE ? levels - distance : LIKE;
    maker->loops->correlate(maker->level, size, maker->level, 1, &same);
    maker->loops->correlate(maker->level, size, maker->level + distance, 1, &moved);
    return same / 1000 == 0 ? 0 : moved / (same / 1000);
}

/* The distance at which levels are most alike the first ones. */
static uint32_t find_distance(struct table_maker *maker, size_t levels)
{
    size_t lags = levels - PROBE;
    maker->loops->correlate(maker->level, PROBE, maker->level, lags, maker->match);
    size_t best = COLUMNS_MIN;
    for (size_t lag = COLUMNS_MIN; lag < lags; lag++)
        best = maker->match[lag] > maker->match[best] ? lag : best;
    return (uint32_t)best;
}

/* Columns of a part; 0: none stand out. before: those of the part before it, or 0. */
static uint32_t find_columns(struct table_maker *maker, const word32 *words, size_t count,
                             uint32_t before)
{
    if (count < PROBE + SMOOTH + 2 * COLUMNS_MIN)
        return 0;
    size_t levels = count - SMOOTH < LEVELS ? count - SMOOTH : LEVELS;
    make_levels(maker, words, levels);
    if (likeness(maker, levels, before) >= ALIKE)
        return before;
    uint32_t found = find_distance(maker, levels);
    int32_t like = likeness(maker, levels, found);
    if (like < ALIKE)
        return 0;
    for (uint32_t part = found / COLUMNS_MIN; part > 1; part--) { /* multiples match, too */
        if (found % part == 0 && likeness(maker, levels, found / part) >= like / 3 * 2)
            return found / part;
    }
    return found;
}

static uint32_t words_of_column(size_t count, uint32_t columns, uint32_t phase, uint32_t column)
{
    uint32_t first = (column + columns - phase) % columns;
    return first >= count ? 0 : (uint32_t)((count - 1 - first) / columns + 1);
}

/* Sums of every column, in units of 2^13, and of all. */
static uint64_t sum_columns(struct table_maker *maker, const word32 *words, size_t count,
                            uint32_t columns, uint32_t phase)
{
    uint64_t all = 0;
    memset(maker->column_sum, 0, columns * sizeof(maker->column_sum[0]));
    for (size_t i = 0; i < count;) {
        size_t column = (i + phase) % columns;
        size_t run = columns - column < count - i ? columns - column : count - i;
        all += maker->loops->accumulate(words + i, run, maker->column_sum + column);
        i += run;
    }
    return all;
}

static void mean_columns(struct table_maker *maker, size_t count, uint32_t columns, uint32_t phase,
                         uint32_t otherwise)
{
    for (uint32_t c = 0; c < columns; c++) {
        uint32_t n = words_of_column(count, columns, phase, c);
        maker->column_mean[c] = (int32_t)(n == 0 ? otherwise : maker->column_sum[c] / n);
    }
}

/* Finds where a row begins: there the words without their columns' means change most. */
static uint32_t find_phase(struct table_maker *maker, const word32 *words, size_t count,
                           uint32_t columns)
{
    size_t edge = columns / 2 < EDGE ? columns / 2 : EDGE;
    if (count < 2 * edge)
        return 0;
    size_t rows = ((count < EDGE_WORDS ? count : EDGE_WORDS) - 2 * edge) / columns;
    size_t used = rows * columns + 2 * edge;
    if (rows < 2 || used == 0)
        return 0;
    uint64_t all = sum_columns(maker, words, used, columns, 0);
    mean_columns(maker, used, columns, 0, (uint32_t)(all / used));
    maker->sum[0] = 0;
    for (size_t i = 0, c = 0; i < used; i++, c = c + 1 == columns ? 0 : c + 1) {
        int32_t rest = (int32_t)(words[i] >> 17) - (maker->column_mean[c] >> 4);
        maker->sum[i + 1] = maker->sum[i] + rest;
    }
    memset(maker->edge, 0, columns * sizeof(maker->edge[0]));
    for (size_t row = 0; row < rows; row++) {
        const int32_t *sum = maker->sum + row * columns;
        for (size_t c = 0; c < columns; c++) {
            int32_t change = sum[c + 2 * edge] - 2 * sum[c + edge] + sum[c];
            maker->edge[c] += (uint32_t)(change < 0 ? -change : change);
        }
    }
    uint32_t most = 0;
    for (uint32_t c = 1; c < columns; c++)
        most = maker->edge[c] > maker->edge[most] ? c : most;
    return (2 * columns - most - (uint32_t)edge) % columns;
}

static int32_t to_term(int32_t difference)
{
    return (difference + 32) >> 6; /* of 2^13 to those of 2^19 */
}

static void put_term(uint8_t *out, size_t index, size_t terms, int32_t term)
{
    out[index] = (uint8_t)term;
    out[terms + index] = (uint8_t)(term >> 8);
}

/* terms: of columns and rows together. */
static void put_terms(struct table_maker *maker, const word32 *words, size_t count,
                      uint32_t columns, uint32_t phase, size_t terms, uint8_t *out)
{
    uint32_t mean = (uint32_t)(sum_columns(maker, words, count, columns, phase) / count);
    mean_columns(maker, count, columns, phase, mean);
    uint32_t constant = (mean << 13) - TABLE_BIAS;
    const uint16_t shape[2] = { (uint16_t)columns, (uint16_t)phase };
    memcpy(out, &constant, sizeof(constant));
    memcpy(out + sizeof(constant), shape, sizeof(shape));
    out += HEAD;
    int32_t *sum = maker->sum; /* of the terms before each column */
    sum[0] = 0;
    for (uint32_t c = 0; c < columns; c++) {
        int32_t term = to_term(maker->column_mean[c] - (int32_t)mean);
        put_term(out, c, terms, term);
        sum[c + 1] = sum[c] + term;
    }
    for (size_t i = 0, row = columns; i < count; row++) {
        size_t at = (i + phase) % columns;
        size_t run = columns - at < count - i ? columns - at : count - i;
        int64_t total = (int64_t)maker->loops->accumulate(words + i, run, maker->column_sum);
        total -= (int64_t)run * mean + (int64_t)(sum[at + run] - sum[at]) * 64;
        put_term(out, row, terms, to_term((int32_t)(total / (int64_t)run)));
        i += run;
    }
}

size_t table_fit(struct table_maker *maker, const void *words, size_t count, const uint8_t **terms)
{
    const word32 *in = words;
    size_t size = 0;
    uint32_t columns = 0;
    for (size_t at = 0; at < count; at += TABLE_PART) {
        size_t part = count - at < TABLE_PART ? count - at : TABLE_PART;
        uint32_t found = find_columns(maker, in + at, part, columns);
        columns = found == 0 ? columns : found;
        if (columns == 0)
            return 0; /* the chunk begins with words that lie in none */
        uint32_t phase = find_phase(maker, in + at, part, columns);
        size_t all = columns + (part + phase + columns - 1) / columns;
        if (HEAD + 2 * all > TABLE_TERMS_MAX - size)
            return 0;
        put_terms(maker, in + at, part, columns, phase, all, maker->terms + size);
        size += HEAD + 2 * all;
    }
    *terms = maker->terms;
    return size;
}

bool table_read(const uint8_t *terms, size_t size, size_t count, struct table_terms *out)
{
    size_t at = 0, k = 0;
    int16_t *next = out->terms;
    if (size > TABLE_TERMS_MAX)
        return false;
    for (size_t first = 0; first < count; first += TABLE_PART, k++) {
        size_t words = count - first < TABLE_PART ? count - first : TABLE_PART;
        if (k == TABLE_PARTS || size - at < HEAD)
            return false;
        struct table_part *part = &out->part[k];
        uint16_t shape[2];
        memcpy(&part->constant, terms + at, sizeof(part->constant));
        memcpy(shape, terms + at + sizeof(part->constant), sizeof(shape));
        part->columns = shape[0];
        part->phase = shape[1];
        at += HEAD;
        if (part->columns == 0 || part->phase >= part->columns)
            return false;
        size_t all = part->columns + (words + part->phase + part->columns - 1) / part->columns;
        if (size - at < 2 * all)
            return false;
        part->column = next;
        part->row = next + part->columns;
        for (size_t i = 0; i < all; i++)
            next[i] = (int16_t)(uint16_t)(terms[at + i] | terms[at + all + i] << 8);
        next += all;
        at += 2 * all;
    }
    return at == size;
}

static void each_row(const struct table_terms *table, const void *words, size_t first, size_t count,
                     void *out,
                     void (*loop)(const void *words, const int16_t *terms, uint32_t constant,
                                  size_t count, void *out))
{
    for (size_t i = 0; i < count;) {
        const struct table_part *part = &table->part[(first + i) / TABLE_PART];
        size_t within = (first + i) % TABLE_PART, place = within + part->phase;
        size_t column = place % part->columns, row = place / part->columns;
        size_t run = part->columns - column;
        run = run < TABLE_PART - within ? run : TABLE_PART - within;
        run = run < count - i ? run : count - i;
        uint32_t term = (uint32_t)(int32_t)part->row[row] << CKPT_TERM_SHIFT;
        loop((const uint8_t *)words + 4 * i, part->column + column, part->constant + term, run,
             (uint8_t *)out + 4 * i);
        i += run;
    }
}

void table_predict(const struct table_terms *table, const struct plane_loops *loops,
                   const void *words, size_t first, size_t count, void *out)
{
    each_row(table, words, first, count, out, loops->predict);
}

void table_unpredict(const struct table_terms *table, const struct plane_loops *loops,
                     const void *words, size_t first, size_t count, void *out)
{
    each_row(table, words, first, count, out, loops->unpredict);
}
