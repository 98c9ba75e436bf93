/* The state's memory, and what of it this rank owns. */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "trainer/update/optimizer_internal.h"

/* ---- memory ---- */

/* Returns the most pieces: those of whole buffers, and one more for each further extent that begins
 * within a piece. Muon's parts are such extents. */
static size_t pieces_max(const struct optimizer *optimizer)
{
    const bool cut = optimizer->options.kind == JOBSPEC_OPTIMIZER_MUON;
    const size_t params = optimizer_pieces(optimizer->layout.param_count) + OPTIMIZER_EXTENTS_MAX +
                          (cut ? 2 * (size_t)optimizer->tape->param_count : 0);
    return params * (size_t)(1 + optimizer->moment_count) +
           optimizer_pieces(optimizer->layout.stat_count) + OPTIMIZER_STRETCHES_MAX;
}

static enum status allocate_sums(struct optimizer *optimizer)
{
    optimizer->sums_max = pieces_max(optimizer);
    const size_t bytes = optimizer->sums_max * sizeof(*optimizer->sums);
    enum status st = optimizer->table->alloc(optimizer->backend, bytes, (void **)&optimizer->sums);
    if (st != ST_OK)
        return st;
    return optimizer->table->alloc_host(optimizer->backend, bytes, (void **)&optimizer->sums_read);
}

static enum status allocate_floats(struct optimizer *optimizer, size_t count, float **out)
{
    void *memory = NULL;
    if (count == 0)
        return ST_OK;
    enum status st = optimizer->table->alloc(optimizer->backend, count * sizeof(float), &memory);
    *out = memory;
    return st;
}

/* Addresses for a buffer of `count` elements, memory for extents of it. */
static enum status allocate_extents(struct optimizer *optimizer, size_t count,
                                    const struct lane_extent *extents, size_t extent_count,
                                    float **out)
{
    auto_free struct memory_part *parts = calloc(extent_count + 1, sizeof(*parts));
    void *memory = NULL;
    if (parts == NULL)
        return ST_NO_MEMORY;
    const size_t made = optimizer_parts(extents, extent_count, count, parts);
    enum status st = optimizer->table->alloc_parts(optimizer->backend, count * sizeof(float), parts,
                                                   made, &memory);
    *out = memory;
    return st;
}

static enum status allocate_params(struct optimizer *optimizer)
{
    const size_t count = optimizer->layout.param_count;
    if (!optimizer->params_in_parts)
        return allocate_floats(optimizer, count, &optimizer->params);
    return allocate_extents(optimizer, count, optimizer->param_extent, optimizer->param_extents,
                            &optimizer->params);
}

static enum status allocate_stats(struct optimizer *optimizer)
{
    const size_t count = optimizer->layout.stat_count;
    if (!optimizer->stats_in_parts || count == 0)
        return allocate_floats(optimizer, count, &optimizer->stats);
    return allocate_extents(optimizer, count, optimizer->stat_extent, optimizer->stat_extents,
                            &optimizer->stats);
}

/* Addresses for all, memory for what this rank owns. */
static enum status allocate_owned(struct optimizer *optimizer, float **out)
{
    auto_free struct lane_extent *extents =
        calloc((size_t)optimizer->part_count + 1, sizeof(*extents));
    if (extents == NULL)
        return ST_NO_MEMORY;
    for (uint32_t i = 0; i < optimizer->part_count; i++) {
        const struct optimizer_part *part = &optimizer->parts[i];
        extents[i] = (struct lane_extent){ part->first, part->first + part->count };
    }
    return allocate_extents(optimizer, optimizer->layout.param_count, extents,
                            optimizer->part_count, out);
}

static enum status allocate_moments(struct optimizer *optimizer)
{
    enum status st = ST_OK;
    for (int i = 0; st == ST_OK && i < optimizer->moment_count; i++) {
        float **moment = &optimizer->moments[i];
        st = optimizer->has_peers
                 ? allocate_owned(optimizer, moment)
                 : allocate_floats(optimizer, optimizer->layout.param_count, moment);
    }
    return st;
}

