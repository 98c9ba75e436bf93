/* A state's tables: made, and sorted by name. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "library/stored/stored.h"

enum status stored_state_new(struct cairn_state **out)
{
    struct cairn_state *state = calloc(1, sizeof(*state));
    if (state == NULL)
        return ST_NO_MEMORY;
    state->block_buffer = CKPT_BUFFERS_MAX;
    state->areas = CKPT_BUFFERS_MAX;
    *out = state;
    return ST_OK;
}

void stored_state_free(struct cairn_state *state)
{
    if (state == NULL)
        return;
    if (state->source.self != NULL)
        state->source.close(state->source.self);
    free(state->tensors);
    free(state->blobs);
    free(state->by_name);
    free(state->block);
    free(state);
}

enum status stored_state_grow(struct cairn_state *state, uint64_t tensors, uint64_t blobs)
{
    const uint64_t tensor_room = state->info.tensors + tensors;
    const uint64_t blob_room = state->info.blobs + blobs;
    if (tensor_room > state->tensor_room) {
        void *more = realloc(state->tensors, tensor_room * sizeof(*state->tensors));
        if (more == NULL)
            return ST_NO_MEMORY;
        state->tensors = more;
        state->tensor_room = tensor_room;
    }
    if (blob_room > state->blob_room) {
        void *more = realloc(state->blobs, blob_room * sizeof(*state->blobs));
        if (more == NULL)
            return ST_NO_MEMORY;
        state->blobs = more;
        state->blob_room = blob_room;
    }
    return ST_OK;
}

/* ---- names ---- */

static int compare(const void *a, const void *b, void *arg)
{
    const struct stored_tensor *tensors = arg;
    const struct stored_tensor *x = &tensors[*(const uint64_t *)a];
    const struct stored_tensor *y = &tensors[*(const uint64_t *)b];
    const int order = strcmp(x->entry.name, y->entry.name);
    return order != 0 ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

/* Whether two of the same name can be in one state. */
static bool agree(const struct wire_entry *a, const struct wire_entry *b)
{
    if (a->kind != b->kind || a->kind == CAIRN_REPLICATED)
        return false;
    return a->kind == CAIRN_PRIVATE || (a->dtype == b->dtype && a->ndim == b->ndim &&
                                        memcmp(a->shape, b->shape, sizeof(a->shape)) == 0);
}

enum status stored_state_sort(struct cairn_state *state, struct reason *out_why)
{
    const uint64_t count = state->info.tensors;
    state->by_name = calloc(count + 1, sizeof(*state->by_name));
    if (state->by_name == NULL)
        return ST_NO_MEMORY;
    for (uint64_t i = 0; i < count; i++)
        state->by_name[i] = i;
    qsort_r(state->by_name, count, sizeof(*state->by_name), compare, state->tensors);
    for (uint64_t i = 1; i < count; i++) {
        const struct stored_tensor *a = &state->tensors[state->by_name[i - 1]];
        const struct stored_tensor *b = &state->tensors[state->by_name[i]];
        if (strcmp(a->entry.name, b->entry.name) == 0 && !agree(&a->entry, &b->entry)) {
            reason_set(out_why, "ranks %u and %u have different tensors named %s", a->rank, b->rank,
                       a->entry.name);
            return ST_CORRUPT;
        }
    }
    return ST_OK;
}

/* Returns the first place in by_name whose name isn't before `name`; `behind`: is behind it. */
static uint64_t bound(const struct cairn_state *state, const char *name, bool behind)
{
    uint64_t low = 0, high = state->info.tensors;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        const int order = strcmp(state->tensors[state->by_name[middle]].entry.name, name);
        if (order < 0 || (behind && order == 0)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool stored_state_find(const struct cairn_state *state, const char *name, uint64_t *out_first,
                       uint64_t *out_count)
{
    *out_first = bound(state, name, false);
    *out_count = bound(state, name, true) - *out_first;
    return *out_count > 0;
}
