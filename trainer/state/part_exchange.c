#include "trainer/state/part_exchange.h"

#include <stdbool.h>
#include <stdlib.h>

#include "checkpoint/format/hash.h"
#include "common/check.h"
#include "common/fault.h"
#include "trainer/state/chunk_hasher.h"

#define STRETCH_MIN ((size_t)64 * 1024)
#define STRETCH_MAX ((size_t)16 * 1024 * 1024)
#define SEND_MS     INT64_C(60000)
#define READ_MS     INT64_C(86400000) /* until all have their parts; a death is noticed at once */

/* Position of the rounds in a rank's part. */
struct part_place {
    size_t piece, end; /* the next one, and the first of another rank */
    size_t offset;     /* in it, in bytes */
};

struct exchange_state {
    const struct part_exchange_options *options;
    size_t stretch_bytes;
    struct part_place *places;      /* [size] */
    struct comm_segment *stretches; /* [size] of this round; size 0: none is left */
    struct comm_segment *said;      /* [size] `hashes`, as what is gathered */
    struct chunk_hash *checks;      /* [size] what came in the round before; own: of this one */
    struct ckpt_hash *hashes;       /* [size] of those, as their ranks say */
    struct chunk_hasher *hasher;
};

static enum status gather(const struct exchange_state *s, const struct comm_segment *segments,
                          int64_t timeout_ms)
{
    const struct part_exchange_options *o = s->options;
    return o->table->all_gather_v(o->comm, segments, timeout_ms);
}

static void note_said(struct exchange_state *s)
{
    for (uint32_t r = 0; r < s->options->size; r++)
        s->said[r] = (struct comm_segment){ &s->hashes[r], sizeof(s->hashes[r]) };
}

/* Checks that all ranks have their parts, and have cut the memory alike. */
static enum status join(struct exchange_state *s, struct reason *reason)
{
    const struct part_exchange_options *o = s->options;
    struct ckpt_hasher *hasher = NULL;
    enum status st = ckpt_hasher_new(&hasher);
    if (st != ST_OK)
        return st;
    for (size_t i = 0; i < o->piece_count; i++) {
        const uint64_t piece[2] = { o->pieces[i].rank, o->pieces[i].bytes };
        ckpt_hasher_add(hasher, piece, sizeof(piece));
    }
    s->hashes[o->rank] = ckpt_hasher_result(hasher);
    ckpt_hasher_free(hasher);
    st = gather(s, s->said, READ_MS);
    for (uint32_t r = 0; st == ST_OK && r < o->size; r++) {
        if (!ckpt_hash_equal(&s->hashes[r], &s->hashes[o->rank])) {
            reason_set(reason, "rank %u has cut the state differently", o->first + r);
            st = ST_INVALID;
        }
    }
    return st;
}

/* The next stretch of each part. false: no part has one. */
static bool next_round(struct exchange_state *s)
{
    const struct part_exchange_options *o = s->options;
    bool some = false;
    for (uint32_t r = 0; r < o->size; r++) {
        struct part_place *place = &s->places[r];
        s->stretches[r] = (struct comm_segment){ NULL, 0 };
        if (place->piece == place->end)
            continue;
        const struct part_piece *piece = &o->pieces[place->piece];
        const size_t left = piece->bytes - place->offset;
        const size_t bytes = left < s->stretch_bytes ? left : s->stretch_bytes;
        s->stretches[r] = (struct comm_segment){ (uint8_t *)piece->data + place->offset, bytes };
        place->offset += bytes;
        if (place->offset == piece->bytes) {
            place->offset = 0;
            place->piece++;
        }
        some = true;
    }
    return some;
}

/* Compares the hashes of what came in the round before with those that were sent. */
static enum status compare(const struct exchange_state *s, uint32_t *out_blamed,
                           struct reason *reason)
{
    for (uint32_t r = 0; r < s->options->size; r++) {
        if (r == s->options->rank || s->checks[r].data == NULL ||
            ckpt_hash_equal(&s->checks[r].hash, &s->hashes[r]))
            continue;
        *out_blamed = r;
        reason_set(reason, "the part of the state that came from rank %u is damaged",
                   s->options->first + r);
        return ST_CORRUPT;
    }
    return ST_OK;
}