static void free_floats(struct optimizer *optimizer, float **memory, size_t count, bool in_parts)
{
    const struct backend_table *table = optimizer->table;
    if (*memory != NULL && in_parts) {
        table->free_parts(optimizer->backend, *memory, count * sizeof(float));
    } else if (*memory != NULL) {
        table->free(optimizer->backend, *memory);
    }
    *memory = NULL;
}

/* shares: as the optimizer's when they were allocated. */
static void free_moments(struct optimizer *optimizer, float **moments, bool shares)
{
    for (int i = 0; i < OPTIMIZER_MOMENTS_MAX; i++)
        free_floats(optimizer, &moments[i], optimizer->layout.param_count, shares);
}

static enum status copy_to_device(struct optimizer *optimizer, void *to, const void *from,
                                  size_t bytes)
{
    const struct backend_table *table = optimizer->table;
    struct stream *stream = NULL;
    enum status st = table->stream_new(optimizer->backend, &stream);
    if (st != ST_OK)
        return st;
    st = table->vector.copy(optimizer->backend, to, from, bytes, stream);
    if (st == ST_OK)
        st = table->stream_sync(optimizer->backend, stream);
    table->stream_free(optimizer->backend, stream);
    return st;
}

/* ---- the norm ---- */

/* A norm block begins at each parameter and at each piece of the buffer: no cut between nodes, and
 * none between owners of pieces, splits one. out: NULL, or [blocks + 1]. Returns the blocks. */
static size_t norm_blocks(const struct tape *tape, uint64_t *out)
{
    size_t count = 0;
    for (int i = 0; i < tape->param_count; i++) {
        const size_t end = tape->params[i].offset + tape->params[i].count;
        for (size_t at = tape->params[i].offset; at < end; count++) {
            if (out != NULL)
                out[count] = at;
            const size_t next = (at / PIECE_ELEMENTS + 1) * PIECE_ELEMENTS;
            at = next < end ? next : end;
        }
    }
    if (out != NULL)
        out[count] = tape->param_elements;
    return count;
}

static enum status map_norm(struct optimizer *optimizer)
{
    const struct backend_table *table = optimizer->table;
    struct backend *backend = optimizer->backend;
    const size_t count = norm_blocks(optimizer->tape, NULL);
    const size_t bytes = (count + 1) * sizeof(uint64_t), sums = (count + 1) * sizeof(double);
    auto_free uint64_t *begin = malloc(bytes);
    optimizer->norm_packed = calloc(count + 1, sizeof(*optimizer->norm_packed));
    optimizer->in_order = calloc(count + 1, sizeof(*optimizer->in_order));
    optimizer->tensor_norms =
        calloc(2 * (size_t)optimizer->tape->param_count + 1, sizeof(*optimizer->tensor_norms));
    if (begin == NULL || optimizer->norm_packed == NULL || optimizer->in_order == NULL ||
        optimizer->tensor_norms == NULL)
        return ST_NO_MEMORY;
    optimizer->norm_count = norm_blocks(optimizer->tape, begin);
    enum status st = table->alloc(backend, bytes, (void **)&optimizer->norm_begin);
    if (st == ST_OK)
        st = copy_to_device(optimizer, optimizer->norm_begin, begin, bytes);
    if (st == ST_OK)
        st = table->alloc(backend, sums, (void **)&optimizer->squares);
    if (st == ST_OK)
        st = table->alloc_host(backend, sums, (void **)&optimizer->squares_read);
    if (st != ST_OK)
        return st;
    return table->alloc_host(backend, SUM_SCALARS * sizeof(float), (void **)&optimizer->scalars);
}

