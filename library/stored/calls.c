/* The public calls on a state, but for cairn_state_read. */
#include <string.h>

#include "library/stored/stored.h"
#include "library/stored/why.h"

int cairn_state_open(const char *path, struct cairn_state **out)
{
    struct reason why = { .text = "" };
    const enum status st = stored_open_checkpoint(path, out, &why);
    if (st == ST_OK)
        return CAIRN_OK;
    return library_say(library_status(st), "%s: %s", path,
                       why.text[0] != '\0' ? why.text : status_string(st));
}

void cairn_state_close(struct cairn_state *state)
{
    stored_state_free(state);
}

void cairn_state_info(const struct cairn_state *state, struct cairn_state_info *out)
{
    *out = state->info;
}

int cairn_state_tensor(const struct cairn_state *state, uint64_t i, struct cairn_tensor *out,
                       uint32_t *out_rank)
{
    if (i >= state->info.tensors)
        return library_say(CAIRN_NOT_FOUND, "there are fewer tensors");
    const struct wire_entry *entry = &state->tensors[i].entry;
    *out = (struct cairn_tensor){ .dtype = entry->dtype, .kind = entry->kind, .ndim = entry->ndim };
    memcpy(out->name, entry->name, sizeof(out->name));
    memcpy(out->shape, entry->shape, sizeof(out->shape));
    memcpy(out->start, entry->start, sizeof(out->start));
    memcpy(out->extent, entry->extent, sizeof(out->extent));
    *out_rank = state->tensors[i].rank;
    return CAIRN_OK;
}

int cairn_state_blob(const struct cairn_state *state, uint64_t i, char out_name[CAIRN_NAME],
                     uint64_t *out_size, uint32_t *out_rank)
{
    if (i >= state->info.blobs)
        return library_say(CAIRN_NOT_FOUND, "there are fewer blobs");
    const struct stored_blob *blob = &state->blobs[i];
    memcpy(out_name, blob->name, sizeof(blob->name));
    *out_size = blob->size;
    *out_rank = blob->rank;
    return CAIRN_OK;
}

int cairn_state_read_blob(struct cairn_state *state, const char *name, uint32_t rank, void *out,
                          size_t size)
{
    for (uint64_t i = 0; i < state->info.blobs; i++) {
        const struct stored_blob *blob = &state->blobs[i];
        if (blob->rank != rank || strcmp(blob->name, name) != 0)
            continue;
        if (blob->size != size) {
            return library_say(CAIRN_INVALID, "blob %s has %llu bytes, not %zu", name,
                               (unsigned long long)blob->size, size);
        }
        const enum status st = stored_read(state, state->areas, blob->offset, size, out);
        if (st == ST_OK)
            return CAIRN_OK;
        return library_say(library_status(st), "blob %s: %s", name,
                           state->why.text[0] != '\0' ? state->why.text : status_string(st));
    }
    return library_say(CAIRN_NOT_FOUND, "rank %u saved no blob named %s", rank, name);
}
