/* A save: begun, given blobs, started, copied. */
#include <string.h>

#include "common/clock.h"
#include "library/client/internal.h"

void library_await(struct cairn *c, enum library_phase phase)
{
    const struct library_save *save = &c->save;
    while (save->phase == SAVE_COPYING || (phase == SAVE_NONE && save->phase == SAVE_COPIED))
        (void)pthread_cond_wait(&c->changed, &c->lock);
}

static enum library_phase phase_of(struct cairn *c)
{
    (void)pthread_mutex_lock(&c->lock);
    const enum library_phase phase = c->save.phase;
    (void)pthread_mutex_unlock(&c->lock);
    return phase;
}

static void set_phase(struct cairn *c, enum library_phase phase)
{
    (void)pthread_mutex_lock(&c->lock);
    c->save.phase = phase;
    (void)pthread_mutex_unlock(&c->lock);
}

static int give_up(struct cairn *c, uint64_t step, int why)
{
    const struct wire_copied said = { .step = step, .status = why };
    return library_ask(c, WIRE_COPIED, &said, sizeof(said), NULL);
}

/* Notes where the tensors are now. */
static int take_data(struct library_layout *layout, const void *const *data)
{
    for (uint64_t i = 0; i < layout->count; i++) {
        if (data != NULL)
            layout->data[i] = data[i];
        if (layout->data[i] == NULL && layout->places.places[i].bytes > 0)
            return library_say(CAIRN_INVALID, "tensor %s has no data", layout->entries[i].name);
    }
    return CAIRN_OK;
}

static int begin(struct cairn *c, uint64_t finished)
{
    struct library_save *save = &c->save;
    const int64_t before = clock_mono_ns();
    const struct wire_step said = { finished };
    struct wire_file file = { 0 };
    int fd = -1;
    struct library_answer answer = { .bytes = &file, .size = sizeof(file), .fd = &fd };
    int status = library_ask(c, WIRE_BEGIN, &said, sizeof(said), &answer);
    if (status != CAIRN_OK)
        return status;
    save->step = finished;
    save->blob_count = 0;
    save->blob_end = c->layout.places.blobs + PLACE_BLOBS_MAX * sizeof(struct place_blob);
    save->stall_ns = 0;
    save->status = CAIRN_OK;
    status = library_target_open(c, &file, fd, &save->target);
    if (status != CAIRN_OK)
        return give_up(c, finished, status) == CAIRN_OK ? status : CAIRN_CLOSED;
    save->stall_ns = clock_mono_ns() - before;
    set_phase(c, SAVE_BEGUN);
    return CAIRN_OK;
}

int cairn_save_begin(struct cairn *c, uint64_t finished, const void *const *data)
{
    int status = library_check(c);
    if (status != CAIRN_OK)
        return status;
    if (!atomic_load(&c->ready) || phase_of(c) == SAVE_BEGUN)
        return library_say(CAIRN_INVALID, "a save begins after cairn_ready, and one at a time");
    (void)pthread_mutex_lock(&c->lock);
    library_await(c, SAVE_NONE);
    (void)pthread_mutex_unlock(&c->lock);
    if (atomic_load(&c->page->over) != 0)
        return library_say(CAIRN_STALE, "this start of the program is over");
    status = take_data(&c->layout, data);
    return status == CAIRN_OK ? begin(c, finished) : status;
}

/* Whether the save has a blob of that name. */
static bool has_blob(const struct library_save *save, const struct place_blob *blobs,
                     const char *name)
{
    for (uint32_t i = 0; i < save->blob_count; i++) {
        if (strncmp(blobs[i].name, name, CAIRN_NAME) == 0)
            return true;
    }
    return false;
}

