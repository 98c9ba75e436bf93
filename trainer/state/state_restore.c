/*
 * The state from a checkpoint.
 *
 * Alone a rank reads all that it holds. With others it reads a part of what its replica group has
 * in common, gets their parts from them, and besides reads what nobody else has:
 *
 *     held by all of the replica group   | rank 0 reads | rank 1 reads | rank 2 reads |  whole
 *                                                                                        chunks
 *     moments that it owns        | it reads     |
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "common/fault.h"
#include "trainer/state/host_state.h"
#include "trainer/state/part_exchange.h"
#include "trainer/state/replica_group.h"
#include "trainer/state/state.h"

struct restore {
    struct worker *worker;
    const struct state_source *from;
    struct state_view view;
    struct host_state host;
    struct ckpt_share own;     /* part of what is held that this rank reads itself */
    struct part_piece *pieces; /* of the replica group's ranks; NULL: it reads all */
    size_t piece_count;
    char finding[LIMIT_REASON]; /* the first that reading came upon; "": none */
    struct reason *reason;
};

static enum status restore_fail(const struct restore *r, enum status st, const char *cause)
{
    struct reason why;
    io_explain(r->worker->options.io, st, &why);
    reason_set(r->reason, "%s: %s: %s", r->from->dir, cause,
               r->finding[0] != '\0' ? r->finding : why.text);
    return st;
}

static void note_first_finding(void *arg, const char *line)
{
    struct restore *r = arg;
    if (r->finding[0] == '\0')
        (void)snprintf(r->finding, sizeof(r->finding), "%s", line);
}

static void chunk_read(void *arg, uint64_t done)
{
    (void)done;
    progress_tick(arg);
}

/* Checks that the stored state is described as this job's is, and has this job's scalars. */
static enum status check_description(const struct restore *r, struct ckpt_reader *reader)
{
    const struct ckpt_state *state = &r->view.state;
    const struct ckpt_buffer *stored = NULL;
    if (ckpt_reader_buffers(reader, &stored) != state->buffer_count)
        return restore_fail(r, ST_CORRUPT, "holds other buffers than this job's state");
    for (uint32_t i = 0; i < state->buffer_count; i++) {
        const struct ckpt_buffer *b = &state->buffers[i];
        if (strcmp(b->name, stored[i].name) != 0 || b->dtype != stored[i].dtype ||
            b->count != stored[i].count) {
            return restore_fail(r, ST_CORRUPT,
                                "holds buffers of another shape than this job's state");
        }
    }
    const struct ckpt_scalars *scalars = ckpt_reader_scalars(reader);
    if (scalars->step != r->from->step || scalars->seed != r->worker->settings.seed)
        return restore_fail(r, ST_CORRUPT, "is of another step or seed");
    return ST_OK;
}

/* ---- in parts ---- */

static uint64_t chunks_of(const struct restore *r, const struct ckpt_extent *extent)
{
    return ckpt_chunks(r->view.state.buffers[extent->buffer].dtype, extent->count);
}

/* Chunks that every rank of the replica group holds. */
static uint64_t common_chunks(const struct restore *r)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < r->host.held.count; i++) {
        const struct ckpt_extent *extent = &r->host.held.extent[i];
        all += replica_group_has(r->worker, extent->buffer) ? chunks_of(r, extent) : 0;
    }
    return all;
}

/* Adds what of an extent is among chunks [first, end) of those held in common, of which `before`
 * are before it. own: it is this rank's to read */
static enum status deal_extent(struct restore *r, const struct ckpt_extent *extent, uint64_t before,
                               struct part_piece piece, uint64_t first, uint64_t end, bool own)
{
    const enum ckpt_dtype dtype = r->view.state.buffers[extent->buffer].dtype;
    const uint64_t chunk = ckpt_chunk_elements(dtype), chunks = chunks_of(r, extent);
    const uint64_t from = first > before ? first - before : 0;
    uint64_t to = end > before ? end - before : 0;
    to = to < chunks ? to : chunks;
    if (from >= to)
        return ST_OK;
    const uint64_t begin = from * chunk,
                   stop = to * chunk < extent->count ? to * chunk : extent->count;
    const uint64_t width = ckpt_dtype_size(dtype);
    piece.data = (uint8_t *)r->host.data[extent->buffer] + (extent->first + begin) * width;
    piece.bytes = (size_t)((stop - begin) * width);
    r->pieces[r->piece_count++] = piece;
    if (!own)
        return ST_OK;
    return ckpt_share_add(&r->view.state, extent->buffer, extent->first + begin, stop - begin,
                          &r->own);
}

/* Deals the state out to the ranks of the replica group for reading; r->own becomes this rank's
 * part. */