/* Hashes the own stretch of this round, and what came in the one before, beside the exchange. */
static enum status run_round(struct exchange_state *s, uint32_t *out_blamed, struct reason *reason)
{
    const struct part_exchange_options *o = s->options;
    const struct comm_segment *own = &s->stretches[o->rank];
    s->checks[o->rank] = (struct chunk_hash){ .data = own->data, .size = own->size };
    chunk_hasher_start(s->hasher, s->checks, o->size);
    enum status st = gather(s, s->stretches, SEND_MS);
    chunk_hasher_wait(s->hasher);
    if (st == ST_OK)
        st = compare(s, out_blamed, reason);
    if (st != ST_OK)
        return st;
    s->hashes[o->rank] = s->checks[o->rank].hash;
    st = gather(s, s->said, SEND_MS);
    for (uint32_t r = 0; r < o->size; r++) {
        s->checks[r] =
            (struct chunk_hash){ .data = s->stretches[r].data, .size = s->stretches[r].size };
    }
    return st;
}

static enum status run_rounds(struct exchange_state *s, uint32_t *out_blamed, struct reason *reason)
{
    const struct part_exchange_options *o = s->options;
    enum status st = ST_OK;
    while (st == ST_OK && next_round(s)) {
        st = run_round(s, out_blamed, reason);
        fault_point("trainer.parts");
        if (st == ST_OK && o->tick != NULL)
            o->tick(o->tick_arg);
    }
    if (st != ST_OK)
        return st;
    chunk_hasher_start(s->hasher, s->checks, o->size);
    chunk_hasher_wait(s->hasher);
    return compare(s, out_blamed, reason);
}

static enum status exchange_open(struct exchange_state *s)
{
    const struct part_exchange_options *o = s->options;
    s->places = calloc(o->size, sizeof(*s->places));
    s->stretches = calloc(o->size, sizeof(*s->stretches));
    s->said = calloc(o->size, sizeof(*s->said));
    s->checks = calloc(o->size, sizeof(*s->checks));
    s->hashes = calloc(o->size, sizeof(*s->hashes));
    if (s->places == NULL || s->stretches == NULL || s->said == NULL || s->checks == NULL ||
        s->hashes == NULL)
        return ST_NO_MEMORY;
    size_t at = 0;
    for (uint32_t r = 0; r < o->size; r++) {
        s->places[r].piece = at;
        while (at < o->piece_count && o->pieces[at].rank == r) {
            CHECK(o->pieces[at].bytes > 0);
            at++;
        }
        s->places[r].end = at;
    }
    CHECK(at == o->piece_count);
    note_said(s);
    s->stretch_bytes = PART_EXCHANGE_ROUND / o->size / STRETCH_MIN * STRETCH_MIN;
    if (s->stretch_bytes > STRETCH_MAX)
        s->stretch_bytes = STRETCH_MAX;
    if (s->stretch_bytes < STRETCH_MIN)
        s->stretch_bytes = STRETCH_MIN;
    return chunk_hasher_new(&s->hasher);
}

static void exchange_close(struct exchange_state *s)
{
    chunk_hasher_free(s->hasher);
    free(s->places);
    free(s->stretches);
    free(s->said);
    free(s->checks);
    free(s->hashes);
}

enum status part_exchange(const struct part_exchange_options *options, uint32_t *out_blamed,
                          struct reason *reason)
{
    struct exchange_state s = { .options = options };
    enum status st = exchange_open(&s);
    if (st == ST_OK)
        st = join(&s, reason);
    if (st == ST_OK)
        st = run_rounds(&s, out_blamed, reason);
    exchange_close(&s);
    return st;
}
