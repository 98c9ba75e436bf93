/*
 * A manifest of the reports of all ranks.
 *
 * Reports come from workers: everything in them is checked, against the others and against what a
 * report of this rank must be, before a byte is written.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/disk.h"
#include "checkpoint/format/hash.h"
#include "checkpoint/format/names.h"
#include "common/check.h"
#include "common/cleanup.h"

static bool text_is_plain(const char *text, size_t capacity)
{
    size_t size = strnlen(text, capacity);
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c >= 0x7f || c == '"' || c == '\\')
            return false;
    }
    return size < capacity;
}

/* Report number i is that of rank i, of the same save as the first. */
static bool report_fits(const struct ckpt_report *reports, uint32_t count, uint32_t i)
{
    const struct ckpt_report *report = &reports[i];
    char name[64];
    ckpt_shard_name(i, count, name);
    return report->rank == i && report->step == reports[0].step &&
           report->generation == reports[0].generation &&
           report->parent.step == reports[0].parent.step &&
           report->parent.generation == reports[0].parent.generation &&
           strcmp(report->file, name) == 0 && report->size > 0 && report->size <= INT64_MAX &&
           report->raw_bytes <= INT64_MAX / count &&
           ckpt_hash_equal(&report->scalars, &reports[0].scalars);
}

/* None, or one of an earlier step. */
static bool parent_fits(const struct ckpt_report *report)
{
    const struct ckpt_parent *parent = &report->parent;
    return parent->generation == 0 ? parent->step == 0
                                   : parent->step < report->step && parent->generation <= INT64_MAX;
}

static int compare_extents(const void *a, const void *b)
{
    const struct ckpt_piece_extent *x = a, *y = b;
    if (x->buffer != y->buffer)
        return x->buffer < y->buffer ? -1 : 1;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return x->count != 0 && y->count == 0 ? -1 : x->count == 0 && y->count != 0;
}

/* True if the extent has hashes of pieces, or of branches and begins at one. */
static bool extent_is_good(const struct ckpt_piece_extent *extent)
{
    if (extent->count == 0)
        return true;
    const bool branches =
        extent->each == CKPT_BRANCH_PIECES && extent->first % CKPT_BRANCH_PIECES == 0;
    return extent->hashes != NULL && (extent->each == 1 || branches);
}

/*
 * Whether the extents, ascending, are all pieces of all buffers: each starts where the one before
 * ended; each buffer ends with as many end marks as there are reports, all at its end.
 * out_hashes: at least as many as the digest's list will have.
 */
static bool extents_are_complete(const struct ckpt_piece_extent *extents, size_t extent_count,
                                 uint32_t report_count, uint64_t *out_hashes)
{
    uint64_t at = 0, hashes = 0;
    uint32_t buffer = 0, ends = 0;
    for (size_t i = 0; i < extent_count; i++) {
        const struct ckpt_piece_extent *extent = &extents[i];
        if (extent->buffer != buffer) {
            if (ends != report_count || extent->buffer != buffer + 1)
                return false;
            buffer = extent->buffer;
            ends = 0;
            at = 0;
        }
        if (extent->first != at || (extent->count > 0 && ends > 0) || !extent_is_good(extent))
            return false;
        ends += extent->count == 0;
        at += extent->count * extent->each;
        hashes += extent->count;
    }
    *out_hashes = hashes;
    return extent_count == 0 || ends == report_count;
}

