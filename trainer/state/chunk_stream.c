#include "trainer/state/chunk_stream.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/hash.h"
#include "common/check.h"
#include "common/fault.h"
#include "trainer/state/chunk_hasher.h"

#define CHUNK_MIN  ((size_t)64 * 1024)
#define DAMAGE_MAX 16 /* chunks that are asked for once more, of one rank */
#define SEND_MS    INT64_C(60000)
#define NOBODY     UINT32_MAX
#define SLOTS      2 /* rounds in pinned memory */

/* Report of a rank to the others when all rounds are done. */
struct damage {
    uint64_t count;
    uint64_t chunk[DAMAGE_MAX];
};

struct stream_state {
    const struct chunk_stream_options *options;
    size_t chunk_bytes;
    uint64_t chunk_count, rounds;
    uint32_t source; /* this rank's number among the sources; NOBODY: it receives */
    bool *receives;  /* [size] */
    bool is_alone;   /* nobody receives */
    uint8_t *pinned; /* SLOTS rounds of source_count chunks; NULL: host memory */
    struct chunk_hasher *hasher;
    struct comm_segment *send, *recv;   /* [size] */
    struct chunk_hash *checks;          /* [source_count] of the round that is being hashed */
    struct ckpt_hash *hashes, *checked; /* [source_count] as they came: of a round, and the one
                                           before it */
    struct damage own;
    struct damage *damages; /* [size] */
};

/* ---- chunks ---- */

static uint64_t chunks_of(const struct stream_state *s, size_t bytes)
{
    return (bytes + s->chunk_bytes - 1) / s->chunk_bytes;
}

static struct comm_segment chunk_at(const struct stream_state *s, uint64_t chunk)
{
    const struct chunk_buffer *buffer = s->options->buffers;
    while (chunk >= chunks_of(s, buffer->bytes)) {
        chunk -= chunks_of(s, buffer->bytes);
        buffer++;
    }
    const size_t at = (size_t)chunk * s->chunk_bytes, left = buffer->bytes - at;
    return (struct comm_segment){ (uint8_t *)buffer->data + at,
                                  left < s->chunk_bytes ? left : s->chunk_bytes };
}

/* The number of the chunk that a source sends in a round; false: none is left for it. */
static bool chunk_of_round(const struct stream_state *s, uint64_t round, uint32_t source,
                           uint64_t *out)
{
    *out = round * s->options->source_count + source;
    return *out < s->chunk_count;
}

/* Returns the memory that a chunk is sent from, or received to. */
static struct comm_segment on_host(const struct stream_state *s, uint64_t chunk)
{
    const struct comm_segment lies = chunk_at(s, chunk);
    if (s->pinned == NULL)
        return lies;
    const size_t n = s->options->source_count;
    const uint64_t round = chunk / n, source = chunk % n;
    return (struct comm_segment){ s->pinned + ((round % SLOTS) * n + source) * s->chunk_bytes,
                                  lies.size };
}

/* Copies a chunk between the device and pinned memory; waits. */
static enum status copy_chunk(const struct stream_state *s, uint64_t chunk, bool up)
{
    const struct device *d = s->options->device;
    if (s->pinned == NULL)
        return ST_OK;
    const struct comm_segment lies = chunk_at(s, chunk), host = on_host(s, chunk);
    enum status st = d->table->vector.copy(d->backend, up ? lies.data : host.data,
                                           up ? host.data : lies.data, lies.size, d->compute);
    return st == ST_OK ? d->table->stream_sync(d->backend, d->compute) : st;
}

/* ---- a round ---- */

static bool is_source(const struct stream_state *s)
{
    return s->source != NOBODY;
}

static void clear_segments(struct stream_state *s)
{
    memset(s->send, 0, s->options->size * sizeof(*s->send));
    memset(s->recv, 0, s->options->size * sizeof(*s->recv));
}

static enum status exchange(struct stream_state *s)
{
    const struct chunk_stream_options *o = s->options;
    return o->table->all_to_all_v(o->comm, s->send, s->recv, SEND_MS);
}

static void send_to_all(struct stream_state *s, void *data, size_t size)
{
    for (uint32_t r = 0; r < s->options->size; r++) {
        if (s->receives[r])
            s->send[r] = (struct comm_segment){ data, size };
    }
}