/* The first block that begins at `at` or later. */
static size_t block_at(const uint64_t *begin, size_t count, size_t at)
{
    size_t low = 0, high = count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (begin[middle] < at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Finds the blocks of each extent, and where their sums are packed. begin: [norm_count + 1] */
static void pack_blocks(struct optimizer *optimizer, const struct owners *owners,
                        const uint64_t *begin)
{
    size_t packed = 0;
    for (uint32_t r = 0; r < owners->size; r++) {
        optimizer->norm_of[r] = packed;
        for (uint32_t i = owners->begin[r]; i < owners->begin[r + 1]; i++) {
            const struct owned_extent *extent = &owners->extent[i];
            const size_t end =
                block_at(begin, optimizer->norm_count, extent->first + extent->count);
            size_t block = block_at(begin, optimizer->norm_count, extent->first);
            CHECK(begin[block] == extent->first && begin[end] == extent->first + extent->count);
            if (r == owners->rank) {
                struct optimizer_part *part = &optimizer->parts[i - owners->begin[r]];
                part->block_begin = block;
                part->block_end = end;
            }
            for (; block < end; block++)
                optimizer->norm_packed[packed++] = block;
        }
    }
    optimizer->norm_of[owners->size] = packed;
    optimizer->own_packed = optimizer->norm_of[owners->rank];
    CHECK(packed == optimizer->norm_count); /* each element has one owner */
}

/* ---- decay ---- */

/* The elements at which decay starts or stops (struct decay_map). out: room for one of each
 * parameter. */
static size_t decay_borders(const struct tape *tape, unsigned no_decay, uint64_t *out)
{
    size_t count = 0;
    bool decays = true;
    for (int i = 0; i < tape->param_count; i++) {
        bool wanted = ((unsigned)tape->params[i].kind & no_decay) == 0;
        if (wanted != decays)
            out[count++] = tape->params[i].offset;
        decays = wanted;
    }
    return count;
}

/* A part's borders count from its start: those before it become one or none there. Appends to out
 * and returns how many. */
static size_t part_borders(const struct optimizer_part *part, const uint64_t *borders, size_t count,
                           uint64_t *out)
{
    size_t before = 0, made = 0;
    while (before < count && borders[before] <= part->first)
        before++;
    if (before % 2 == 1)
        out[made++] = 0;
    for (size_t i = before; i < count && borders[i] < part->first + part->count; i++)
        out[made++] = borders[i] - part->first;
    return made;
}

static enum status map_decay(struct optimizer *optimizer)
{
    const struct tape *tape = optimizer->tape;
    const size_t params = (size_t)tape->param_count + 1;
    auto_free uint64_t *all = calloc(params, sizeof(*all));
    auto_free uint64_t *borders =
        calloc(params + 2 * (size_t)optimizer->part_count, sizeof(*borders));
    if (all == NULL || borders == NULL)
        return ST_NO_MEMORY;
    const size_t count = decay_borders(tape, optimizer->options.no_decay, all);
    size_t made = 0;
    if (count == 0)
        return ST_OK;
    for (uint32_t i = 0; i < optimizer->part_count; i++) {
        struct optimizer_part *part = &optimizer->parts[i];
        part->decay.count = part_borders(part, all, count, borders + made);
        made += part->decay.count;
    }
    const size_t bytes = (made + 1) * sizeof(*borders);
    enum status st =
        optimizer->table->alloc(optimizer->backend, bytes, (void **)&optimizer->decay_borders);
    size_t at = 0;
    for (uint32_t i = 0; st == ST_OK && i < optimizer->part_count; i++) {
        optimizer->parts[i].decay.borders = optimizer->decay_borders + at;
        at += optimizer->parts[i].decay.count;
    }
    return st == ST_OK ? copy_to_device(optimizer, optimizer->decay_borders, borders, bytes) : st;
}

/* ---- what this rank owns ---- */

static enum status take_parts(struct optimizer *optimizer, const struct owners *owners)
{
    uint32_t count = 0;
    const struct owned_extent *own = owners_own(owners, &count);
    const size_t bytes = (optimizer->norm_count + 1) * sizeof(uint64_t);
    auto_free uint64_t *begin = malloc(bytes);
    optimizer->parts = calloc((size_t)count + 1, sizeof(*optimizer->parts));
    optimizer->norm_of = calloc((size_t)owners->size + 1, sizeof(*optimizer->norm_of));
    if (begin == NULL || optimizer->parts == NULL || optimizer->norm_of == NULL)
        return ST_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        optimizer->parts[i].first = own[i].first;
        optimizer->parts[i].count = own[i].count;
    }
    optimizer->part_count = count;
    optimizer->has_peers = owners->size > 1;
    CHECK(norm_blocks(optimizer->tape, begin) == optimizer->norm_count);
    pack_blocks(optimizer, owners, begin);
    return optimizer->options.kind == JOBSPEC_OPTIMIZER_MUON ? optimizer_muon_cut(optimizer)
                                                             : ST_OK;
}

/* Frees what depends on the owners, except the moments. */
static void let_go(struct optimizer *optimizer)
{
    if (optimizer->decay_borders != NULL)
        optimizer->table->free(optimizer->backend, optimizer->decay_borders);
    optimizer->decay_borders = NULL;
    free(optimizer->parts);
    free(optimizer->norm_of);
    optimizer->parts = NULL;
    optimizer->norm_of = NULL;
    optimizer->part_count = 0;
}

static enum status own(struct optimizer *optimizer, const struct owners *owners)
{
    struct owned_extent all = { 0, optimizer->layout.param_count };
    uint32_t begin[] = { 0, 1 };
    const struct owners alone = { .size = 1, .extent = &all, .begin = begin };
    let_go(optimizer);
    enum status st = take_parts(optimizer, owners != NULL ? owners : &alone);
    if (st == ST_OK)
        st = map_decay(optimizer);
    if (st == ST_OK)
        st = allocate_moments(optimizer);
    for (uint32_t i = 0; st == ST_OK && i < optimizer->buffer_count; i++)
        optimizer->buffers[i].data = optimizer_buffer(optimizer, optimizer->buffers[i].name);
    return st;
}

enum status optimizer_keep_copies(struct optimizer *optimizer, const struct plan *plan)
{
    auto_free struct param_copy *copies =
        calloc((size_t)optimizer->tape->param_count + 1, sizeof(*copies));
    void *memory = NULL;
    CHECK(optimizer->copies.count == 0);
    if (copies == NULL)
        return ST_NO_MEMORY;
    const size_t count = plan_copies(plan, copies);
    if (count == 0)
        return ST_OK;
    enum status st = optimizer->table->alloc(optimizer->backend, count * sizeof(*copies), &memory);
    if (st != ST_OK)
        return st;
    optimizer->copies = (struct copy_map){ memory, count };
    return copy_to_device(optimizer, memory, copies, count * sizeof(*copies));
}

enum status optimizer_own(struct optimizer *optimizer, const struct owners *owners,
                          const struct optimizer_move *move)
{
    const bool shared = optimizer->has_peers;
    float *before[OPTIMIZER_MOMENTS_MAX];
    if (move == NULL) /* there may be no room for both */
        free_moments(optimizer, optimizer->moments, shared);
    memcpy(before, optimizer->moments, sizeof(before));
    memset(optimizer->moments, 0, sizeof(optimizer->moments));
    enum status st = own(optimizer, owners);
    for (int i = 0; move != NULL && st == ST_OK && i < optimizer->moment_count; i++)
        st = move->moment(move->arg, before[i], optimizer->moments[i]);
    free_moments(optimizer, before, shared);
    return st;
}

/* ---- open and close ---- */

static void note_holding(struct optimizer *optimizer, const struct optimizer_holding *holding)
{
    const struct lane_layout *layout = &optimizer->layout;
    optimizer->param_extent[0] = (struct lane_extent){ 0, layout->param_count };
    optimizer->param_extents = 1;
    optimizer->stat_extent[0] = (struct lane_extent){ 0, layout->stat_count };
    optimizer->stat_extents = 1;
    if (holding == NULL)
        return;
    optimizer->replicas = holding->replicas;
    optimizer->params_in_parts = holding->params != NULL;
    optimizer->stats_in_parts = holding->stats != NULL;
    if (optimizer->stats_in_parts) {
        CHECK(holding->stat_extents <= OPTIMIZER_STRETCHES_MAX);
        optimizer->stat_extents = holding->stat_extents;
        memcpy(optimizer->stat_extent, holding->stats,
               holding->stat_extents * sizeof(*holding->stats));
    }
    if (!optimizer->params_in_parts)
        return;
    CHECK(holding->param_extents <= OPTIMIZER_EXTENTS_MAX);
    optimizer->param_extents = holding->param_extents;
    memcpy(optimizer->param_extent, holding->params,
           holding->param_extents * sizeof(*holding->params));
}

enum status optimizer_new(const struct optimizer_options *options, const struct tape *tape,
                          const struct optimizer_holding *holding,
                          const struct backend_table *table, struct backend *backend,
                          struct optimizer **out)
{
    struct optimizer *optimizer = calloc(1, sizeof(*optimizer));
    if (optimizer == NULL)
        return ST_NO_MEMORY;
    optimizer->options = *options;
    optimizer->table = table;
    optimizer->backend = backend;
    optimizer->tape = tape;
    optimizer->layout = lane_layout(tape);
    optimizer->moment_count = optimizer_moments(options);
    note_holding(optimizer, holding);
    enum status st = allocate_params(optimizer);
    if (st == ST_OK)
        st = allocate_stats(optimizer);
    if (st == ST_OK)
        st = allocate_sums(optimizer);
    if (st == ST_OK)
        st = map_norm(optimizer);
    if (st == ST_OK)
        st = optimizer_describe_open(optimizer);
    if (st == ST_OK)
        st = optimizer_muon_open(optimizer);
    if (st == ST_OK)
        st = own(optimizer, holding != NULL ? holding->owners : NULL);
    if (st != ST_OK) {
        optimizer_free(optimizer);
        return st;
    }
    *out = optimizer;
    return ST_OK;
}

void optimizer_free(struct optimizer *optimizer)
{
    if (optimizer == NULL)
        return;
    const struct backend_table *table = optimizer->table;
    void *const owned[] = { optimizer->squares, optimizer->sums, optimizer->norm_begin };
    void *const on_host[] = { optimizer->squares_read, optimizer->scalars, optimizer->sums_read };
    free_floats(optimizer, &optimizer->params, optimizer->layout.param_count,
                optimizer->params_in_parts);
    free_floats(optimizer, &optimizer->stats, optimizer->layout.stat_count,
                optimizer->stats_in_parts);
    free_moments(optimizer, optimizer->moments, optimizer->has_peers);
    let_go(optimizer);
    if (optimizer->copies.count > 0)
        table->free(optimizer->backend, (void *)optimizer->copies.copies);
    for (size_t i = 0; i < sizeof(owned) / sizeof(owned[0]); i++) {
        if (owned[i] != NULL)
            table->free(optimizer->backend, owned[i]);
    }
    for (size_t i = 0; i < sizeof(on_host) / sizeof(on_host[0]); i++) {
        if (on_host[i] != NULL)
            table->free_host(optimizer->backend, on_host[i]);
    }
    free(optimizer->norm_packed);
    free(optimizer->in_order);
    free(optimizer->tensor_norms);
    optimizer_muon_close(optimizer);
    free(optimizer->tensors);
    free(optimizer);
}

float *optimizer_ema(struct optimizer *optimizer)
{
    return optimizer->options.ema > 0 ? optimizer->moments[optimizer->moment_count - 1] : NULL;
}

enum status optimizer_begin(struct optimizer *optimizer, struct stream *stream)
{
    float *ema = optimizer_ema(optimizer);
    enum status st = ST_OK;
    for (uint32_t i = 0; ema != NULL && st == ST_OK && i < optimizer->part_count; i++) {
        const struct optimizer_part *part = &optimizer->parts[i];
        st = optimizer->table->vector.copy(optimizer->backend, ema + part->first,
                                           optimizer->params + part->first,
                                           part->count * sizeof(*ema), stream);
    }
    return st;
}

float *optimizer_params(struct optimizer *optimizer)
{
    return optimizer->params;
}

float *optimizer_stats(struct optimizer *optimizer)
{
    return optimizer->stats;
}

size_t optimizer_squares(const struct optimizer *optimizer, uint32_t rank)
{
    return optimizer->norm_of[rank + 1] - optimizer->norm_of[rank];
}
