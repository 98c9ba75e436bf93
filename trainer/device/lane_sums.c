#include "trainer/device/lane_sums.h"

#include <stdlib.h>

#include "common/check.h"
#include "common/limits.h"
#include "kernels/mix.h"

struct lane_sums {
    const struct device *device;
    const size_t *begin;
    size_t buckets, count;
    size_t *piece_at; /* [buckets] of each its first piece */
    size_t pieces;    /* of a lane */
    uint64_t *made;   /* [LANE_SUM_COUNT][pieces] where the device writes */
    uint64_t *read;   /* the same for the host */
};

static size_t bucket_size(const struct lane_sums *s, size_t bucket)
{
    const size_t end = bucket + 1 < s->buckets ? s->begin[bucket + 1] : s->count;
    return end - s->begin[bucket];
}

enum status lane_sums_open(const struct device *device, const size_t *begin, size_t buckets,
                           size_t count, struct lane_sums **out)
{
    struct lane_sums *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return ST_NO_MEMORY;
    *s = (struct lane_sums){ .device = device, .begin = begin, .buckets = buckets, .count = count };
    s->piece_at = calloc(buckets, sizeof(*s->piece_at));
    for (size_t b = 0; s->piece_at != NULL && b < buckets; b++) {
        s->piece_at[b] = s->pieces;
        s->pieces += (bucket_size(s, b) + PIECE_ELEMENTS - 1) / PIECE_ELEMENTS;
    }
    const size_t bytes = LANE_SUM_COUNT * s->pieces * sizeof(*s->made);
    void *made = NULL, *read = NULL;
    enum status st = s->piece_at == NULL ? ST_NO_MEMORY : ST_OK;
    if (st == ST_OK)
        st = device->table->alloc(device->backend, bytes, &made);
    if (st == ST_OK)
        st = device->table->alloc_host(device->backend, bytes, &read);
    s->made = made;
    s->read = read;
    if (st != ST_OK) {
        lane_sums_close(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

void lane_sums_close(struct lane_sums *sums)
{
    if (sums == NULL)
        return;
    const struct device *d = sums->device;
    if (sums->made != NULL)
        d->table->free(d->backend, sums->made);
    if (sums->read != NULL)
        d->table->free_host(d->backend, sums->read);
    free(sums->piece_at);
    free(sums);
}

enum status lane_sums_bucket(struct lane_sums *sums, enum lane_sum which, const float *lane,
                             size_t bucket)
{
    const struct device *d = sums->device;
    CHECK(bucket < sums->buckets);
    return d->table->vector.checksums(
        d->backend, sums->made + which * sums->pieces + sums->piece_at[bucket],
        lane + sums->begin[bucket], bucket_size(sums, bucket), d->compute);
}

enum status lane_sums_all(struct lane_sums *sums, enum lane_sum which, const float *lane)
{
    enum status st = ST_OK;
    for (size_t b = 0; st == ST_OK && b < sums->buckets; b++)
        st = lane_sums_bucket(sums, which, lane, b);
    return st;
}

enum status lane_sums_read(struct lane_sums *sums, uint64_t out[LANE_SUM_COUNT])
{
    const struct device *d = sums->device;
    const size_t bytes = LANE_SUM_COUNT * sums->pieces * sizeof(*sums->made);
    enum status st = d->table->vector.copy(d->backend, sums->read, sums->made, bytes, d->compute);
    if (st == ST_OK)
        st = d->table->stream_sync(d->backend, d->compute);
    for (int which = 0; st == ST_OK && which < LANE_SUM_COUNT; which++)
        out[which] = mix_sums(sums->read + (size_t)which * sums->pieces, sums->pieces);
    return st;
}
