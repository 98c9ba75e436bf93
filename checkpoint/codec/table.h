/*
 * Words that lie in rows and columns, predicted by both: word - (row's term + column's term).
 *
 * The second moments of a matrix are nearly a product of a row's and a column's factor, so the
 * float's bits, which are nearly a logarithm, are nearly a sum. A chunk knows no shapes: the number
 * of columns, and where a row begins, are found by looking, per part of TABLE_PART words, and
 * stored with the terms. All of it is integer arithmetic.
 *
 * Terms, as stored: for every part of the chunk, in order,
 *
 *     uint32 constant, uint16 columns (1 and more), uint16 phase (below columns),
 *     lower bytes of int16 column[columns] and row[rows], then their upper bytes,
 *     rows = ceil((words of the part + phase) / columns)
 *
 * Word i of a part is in column (i + phase) mod columns and row (i + phase) / columns. It becomes
 * word - constant - ((column + row) << CKPT_TERM_SHIFT), mod 2^32.
 *
 * Thread: any; a table belongs to one at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/codec/planes.h"
#include "checkpoint/format/disk.h"

#define TABLE_PART      65536u
#define TABLE_PARTS     (DISK_CHUNK_BYTES / 4 / TABLE_PART)
#define TABLE_TERMS_MAX (96u << 10)
#define TABLE_BIAS      (1u << 27) /* a word below its prediction by less stays positive */

struct table_part {
    uint32_t constant, columns, phase;
    const int16_t *column, *row; /* in the table's terms */
};

struct table_terms {
    struct table_part part[TABLE_PARTS];
    int16_t terms[TABLE_TERMS_MAX / 2];
};

struct table_maker;                        /* memory to fit in, 300 KiB */
struct table_maker *table_maker_new(void); /* NULL: no memory */
void table_maker_free(struct table_maker *maker);

/*
 * Terms of count words whose highest bits are 0. Returns their bytes in *terms (the maker's, until
 * the next call), 0: the words don't lie in columns.
 */
size_t table_fit(struct table_maker *maker, const void *words, size_t count, const uint8_t **terms);

/* False: size bytes are not the terms of count words. */
bool table_read(const uint8_t *terms, size_t size, size_t count, struct table_terms *out);

/* Words [first, first + count) of the chunk, which words starts with, and back. */
void table_predict(const struct table_terms *table, const struct plane_loops *loops,
                   const void *words, size_t first, size_t count, void *out);
void table_unpredict(const struct table_terms *table, const struct plane_loops *loops,
                     const void *words, size_t first, size_t count, void *out);