static enum status send_round(struct stream_state *s, uint64_t round)
{
    uint64_t chunk = 0;
    struct chunk_hash *own = &s->checks[0];
    const bool sends = chunk_of_round(s, round, s->source, &chunk);
    own->data = NULL;
    clear_segments(s);
    enum status st = sends ? copy_chunk(s, chunk, false) : ST_OK;
    if (st != ST_OK)
        return st;
    if (sends) {
        const struct comm_segment from = on_host(s, chunk);
        send_to_all(s, from.data, from.size);
        own->data = from.data;
        own->size = from.size;
    }
    chunk_hasher_start(s->hasher, s->checks, 1);
    st = exchange(s);
    chunk_hasher_wait(s->hasher);
    if (st != ST_OK)
        return st;
    clear_segments(s);
    if (sends)
        send_to_all(s, &own->hash, sizeof(own->hash));
    return exchange(s);
}

static void note_damage(struct stream_state *s, uint64_t chunk)
{
    if (s->own.count < DAMAGE_MAX)
        s->own.chunk[s->own.count] = chunk;
    s->own.count++;
}

/* Compares the round's hashes with those of the sources, and copies good chunks to their places. */
static enum status check_round(struct stream_state *s, uint64_t round)
{
    enum status st = ST_OK;
    chunk_hasher_wait(s->hasher);
    for (uint32_t i = 0; st == ST_OK && i < s->options->source_count; i++) {
        uint64_t chunk = 0;
        if (!chunk_of_round(s, round, i, &chunk))
            continue;
        if (ckpt_hash_equal(&s->checks[i].hash, &s->checked[i])) {
            st = copy_chunk(s, chunk, true);
        } else {
            note_damage(s, chunk);
        }
    }
    return st;
}

static void hash_round(struct stream_state *s, uint64_t round)
{
    for (uint32_t i = 0; i < s->options->source_count; i++) {
        uint64_t chunk = 0;
        s->checks[i].data = NULL;
        if (!chunk_of_round(s, round, i, &chunk))
            continue;
        const struct comm_segment lies = on_host(s, chunk);
        s->checks[i].data = lies.data;
        s->checks[i].size = lies.size;
    }
    memcpy(s->checked, s->hashes, s->options->source_count * sizeof(*s->checked));
    chunk_hasher_start(s->hasher, s->checks, s->options->source_count);
}

static enum status receive_round(struct stream_state *s, uint64_t round)
{
    const struct chunk_stream_options *o = s->options;
    enum status st = ST_OK;
    for (int part = 0; st == ST_OK && part < 2; part++) {
        clear_segments(s);
        for (uint32_t i = 0; i < o->source_count; i++) {
            uint64_t chunk = 0;
            struct comm_segment *to = &s->recv[o->sources[i]];
            if (!chunk_of_round(s, round, i, &chunk))
                continue;
            *to = part == 0 ? on_host(s, chunk)
                            : (struct comm_segment){ &s->hashes[i], sizeof(s->hashes[i]) };
        }
        st = exchange(s);
    }
    if (st == ST_OK && round > 0)
        st = check_round(s, round - 1);
    if (st == ST_OK)
        hash_round(s, round);
    return st;
}

static enum status run_rounds(struct stream_state *s)
{
    enum status st = ST_OK;
    for (uint64_t round = 0; st == ST_OK && round < s->rounds; round++) {
        st = is_source(s) ? send_round(s, round) : receive_round(s, round);
        fault_point("trainer.live");
        if (st == ST_OK && s->options->tick != NULL)
            s->options->tick(s->options->tick_arg);
    }
    if (st == ST_OK && !is_source(s) && s->rounds > 0)
        st = check_round(s, s->rounds - 1);
    return st;
}

/* ---- what was damaged ---- */

static enum status send_again(struct stream_state *s, uint32_t to, uint64_t chunk)
{
    const struct chunk_stream_options *o = s->options;
    enum status st = copy_chunk(s, chunk, false);
    if (st != ST_OK)
        return st;
    const struct comm_segment from = on_host(s, chunk);
    const struct ckpt_hash hash = ckpt_hash_of(from.data, from.size);
    st = o->table->send(o->comm, (int)to, from.data, from.size, SEND_MS);
    return st == ST_OK ? o->table->send(o->comm, (int)to, &hash, sizeof(hash), SEND_MS) : st;
}

static enum status receive_again(struct stream_state *s, uint32_t from, uint64_t chunk)
{
    const struct chunk_stream_options *o = s->options;
    const struct comm_segment to = on_host(s, chunk);
    struct ckpt_hash said;
    enum status st = o->table->recv(o->comm, (int)from, to.data, to.size, SEND_MS);
    if (st == ST_OK)
        st = o->table->recv(o->comm, (int)from, &said, sizeof(said), SEND_MS);
    if (st != ST_OK)
        return st;
    const struct ckpt_hash hash = ckpt_hash_of(to.data, to.size);
    return ckpt_hash_equal(&hash, &said) ? copy_chunk(s, chunk, true) : ST_CORRUPT;
}