int cairn_save_blob(struct cairn *c, const char *name, const void *data, size_t size)
{
    struct library_save *save = &c->save;
    const struct layout_places *places = &c->layout.places;
    const int64_t before = clock_mono_ns();
    int status = library_check(c);
    if (status != CAIRN_OK)
        return status;
    if (phase_of(c) != SAVE_BEGUN)
        return library_say(CAIRN_INVALID, "blobs come after cairn_save_begin");
    struct place_blob *blobs = (struct place_blob *)(void *)(save->target.area + places->blobs);
    const size_t length = strnlen(name, CAIRN_NAME);
    if (length == 0 || length == CAIRN_NAME || has_blob(save, blobs, name))
        return library_say(CAIRN_INVALID, "a blob has no proper name, or another one's");
    const uint64_t room = places->blobs_end - save->blob_end;
    const uint64_t taken = (size + (uint64_t)7) / 8 * 8;
    if (save->blob_count == PLACE_BLOBS_MAX || size > room || taken > room) {
        return library_say(CAIRN_FULL, "blob %s is more than the %llu bytes that were announced",
                           name, (unsigned long long)c->layout.blob_bytes);
    }
    struct place_blob *blob = &blobs[save->blob_count];
    memset(blob, 0, sizeof(*blob));
    memcpy(blob->name, name, length);
    blob->offset = save->blob_end;
    blob->size = size;
    uint8_t *to = save->target.area + save->blob_end;
    if (size > 0)
        memcpy(to, data, size);
    memset(to + size, 0, (size_t)(taken - size));
    save->blob_count++;
    save->blob_end += taken;
    save->stall_ns += clock_mono_ns() - before;
    return CAIRN_OK;
}

/* Writes the area's first bytes, and zeroes what blobs don't use of their room. */
static void put_head(struct cairn *c)
{
    const struct layout_places *places = &c->layout.places;
    const struct library_save *save = &c->save;
    uint8_t *area = save->target.area;
    struct place_area head = { .magic = "",
                               .version = 1,
                               .rank = c->info.rank,
                               .ranks = c->info.size,
                               .blob_count = save->blob_count,
                               .entry_count = c->layout.count,
                               .entries = places->entries,
                               .blobs = places->blobs,
                               .data = places->data,
                               .bytes = places->buffer_bytes[PLACE_RANKS] };
    memcpy(head.magic, "CAIRNARE", sizeof(head.magic));
    memcpy(area, &head, sizeof(head));
    const uint64_t table_end = places->blobs + save->blob_count * sizeof(struct place_blob);
    const uint64_t first = places->blobs + PLACE_BLOBS_MAX * sizeof(struct place_blob);
    memset(area + table_end, 0, (size_t)(first - table_end));
    memset(area + save->blob_end, 0, (size_t)(places->data - save->blob_end));
}

int cairn_save_start(struct cairn *c)
{
    struct library_save *save = &c->save;
    const int64_t before = clock_mono_ns();
    const int status = library_check(c);
    if (status != CAIRN_OK)
        return status;
    if (phase_of(c) != SAVE_BEGUN)
        return library_say(CAIRN_INVALID, "no save was begun");
    put_head(c);
    library_fill_now(c);
    save->stall_ns += clock_mono_ns() - before;
    set_phase(c, SAVE_COPYING);
    library_wake(c);
    return CAIRN_OK;
}

int cairn_save_copied(struct cairn *c)
{
    struct library_save *save = &c->save;
    if (atomic_load(&c->forked))
        return library_check(c);
    (void)pthread_mutex_lock(&c->lock);
    if (save->phase == SAVE_COPYING) {
        save->waiting_from = clock_mono_ns();
        library_await(c, SAVE_COPIED);
    }
    const int status = save->status;
    const struct reason reason = save->reason;
    save->status = CAIRN_OK; /* it is told once */
    (void)pthread_mutex_unlock(&c->lock);
    return status == CAIRN_OK ? CAIRN_OK : library_say(status, "%s", reason.text);
}

void cairn_save_cancel(struct cairn *c)
{
    if (library_check(c) != CAIRN_OK || phase_of(c) != SAVE_BEGUN)
        return;
    const int status = give_up(c, c->save.step, CAIRN_AGAIN);
    (void)status; /* the worker drops what isn't finished in any case */
    set_phase(c, SAVE_NONE);
}
