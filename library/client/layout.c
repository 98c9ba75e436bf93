/* What is saved, and the word that training begins. */
#include <stdlib.h>
#include <string.h>

#include "library/client/internal.h"

/* An entry has no bytes that say nothing: it is hashed, and stored. */
static int make_entry(const struct cairn_tensor *tensor, size_t number, struct wire_entry *out)
{
    const char *end = memchr(tensor->name, '\0', sizeof(tensor->name));
    if (end == NULL || tensor->ndim > CAIRN_DIMS) {
        return library_say(CAIRN_INVALID, "tensor %zu has %s", number,
                           end == NULL ? "a name without an end" : "too many dimensions");
    }
    *out =
        (struct wire_entry){ .dtype = tensor->dtype, .kind = tensor->kind, .ndim = tensor->ndim };
    memcpy(out->name, tensor->name, (size_t)(end - tensor->name));
    const size_t bytes = tensor->ndim * sizeof(uint64_t);
    memcpy(out->shape, tensor->shape, bytes);
    if (tensor->kind == CAIRN_SHARDED) {
        memcpy(out->start, tensor->start, bytes);
        memcpy(out->extent, tensor->extent, bytes);
    } else {
        memcpy(out->extent, tensor->shape, bytes);
    }
    return CAIRN_OK;
}

/* The tensors of each buffer; in the layout's order their offsets ascend. */
static enum status list_tensors(struct library_layout *layout)
{
    for (uint64_t i = 0; i < layout->count; i++)
        layout->in[layout->places.places[i].buffer].count++;
    for (uint32_t b = 0; b < PLACE_BUFFERS; b++) {
        struct library_list *list = &layout->in[b];
        list->tensors = calloc(list->count > 0 ? list->count : 1, sizeof(*list->tensors));
        if (list->tensors == NULL)
            return ST_NO_MEMORY;
        list->count = 0;
    }
    for (uint64_t i = 0; i < layout->count; i++) {
        struct library_list *list = &layout->in[layout->places.places[i].buffer];
        list->tensors[list->count++] = (uint32_t)i;
    }
    return ST_OK;
}

static int fill_layout(struct library_layout *layout, const struct cairn_tensor *tensors)
{
    for (size_t i = 0; i < layout->count; i++) {
        const int status = make_entry(&tensors[i], i, &layout->entries[i]);
        if (status != CAIRN_OK)
            return status;
        layout->data[i] = tensors[i].data;
        layout->flags[i] = tensors[i].flags;
    }
    struct reason why = { .text = "" };
    enum status st = layout_places_make(layout->entries, layout->count, layout->blob_bytes,
                                        &layout->places, &why);
    if (st == ST_OK)
        st = list_tensors(layout);
    if (st != ST_OK && why.text[0] == '\0')
        reason_set(&why, "%s", status_string(st));
    return st == ST_OK ? CAIRN_OK : library_say(library_status(st), "%s", why.text);
}

static void forget_layout(struct library_layout *layout)
{
    free(layout->entries);
    free(layout->data);
    free(layout->flags);
    for (uint32_t i = 0; i < PLACE_BUFFERS; i++)
        free(layout->in[i].tensors);
    layout_places_release(&layout->places);
    memset(layout, 0, sizeof(*layout));
}

int cairn_layout(struct cairn *c, const struct cairn_tensor *tensors, size_t count,
                 size_t blob_bytes)
{
    struct library_layout *layout = &c->layout;
    int status = library_check(c);
    if (status != CAIRN_OK)
        return status;
    if (layout->is_there)
        return library_say(CAIRN_INVALID, "what is saved was described already");
    if (count > CAIRN_TENSORS_MAX)
        return library_say(CAIRN_FULL, "%zu tensors: more than %d", count, CAIRN_TENSORS_MAX);
    layout->count = count;
    layout->blob_bytes = blob_bytes;
    layout->entries = calloc(count + 1, sizeof(*layout->entries));
    layout->data = calloc(count + 1, sizeof(*layout->data));
    layout->flags = calloc(count + 1, sizeof(*layout->flags));
    if (layout->entries == NULL || layout->data == NULL || layout->flags == NULL) {
        status = library_say(CAIRN_NO_MEMORY, "no memory for %zu tensors", count);
    } else {
        status = fill_layout(layout, tensors);
    }
    if (status == CAIRN_OK) {
        struct wire_layout said = { .count = count, .blob_bytes = blob_bytes };
        const struct iovec parts[2] = { { &said, sizeof(said) },
                                        { layout->entries, count * sizeof(*layout->entries) } };
        status = library_request(c, WIRE_LAYOUT, parts, 2, NULL);
    }
    if (status == CAIRN_OK) {
        layout->is_there = true;
    } else {
        forget_layout(layout);
    }
    return status;
}

int cairn_ready(struct cairn *c, uint64_t step, uint64_t total_steps, uint64_t steps_per_epoch)
{
    const struct wire_ready said = { step, total_steps, steps_per_epoch };
    int status = library_check(c);
    if (status != CAIRN_OK)
        return status;
    if (!c->layout.is_there || atomic_load(&c->ready))
        return library_say(CAIRN_INVALID, "ready comes once, after the layout");
    if (step > total_steps) {
        return library_say(CAIRN_INVALID, "step %llu is beyond the last one, %llu",
                           (unsigned long long)step, (unsigned long long)total_steps);
    }
    atomic_store(&c->page->step, step);
    status = library_ask(c, WIRE_READY, &said, sizeof(said), NULL);
    if (status != CAIRN_OK)
        return status;
    c->total_steps = total_steps;
    atomic_store(&c->ready, true);
    return CAIRN_OK;
}
