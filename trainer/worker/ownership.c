#include "trainer/worker/ownership.h"

#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/fault.h"
#include "common/limits.h"
#include "trainer/tape/lane.h"

/* ---- who owns what ---- */

static size_t unit_of(const struct ownership *o)
{
    return owners_unit(o->options.device->table->host_memory);
}

enum status ownership_open(const struct ownership_options *options, struct ownership *ownership)
{
    struct ownership *o = ownership;
    const struct lane_layout layout = lane_layout(options->tape);
    o->options = *options;
    o->bucket_begin = calloc(LANE_BUCKETS_MAX, sizeof(*o->bucket_begin));
    if (o->bucket_begin == NULL)
        return ST_NO_MEMORY;
    if (options->owns) {
        const size_t wanted = lane_wanted(options->tape->param_elements, LANE_OWNED_BUCKETS_MAX);
        return lane_owned_buckets(options->tape, unit_of(o), wanted, o->bucket_begin,
                                  LANE_BUCKETS_MAX, &o->buckets);
    }
    return lane_buckets(&layout, lane_wanted(layout.count, LANE_BUCKETS_MAX), o->bucket_begin,
                        LANE_BUCKETS_MAX, &o->buckets.count);
}

static enum status make_owners(const struct ownership *o, uint32_t rank, uint32_t size,
                               size_t **out_borders, struct owners *out)
{
    const struct tape *tape = o->options.tape;
    *out_borders = calloc(o->buckets.count * (size + 1), sizeof(**out_borders));
    if (*out_borders == NULL)
        return ST_NO_MEMORY;
    lane_owners(tape, unit_of(o), o->bucket_begin, &o->buckets, size, *out_borders);
    return owners_make(*out_borders, o->buckets.params, tape->param_elements, rank, size, out);
}

enum status ownership_among(const struct ownership *ownership, uint32_t size, struct owners *out)
{
    auto_free size_t *borders = NULL;
    return make_owners(ownership, 0, size, &borders, out);
}

static void let_go(struct ownership *o)
{
    if (o->options.device != NULL)
        gather_close(&o->squares, o->options.device);
    free(o->borders);
    o->borders = NULL;
    owners_release(&o->owners);
}

enum status ownership_cut(struct ownership *ownership, uint32_t rank, uint32_t size)
{
    struct ownership *o = ownership;
    let_go(o);
    o->rank = rank;
    o->size = size;
    return o->options.owns ? make_owners(o, rank, size, &o->borders, &o->owners) : ST_OK;
}

void ownership_close(struct ownership *ownership)
{
    let_go(ownership);
    free(ownership->bucket_begin);
    ownership->bucket_begin = NULL;
}

void ownership_connect(struct ownership *ownership, struct comm *comm, struct reducer *reducer)
{
    ownership->comm = comm;
    ownership->reducer = reducer;
}

bool ownership_is_shared(const struct ownership *ownership)
{
    return ownership->options.owns && ownership->size > 1;
}

const struct owners *ownership_owners(const struct ownership *ownership)
{
    return ownership_is_shared(ownership) ? &ownership->owners : NULL;
}

const struct optimizer_peers *ownership_peers(const struct ownership *ownership)
{
    return ownership_is_shared(ownership) ? &ownership->peers : NULL;
}

const struct ckpt_share *ownership_held(const struct ownership *ownership)
{
    return ownership_is_shared(ownership) ? &ownership->held : NULL;
}

const struct ckpt_share *ownership_share(const struct ownership *ownership)
{
    return ownership_is_shared(ownership) ? &ownership->share : NULL;
}

/* ---- the exchanges ---- */

/* Begins an exchange within an update: its time counts as communication. */
static void begin_exchange(const struct ownership *o, const char *name)
{
    progress_phase(o->options.progress, PHASE_REDUCE);
    progress_collective_begin(o->options.progress, name);
}

static void end_exchange(const struct ownership *o, const char *name, enum status st)
{
    if (st == ST_OK)
        progress_collective_end(o->options.progress, name);
    progress_phase(o->options.progress, PHASE_UPDATE);
}

/* NOLINTNEXTLINE(readability-non-const-parameter): in a pipeline they come from another rank */
static enum status exchange_squares(void *arg, double *packed, float *scalars)
{
    struct ownership *o = arg;
    const struct comm_segment *own = &o->squares.segments[o->rank];
    const size_t at = (size_t)((uint8_t *)own->data - o->squares.data);
    (void)scalars; /* every rank has them */
    begin_exchange(o, "norm");
    fault_point("trainer.norm");
    memcpy(own->data, (uint8_t *)packed + at, own->size);
    enum status st =
        gather_exchange(&o->squares, o->options.device, o->comm, o->rank, o->options.timeout_ms);
    if (st == ST_OK)
        memcpy(packed, o->squares.data, o->squares.bytes);
    end_exchange(o, "norm", st);
    return st;
}

