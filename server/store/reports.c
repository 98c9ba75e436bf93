#include "server/store/reports.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cairn/v1/training.pb-c.h"
#include "server/journal/journal.h"

struct reading {
    struct ckpt_report *list;
    uint32_t count, ranks;
    enum status status;
};

static bool take_hash(const ProtobufCBinaryData *in, struct ckpt_hash *out)
{
    if (in->len != sizeof(out->byte))
        return false;
    memcpy(out->byte, in->data, sizeof(out->byte));
    return true;
}

static enum status take_extent(const Cairn__V1__PieceRun *in, struct ckpt_piece_extent *out)
{
    size_t count = in->xxh3_128.len / sizeof(struct ckpt_hash);
    if (in->xxh3_128.len % sizeof(struct ckpt_hash) != 0)
        return ST_INVALID;
    *out = (struct ckpt_piece_extent){ .buffer = in->buffer,
                                       .first = in->first,
                                       .each = in->pieces_per_hash == 0 ? 1 : in->pieces_per_hash,
                                       .count = count };
    if (count == 0)
        return ST_OK;
    out->hashes = malloc(in->xxh3_128.len);
    if (out->hashes == NULL)
        return ST_NO_MEMORY;
    memcpy(out->hashes, in->xxh3_128.data, in->xxh3_128.len);
    return ST_OK;
}

/* out is released by the caller, whatever comes back. */
static enum status take_report(const Cairn__V1__SaveReport *in, struct ckpt_report *out)
{
    out->step = in->step;
    out->generation = in->generation;
    out->rank = in->rank;
    out->size = in->size;
    out->raw_bytes = in->raw_bytes;
    out->parent.step = in->parent_step;
    out->parent.generation = in->parent_generation;
    if (strlen(in->file) >= sizeof(out->file) || !take_hash(&in->xxh3_128, &out->hash) ||
        !take_hash(&in->scalars_xxh3_128, &out->scalars))
        return ST_INVALID;
    (void)snprintf(out->file, sizeof(out->file), "%s", in->file);
    out->extents = calloc(in->n_pieces ? in->n_pieces : 1, sizeof(*out->extents));
    if (out->extents == NULL)
        return ST_NO_MEMORY;
    for (size_t i = 0; i < in->n_pieces; i++) {
        enum status st = take_extent(in->pieces[i], &out->extents[i]);
        if (st != ST_OK)
            return st;
        out->extent_count++;
    }
    return ST_OK;
}

static enum status unpack_one(const void *data, size_t size, uint32_t rank, struct ckpt_report *out)
{
    Cairn__V1__SaveReport *report = cairn__v1__save_report__unpack(NULL, size, data);
    enum status st = report != NULL && report->rank == rank ? take_report(report, out) : ST_CORRUPT;
    cairn__v1__save_report__free_unpacked(report, NULL);
    return st;
}

/* Takes a report. They come by rank: one that is missing leaves its place to the next. */
static bool take_row(void *arg, uint32_t rank, const void *data, size_t size)
{
    struct reading *reading = arg;
    if (rank != reading->count || rank >= reading->ranks) {
        reading->status = ST_INCOMPLETE;
        return false;
    }
    reading->status = unpack_one(data, size, rank, &reading->list[reading->count++]);
    return reading->status == ST_OK;
}

enum status store_reports_read(const struct store_reports *of, struct ckpt_report **out,
                               uint32_t *out_count)
{
    struct reading reading = { .ranks = of->ranks, .status = ST_OK };
    reading.list = calloc(of->ranks ? of->ranks : 1, sizeof(*reading.list));
    enum status st = reading.list != NULL ? ST_OK : ST_NO_MEMORY;
    if (st == ST_OK) {
        st = journal_read_reports(of->journal, of->job, of->step, of->generation, take_row,
                                  &reading);
    }
    *out = reading.list;
    *out_count = reading.count;
    if (st == ST_OK)
        st = reading.status;
    return st == ST_OK && reading.count < of->ranks ? ST_INCOMPLETE : st;
}
