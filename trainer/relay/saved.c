#include "trainer/relay/saved.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what one rank describes ---- */

enum status saved_describe(const struct wire_entry *entries, uint64_t count, uint64_t blob_bytes,
                           struct saved *out, struct reason *out_why)
{
    struct saved saved = { .count = count };
    if (count > CAIRN_TENSORS_MAX)
        return ST_FULL;
    saved.entries = calloc((size_t)count + 1, sizeof(*entries));
    if (saved.entries == NULL)
        return ST_NO_MEMORY;
    if (count > 0)
        memcpy(saved.entries, entries, (size_t)count * sizeof(*entries));
    enum status st = layout_places_make(saved.entries, count, blob_bytes, &saved.places, out_why);
    if (st != ST_OK) {
        free(saved.entries);
        return st;
    }
    saved.hash = layout_hash(saved.entries, count);
    *out = saved;
    return ST_OK;
}

/* ---- all ranks together ---- */

static void add_buffer(struct saved *s, uint32_t which, uint64_t bytes)
{
    if (bytes == 0)
        return;
    struct ckpt_buffer *buffer = &s->buffers[s->buffer_count];
    s->number[which] = s->buffer_count++;
    *buffer = (struct ckpt_buffer){ .dtype = place_buffer_dtype(which) };
    buffer->count = bytes / ckpt_dtype_size(buffer->dtype);
    (void)snprintf(buffer->name, sizeof(buffer->name), "%s", place_buffer_name(which));
}

/* Names the tensors that the format can name: replicated ones of its own dtypes. */
static enum status add_tensors(struct saved *s)
{
    s->tensors = calloc((size_t)s->count + 1, sizeof(*s->tensors));
    if (s->tensors == NULL)
        return ST_NO_MEMORY;
    for (uint64_t i = 0; i < s->count; i++) {
        const struct wire_entry *entry = &s->entries[i];
        const struct place *place = &s->places.places[i];
        if (place->buffer >= PLACE_BYTES || entry->ndim > 4 || place->bytes == 0)
            continue;
        struct ckpt_tensor *tensor = &s->tensors[s->tensor_count++];
        memcpy(tensor->name, entry->name, sizeof(tensor->name));
        tensor->buffer = s->number[place->buffer];
        tensor->offset = place->offset / ckpt_dtype_size(place_buffer_dtype(place->buffer));
        tensor->ndim = (int32_t)entry->ndim;
        for (uint32_t d = 0; d < entry->ndim; d++)
            tensor->dims[d] = entry->shape[d];
    }
    return ST_OK;
}

static enum status add_areas(struct saved *s, const uint64_t *areas)
{
    const uint32_t ranks = s->size * s->processes;
    const size_t list = ranks * sizeof(uint64_t);
    const struct place_areas head = { .version = 1, .ranks = ranks };
    s->areas = malloc(list);
    s->areas_size = sizeof(head) + list;
    s->areas_blob = malloc(s->areas_size);
    if (s->areas == NULL || s->areas_blob == NULL)
        return ST_NO_MEMORY;
    memcpy(s->areas, areas, list);
    memcpy(s->areas_blob, &head, sizeof(head));
    memcpy((uint8_t *)s->areas_blob + sizeof(head), areas, list);
    return ST_OK;
}

static enum status deal(const struct saved *s, uint32_t rank, struct ckpt_share *out)
{
    const struct ckpt_state state = { .buffers = s->buffers, .buffer_count = s->buffer_count };
    const uint32_t ranks = s->buffer_count - 1; /* there always is an area */
    const uint32_t begin = rank * s->processes;
    uint64_t first = 0, mine = 0;
    out->count = 0;
    for (uint32_t r = 0; r < begin + s->processes; r++)
        *(r < begin ? &first : &mine) += s->areas[r];
    enum status st = ckpt_share_even(&state, (UINT32_C(1) << ranks) - 1, rank, s->size, out);
    if (st == ST_OK)
        st = ckpt_share_add(&state, ranks, first, mine, out);
    return st;
}