static enum status gather_params(void *arg, float *params)
{
    struct ownership *o = arg;
    const struct device *device = o->options.device;
    begin_exchange(o, "parameters");
    fault_point("trainer.gather");
    enum status st = reducer_gather(o->reducer, params, o->buckets.params);
    if (st == ST_OK && !device->table->host_memory)
        st = device->comm->wait(o->comm, o->options.timeout_ms);
    end_exchange(o, "parameters", st);
    return st;
}

static enum status open_exchanges(struct ownership *o, const struct optimizer *optimizer)
{
    size_t bytes[LIMIT_RANKS];
    gather_close(&o->squares, o->options.device);
    if (!ownership_is_shared(o))
        return ST_OK;
    o->peers = (struct optimizer_peers){ exchange_squares, gather_params, o };
    for (uint32_t r = 0; r < o->size; r++)
        bytes[r] = optimizer_squares(optimizer, r) * sizeof(double);
    return gather_open(&o->squares, o->options.device, bytes, o->size);
}

/* ---- what this rank has ---- */

/* A share has extents of the parameters and the statistics besides those of the moments. */
_Static_assert((size_t)OPTIMIZER_MOMENTS_MAX *LANE_OWNED_BUCKETS_MAX + 2 <= CKPT_EXTENTS_MAX,
               "a share has room for all runs of an owner");
_Static_assert(LANE_OWNED_BRANCH / PIECE_ELEMENTS == CKPT_BRANCH_PIECES, "a branch is one");
/* Most hashes of a report: those of each extent's loose pieces, and those of all whole branches
 * with the ends of what a buffer has in a row. */
_Static_assert((size_t)OPTIMIZER_MOMENTS_MAX *LANE_OWNED_BUCKETS_MAX *LANE_OWNED_LOOSE_PIECES +
                       LIMIT_SHARE_BYTES / (LANE_OWNED_BRANCH * sizeof(float)) +
                       (size_t)OPTIMIZER_BUFFERS_MAX * 2 * CKPT_BRANCH_PIECES <=
                   CKPT_REPORT_HASHES_MAX,
               "the report of a share of an owner fits a message");

static enum status add_moment(const struct ownership *o, const struct ckpt_state *state,
                              uint32_t buffer, struct ckpt_share *share)
{
    uint32_t extents = 0;
    const struct owned_extent *own = owners_own(&o->owners, &extents);
    enum status st = ST_OK;
    for (uint32_t r = 0; st == ST_OK && r < extents; r++)
        st = ckpt_share_add(state, buffer, own[r].first, own[r].count, share);
    return st;
}

/* Moments are saved by their owners, all else in even shares. */
static enum status share_state(struct ownership *o, struct optimizer *optimizer)
{
    struct ckpt_state state = { .share = NULL };
    uint32_t all = 0; /* buffers that every rank has */
    o->held = o->share = (struct ckpt_share){ .count = 0 };
    if (!ownership_is_shared(o))
        return ST_OK;
    optimizer_describe(optimizer, &state.buffers, &state.buffer_count, &state.tensors,
                       &state.tensor_count);
    for (uint32_t i = 0; i < state.buffer_count; i++)
        all |= optimizer_buffer_kind(optimizer, i) == OPTIMIZER_MOMENT ? 0 : UINT32_C(1) << i;
    enum status st = ckpt_share_even(&state, all, 0, 1, &o->held);
    if (st == ST_OK)
        st = ckpt_share_even(&state, all, o->rank, o->size, &o->share);
    for (uint32_t i = 0; st == ST_OK && i < state.buffer_count; i++) {
        if (optimizer_buffer_kind(optimizer, i) != OPTIMIZER_MOMENT)
            continue;
        st = add_moment(o, &state, i, &o->held);
        if (st == ST_OK)
            st = add_moment(o, &state, i, &o->share);
    }
    return st;
}

void ownership_note_held(struct ownership *ownership)
{
    ownership->moments_of[0] = ownership->rank;
    ownership->moments_of[1] = ownership->size;
}

void ownership_unsettle(struct ownership *ownership)
{
    ownership->moments_of[1] = 0;
}

bool ownership_is_settled(const struct ownership *ownership)
{
    return ownership->moments_of[0] == ownership->rank &&
           ownership->moments_of[1] == ownership->size;
}

enum status ownership_hold(struct ownership *ownership, struct optimizer *optimizer,
                           const struct optimizer_move *move)
{
    struct ownership *o = ownership;
    enum status st = ST_OK;
    if (o->options.owns && !ownership_is_settled(o)) {
        ownership_unsettle(o);
        st = optimizer_own(optimizer, ownership_owners(o), move);
    }
    if (st == ST_OK)
        ownership_note_held(o);
    if (st == ST_OK)
        st = share_state(o, optimizer);
    return st == ST_OK ? open_exchanges(o, optimizer) : st;
}