static enum status digest_of(const struct ckpt_report *reports, uint32_t report_count,
                             struct ckpt_hash *out)
{
    size_t total = 0;
    for (uint32_t i = 0; i < report_count; i++)
        total += reports[i].extent_count;
    auto_free struct ckpt_piece_extent *extents = malloc((total + 1) * sizeof(*extents));
    if (extents == NULL)
        return ST_NO_MEMORY;
    size_t at = 0;
    for (uint32_t i = 0; i < report_count; i++) {
        for (uint32_t k = 0; k < reports[i].extent_count; k++)
            extents[at++] = reports[i].extents[k];
    }
    qsort(extents, total, sizeof(*extents), compare_extents);
    uint64_t hashes = 0;
    if (!extents_are_complete(extents, total, report_count, &hashes))
        return ST_INVALID;
    auto_free struct ckpt_hash *list = malloc((size_t)(hashes + 1) * sizeof(*list));
    if (list == NULL)
        return ST_NO_MEMORY;
    struct ckpt_digester digest;
    ckpt_digester_begin(&digest, list);
    for (size_t i = 0; i < total; i++) {
        const struct ckpt_piece_extent *extent = &extents[i];
        if (extent->count == 0) {
            ckpt_digester_end(&digest);
        } else if (extent->each == 1) {
            ckpt_digester_pieces(&digest, extent->hashes, extent->count);
        } else {
            ckpt_digester_branches(&digest, extent->hashes, extent->count);
        }
    }
    *out = ckpt_digester_finish(&digest, &reports[0].scalars);
    return ST_OK;
}

static enum status put_body(const struct ckpt_report *reports, uint32_t count, const char *job,
                            const char *wall_time, const char digest[33], struct buf *out)
{
    uint64_t raw = 0;
    for (uint32_t i = 0; i < count; i++)
        raw += reports[i].raw_bytes;
    enum status st = buf_printf(out,
                                "{\"cairn_checkpoint\":%u,\n\"job\":\"%s\",\n\"step\":%" PRIu64
                                ",\n\"generation\":%" PRIu64 ",\n",
                                DISK_VERSION, job, reports[0].step, reports[0].generation);
    if (st == ST_OK && reports[0].parent.generation != 0) {
        st = buf_printf(out, "\"parent_step\":%" PRIu64 ",\n\"parent_generation\":%" PRIu64 ",\n",
                        reports[0].parent.step, reports[0].parent.generation);
    }
    if (st == ST_OK) {
        st = buf_printf(out,
                        "\"created_at\":\"%s\",\n\"digest\":\"%s\",\n\"raw_bytes\":%" PRIu64
                        ",\n\"files\":[\n",
                        wall_time, digest, raw);
    }
    for (uint32_t i = 0; i < count && st == ST_OK; i++) {
        char hash[33];
        ckpt_hash_text(&reports[i].hash, hash);
        st = buf_printf(out, "{\"name\":\"%s\",\"size\":%" PRIu64 ",\"xxh3_128\":\"%s\"}%s\n",
                        reports[i].file, reports[i].size, hash, i + 1 < count ? "," : "]");
    }
    return st;
}

enum status ckpt_manifest_make(const struct ckpt_report *reports, uint32_t count, const char *job,
                               const char *wall_time, struct buf *out, struct ckpt_hash *out_digest)
{
    if (count == 0 || count > LIMIT_RANKS || !ckpt_name_is_good(job) ||
        !text_is_plain(wall_time, sizeof(((struct ckpt_manifest *)NULL)->created_at)) ||
        reports[0].step > INT64_MAX || reports[0].generation > INT64_MAX ||
        !parent_fits(&reports[0]))
        return ST_INVALID;
    for (uint32_t i = 0; i < count; i++) {
        if (!report_fits(reports, count, i))
            return ST_INVALID;
    }
    struct ckpt_hash digest;
    enum status st = digest_of(reports, count, &digest);
    if (st != ST_OK)
        return st;
    char text[33];
    ckpt_hash_text(&digest, text);
    auto_buf struct buf body;
    buf_init(&body, (size_t)LIMIT_MANIFEST_BYTES);
    st = put_body(reports, count, job, wall_time, text, &body);
    if (st != ST_OK)
        return st;
    struct ckpt_hash hash = ckpt_hash_of(body.data, body.size);
    ckpt_hash_text(&hash, text);
    st = buf_printf(&body, ",\"xxh3_128\":\"%s\"}\n", text);
    if (st == ST_OK)
        st = buf_append(out, body.data, body.size);
    if (st == ST_OK)
        *out_digest = digest;
    return st;
}