static enum status repair(struct stream_state *s, uint32_t *out_blamed, struct reason *reason)
{
    const struct chunk_stream_options *o = s->options;
    for (uint32_t r = 0; r < o->size; r++)
        s->recv[r] = (struct comm_segment){ &s->damages[r], sizeof(s->damages[r]) };
    s->damages[o->rank] = s->own;
    enum status st = o->table->all_gather_v(o->comm, s->recv, SEND_MS);
    for (uint32_t r = 0; st == ST_OK && r < o->size; r++) {
        const struct damage *damage = &s->damages[r];
        const uint64_t count = damage->count < DAMAGE_MAX ? damage->count : DAMAGE_MAX;
        for (uint64_t i = 0; st == ST_OK && i < count; i++) {
            const uint64_t chunk = damage->chunk[i];
            if (chunk >= s->chunk_count)
                return ST_CORRUPT;
            const uint32_t server = o->sources[(chunk + 1) % o->source_count];
            if (server == o->rank)
                st = send_again(s, r, chunk);
            if (r != o->rank)
                continue;
            st = receive_again(s, server, chunk);
            *out_blamed = server;
        }
    }
    if (st == ST_OK && s->own.count > DAMAGE_MAX) {
        *out_blamed = o->sources[s->own.chunk[0] % o->source_count];
        st = ST_CORRUPT;
    }
    if (st == ST_CORRUPT) {
        reason_set(reason, "the state that came from rank %u is damaged: %llu chunks of %llu",
                   *out_blamed, (unsigned long long)s->own.count,
                   (unsigned long long)s->chunk_count);
    }
    return st;
}

/* ---- open and close ---- */

static enum status stream_open(struct stream_state *s)
{
    const struct chunk_stream_options *o = s->options;
    const size_t n = o->source_count;
    s->receives = calloc(o->size, sizeof(*s->receives));
    s->send = calloc(o->size, sizeof(*s->send));
    s->recv = calloc(o->size, sizeof(*s->recv));
    s->damages = calloc(o->size, sizeof(*s->damages));
    s->checks = calloc(n, sizeof(*s->checks));
    s->hashes = calloc(n, sizeof(*s->hashes));
    s->checked = calloc(n, sizeof(*s->checked));
    if (s->receives == NULL || s->send == NULL || s->recv == NULL || s->damages == NULL ||
        s->checks == NULL || s->hashes == NULL || s->checked == NULL)
        return ST_NO_MEMORY;
    CHECK(n <= o->size);
    s->is_alone = n == o->size;
    s->source = NOBODY;
    for (uint32_t r = 0; r < o->size; r++)
        s->receives[r] = true;
    for (uint32_t i = 0; i < n; i++) {
        CHECK(o->sources[i] < o->size);
        s->receives[o->sources[i]] = false;
        if (o->sources[i] == o->rank)
            s->source = i;
    }
    s->chunk_bytes = CHUNK_STREAM_ROUND / (n > o->size - n ? n : o->size - n);
    if (s->chunk_bytes > CHUNK_STREAM_BYTES)
        s->chunk_bytes = CHUNK_STREAM_BYTES;
    s->chunk_bytes = s->chunk_bytes / CHUNK_MIN * CHUNK_MIN;
    if (s->chunk_bytes < CHUNK_MIN)
        s->chunk_bytes = CHUNK_MIN;
    for (uint32_t i = 0; i < o->buffer_count; i++)
        s->chunk_count += chunks_of(s, o->buffers[i].bytes);
    s->rounds = (s->chunk_count + n - 1) / n;
    if (s->is_alone)
        return ST_OK;
    void *pinned = NULL;
    enum status st = chunk_hasher_new(&s->hasher);
    if (st == ST_OK && o->device != NULL && !o->device->table->host_memory) {
        st = o->device->table->alloc_host(o->device->backend, SLOTS * n * s->chunk_bytes, &pinned);
    }
    s->pinned = pinned;
    return st;
}

static void stream_close(struct stream_state *s)
{
    chunk_hasher_free(s->hasher);
    if (s->pinned != NULL)
        s->options->device->table->free_host(s->options->device->backend, s->pinned);
    free(s->receives);
    free(s->send);
    free(s->recv);
    free(s->damages);
    free(s->checks);
    free(s->hashes);
    free(s->checked);
}

enum status chunk_stream_run(const struct chunk_stream_options *options, uint32_t *out_blamed,
                             struct reason *reason)
{
    struct stream_state s = { .options = options };
    CHECK(options->source_count >= 1);
    enum status st = stream_open(&s);
    if (st == ST_OK && !s.is_alone)
        st = run_rounds(&s);
    if (st == ST_OK && !s.is_alone)
        st = repair(&s, out_blamed, reason);
    stream_close(&s);
    return st;
}