enum status saved_deal(struct saved *saved, const uint64_t *areas, uint32_t rank, uint32_t size,
                       uint32_t processes, struct reason *out_why)
{
    struct saved *s = saved;
    uint64_t all = 0;
    s->rank = rank;
    s->size = size;
    s->processes = processes;
    for (uint32_t r = 0; r < size * processes; r++) {
        if (areas[r] == 0 || areas[r] > LIMIT_SHARE_BYTES ||
            areas[r] % ckpt_chunk_elements(CKPT_U8) != 0) {
            reason_set(out_why, "rank %u can't have an area of %llu bytes", r,
                       (unsigned long long)areas[r]);
            return ST_CONFIG;
        }
        all += areas[r];
    }
    for (uint32_t which = 0; which < PLACE_RANKS; which++)
        add_buffer(s, which, s->places.buffer_bytes[which]);
    add_buffer(s, PLACE_RANKS, all);
    enum status st = add_tensors(s);
    if (st == ST_OK)
        st = add_areas(s, areas);
    if (st != ST_OK)
        return st;
    st = deal(s, rank, &s->share);
    if (st == ST_OK) {
        const struct ckpt_state state = { .buffers = s->buffers,
                                          .buffer_count = s->buffer_count,
                                          .share = &s->share };
        struct ckpt_share sound;
        st = ckpt_share_of(&state, rank, size, &sound);
    }
    if (st != ST_OK) {
        reason_set(out_why, "worker %u's part of the state can't be saved: %s; use more workers",
                   rank, status_string(st));
        return ST_CONFIG;
    }
    return ST_OK;
}

uint64_t saved_share_bytes(const struct saved *saved, uint32_t rank)
{
    const struct ckpt_state state = { .buffers = saved->buffers,
                                      .buffer_count = saved->buffer_count };
    struct ckpt_share share;
    return deal(saved, rank, &share) == ST_OK ? ckpt_share_bytes(&state, &share) : 0;
}

uint64_t saved_state_bytes(const struct saved *saved)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < saved->buffer_count; i++)
        bytes += saved->buffers[i].count * ckpt_dtype_size(saved->buffers[i].dtype);
    return bytes;
}

static struct ckpt_blob blob_of(const char *name, const void *data, size_t size)
{
    struct ckpt_blob blob = { .data = data, .size = size };
    (void)snprintf(blob.name, sizeof(blob.name), "%s", name);
    return blob;
}

void saved_state(struct saved *saved, const struct session_assignment *assignment, uint64_t step,
                 uint64_t steps_per_epoch, struct ckpt_state *out)
{
    struct saved *s = saved;
    const bool epochs = steps_per_epoch > 0;
    (void)snprintf(s->metrics, sizeof(s->metrics), "{\"through_step\":%llu}",
                   (unsigned long long)step);
    s->blobs[0] = blob_of("job.yaml", assignment->job_file, strlen(assignment->job_file));
    s->blobs[1] = blob_of("pins.json", "{}", 2);
    s->blobs[2] = blob_of("metrics.json", s->metrics, strlen(s->metrics));
    s->blobs[3] = blob_of(PLACE_AREAS, s->areas_blob, s->areas_size);
    *out = (struct ckpt_state){
        .generation = assignment->generation,
        .buffers = s->buffers,
        .buffer_count = s->buffer_count,
        .tensors = s->tensors,
        .tensor_count = s->tensor_count,
        .blobs = s->blobs,
        .blob_count = SAVED_BLOBS,
        .scalars = { .step = step,
                     .epoch = epochs ? step / steps_per_epoch : 0,
                     .epoch_step = epochs ? step % steps_per_epoch : 0,
                     .loss_scale = 1 },
        .share = &s->share,
    };
    (void)snprintf(out->job, sizeof(out->job), "%s", assignment->job);
}

void saved_release(struct saved *saved)
{
    layout_places_release(&saved->places);
    free(saved->entries);
    free(saved->areas);
    free(saved->tensors);
    free(saved->areas_blob);
    memset(saved, 0, sizeof(*saved));
}