static enum status deal(struct restore *r, const struct replica_group *replica_group)
{
    const struct ckpt_share *held = &r->host.held;
    const uint64_t all = common_chunks(r);
    enum status st = ST_OK;
    r->pieces = calloc((size_t)replica_group->size + held->count, sizeof(*r->pieces));
    if (r->pieces == NULL)
        return ST_NO_MEMORY;
    r->own.count = 0;
    for (uint32_t rank = 0; rank < replica_group->size; rank++) {
        uint64_t first = 0, count = 0, before = 0;
        ckpt_share_chunks(all, rank, replica_group->size, &first, &count);
        for (uint32_t i = 0; st == ST_OK && i < held->count; i++) {
            const struct ckpt_extent *extent = &held->extent[i];
            if (!replica_group_has(r->worker, extent->buffer))
                continue;
            st = deal_extent(r, extent, before, (struct part_piece){ .rank = rank }, first,
                             first + count, rank == replica_group->rank);
            before += chunks_of(r, extent);
        }
    }
    for (uint32_t i = 0; st == ST_OK && i < held->count; i++) {
        const struct ckpt_extent *extent = &held->extent[i];
        if (!replica_group_has(r->worker, extent->buffer)) {
            st = ckpt_share_add(&r->view.state, extent->buffer, extent->first, extent->count,
                                &r->own);
        }
    }
    return st;
}

static enum status exchange_parts(const struct restore *r,
                                  const struct replica_group *replica_group, uint32_t *out_blamed)
{
    struct progress *progress = r->worker->options.progress;
    const struct part_exchange_options options = { .table = r->from->table,
                                                   .comm = replica_group->comm,
                                                   .rank = replica_group->rank,
                                                   .size = replica_group->size,
                                                   .first = replica_group->first,
                                                   .pieces = r->pieces,
                                                   .piece_count = r->piece_count,
                                                   .tick = progress_tick,
                                                   .tick_arg = progress };
    uint32_t blamed = 0;
    r->reason->text[0] = '\0';
    enum status st = part_exchange(&options, &blamed, r->reason);
    if (st == ST_OK)
        return ST_OK;
    if (r->reason->text[0] == '\0')
        reason_set(r->reason, "the state from who has read it: %s", status_string(st));
    if (st == ST_CORRUPT && out_blamed != NULL)
        *out_blamed = 1 + replica_group->first + blamed;
    /* A failed exchange is a peer's fault, not that of the store or a checkpoint. */
    return st == ST_CORRUPT || st == ST_TIMED_OUT ? ST_PEER : st;
}

/* ---- all of it ---- */

/* Reads what is held. If that is the complete state, and all of it is read here, its digest is
 * checked. */
static enum status read_buffers(const struct restore *r, struct ckpt_reader *reader)
{
    const struct worker *w = r->worker;
    const struct ckpt_read_options options = {
        .threads = (uint32_t)w->options.job->checkpoint.threads,
        .held = r->pieces != NULL ? &r->own : w->held,
        .progress = chunk_read,
        .progress_arg = w->options.progress,
    };
    enum status st = fault_status("restore.read");
    if (st == ST_OK)
        st = ckpt_read_state(reader, r->host.data, &options);
    return st == ST_OK ? ST_OK : restore_fail(r, st, "cannot be read");
}

static enum status restore_scalars(const struct restore *r, const struct ckpt_scalars *scalars)
{
    struct worker *w = r->worker;
    enum status st = worker_skip_add(w, scalars->skip, scalars->skip_count);
    if (st != ST_OK)
        return restore_fail(r, st, "skip list");
    w->scaler.scale = scalars->loss_scale;
    w->scaler.good_steps = scalars->loss_scale_good_steps;
    return ST_OK;
}

/* Prepares the state's places on the host, and which rank reads what of it. */
static enum status prepare(struct restore *r, struct ckpt_reader *reader,
                           struct replica_group *replica_group)
{
    enum status st = worker_hold(r->worker, NULL);
    state_describe(r->worker, r->from->step, NULL, &r->view);
    if (st == ST_OK)
        st = check_description(r, reader);
    if (st == ST_OK)
        st = host_state_make(r->worker, &r->view.state, &r->host);
    *replica_group = replica_group_of(r->worker, r->from->comm);
    return st == ST_OK && r->from->comm != NULL && replica_group->size > 1 ? deal(r, replica_group)
                                                                           : st;
}

enum status state_restore(struct worker *worker, const struct state_source *from,
                          struct state_blame *out_blame, struct reason *reason)
{
    struct restore r = { .worker = worker, .from = from, .reason = reason };
    struct ckpt_reader *reader = NULL;
    struct replica_group replica_group = { .comm = NULL };
    ckpt_await(worker->options.io, from->dir);
    enum status st = ckpt_open(worker->options.io, from->dir, note_first_finding, &r, &reader);
    if (st != ST_OK)
        return restore_fail(&r, st, "cannot be restored");
    st = prepare(&r, reader, &replica_group);
    if (st == ST_OK)
        st = read_buffers(&r, reader);
    if (out_blame != NULL)
        out_blame->file = ckpt_reader_damaged(reader);
    if (st == ST_OK)
        st = restore_scalars(&r, ckpt_reader_scalars(reader));
    if (st == ST_OK)
        progress_collective_begin(worker->options.progress, "restore");
    if (st == ST_OK && r.pieces != NULL)
        st = exchange_parts(&r, &replica_group, out_blame != NULL ? &out_blame->rank : NULL);
    if (st == ST_OK) /* counted by ranks that share with nobody, too (server/jobfsm/hang) */
        progress_collective_end(worker->options.progress, "restore");
    if (st == ST_OK)
        st = host_state_upload(worker, &r.host);
    host_state_release(&r.host);
    free(r.pieces);
    ckpt_close(reader);
    return st;
}
