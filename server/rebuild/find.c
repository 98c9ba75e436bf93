/* The jobs that stores hold: their folders, by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/format/names.h"
#include "checkpoint/store/store.h"
#include "common/job_id.h"
#include "server/rebuild/internal.h"

#define OTHER_BYTES ((size_t)1 << 20)

/* "j-" and 10 digits to the base of 32, as the coordinator makes it of the order of submission. */
static bool take_id(const char *name, int64_t *seq)
{
    static const char digits[] = JOB_ID_DIGITS;
    if (!job_id_valid(name))
        return false;
    *seq = 0;
    for (int i = 2; i < 12; i++)
        *seq = *seq << 5 | (strchr(digits, name[i]) - digits);
    return true;
}

/* ---- stores ---- */

static enum status name_store(const struct io *io, const char *given, char out[LIMIT_PATH],
                              struct reason *reason)
{
    struct io_stat info;
    if (ckpt_store_is_object(given)) {
        const int size = snprintf(out, LIMIT_PATH, "%s", given);
        if (size < 0 || size >= LIMIT_PATH)
            return ST_FULL;
        for (size_t end = strlen(out); end > 1 && out[end - 1] == '/'; end--)
            out[end - 1] = '\0';
        return ST_OK;
    }
    char *real = realpath(given, NULL);
    enum status st =
        real != NULL && strlen(real) < LIMIT_PATH ? io->stat(io->self, real, &info) : ST_FULL;
    if (st == ST_OK && info.is_dir) {
        (void)snprintf(out, LIMIT_PATH, "%s", real);
    } else {
        reason_set(reason, "%.300s: there is no such folder, or it can't be reached", given);
        st = ST_NOT_FOUND;
    }
    free(real);
    return st;
}

static enum status name_stores(const struct rebuild_options *options, struct rebuild_list *list,
                               struct reason *reason)
{
    list->stores = calloc(options->store_count, sizeof(list->stores[0]));
    if (list->stores == NULL)
        return ST_NO_MEMORY;
    for (size_t i = 0; i < options->store_count; i++) {
        char *name = list->stores[list->store_count];
        const enum status st = name_store(options->io, options->stores[i], name, reason);
        if (st != ST_OK)
            return st;
        bool again = false;
        for (size_t k = 0; k < list->store_count; k++)
            again = again || strcmp(list->stores[k], name) == 0;
        list->store_count += !again;
    }
    return ST_OK;
}

/* ---- names ---- */

struct walk {
    struct rebuild_list *list;
    const char *store;
    uint32_t others;
    bool is_job; /* what was named is a job's folder */
    enum status status;
};

static enum status add_found(struct walk *walk, const char *name, int64_t seq)
{
    struct rebuild_list *list = walk->list;
    if (list->count >= REBUILD_FOUND_MAX)
        return ST_FULL;
    if (list->count == list->capacity) {
        const size_t capacity = list->capacity ? 2 * list->capacity : 64;
        void *more = realloc(list->list, capacity * sizeof(list->list[0]));
        if (more == NULL)
            return ST_NO_MEMORY;
        list->list = more;
        list->capacity = capacity;
    }
    struct rebuild_found *found = &list->list[list->count++];
    *found = (struct rebuild_found){ .seq = seq, .store = walk->store };
    (void)snprintf(found->id, sizeof(found->id), "%s", name);
    return ST_OK;
}

/* An io_name_fn. */
static bool take_name(void *arg, const char *name)
{
    struct walk *walk = arg;
    struct ckpt_folder_name folder;
    int64_t seq;
    if (take_id(name, &seq)) {
        walk->status = add_found(walk, name, seq);
    } else if (ckpt_folder_parse(name, &folder)) {
        walk->is_job = true;
    } else if (name[0] != '.' && walk->others++ < REBUILD_OTHER_MAX) {
        walk->status = buf_printf(&walk->list->other, "  %s/%s: not the name of a job\n",
                                  walk->store, ckpt_name_is_good(name) ? name : "…");
    }
    return walk->status == ST_OK && !walk->is_job;
}

static enum status walk_store(const struct io *io, struct rebuild_list *list, const char *store,
                              struct reason *reason)
{
    struct walk walk = { .list = list, .store = store, .status = ST_OK };
    enum status st = io->list(io->self, store, take_name, &walk);
    if (st != ST_OK) {
        struct reason why = { "" };
        io_explain(io, st, &why);
        reason_set(reason, "%.200s can't be read: %.250s", store, why.text);
        return st;
    }
    if (walk.is_job) {
        reason_set(reason, "%.300s is the folder of one job: name the store, which it lies in",
                   store);
        return ST_INVALID;
    }
    if (walk.status == ST_FULL) {
        reason_set(reason, "%.300s: more than %d jobs in all", store, REBUILD_FOUND_MAX);
        return ST_FULL;
    }
    if (walk.status == ST_OK && walk.others > REBUILD_OTHER_MAX) {
        return buf_printf(&list->other, "  %s: %u more names that aren't a job's\n", store,
                          walk.others - REBUILD_OTHER_MAX);
    }
    return walk.status;
}

static int newest_first(const void *a, const void *b)
{
    const struct rebuild_found *x = a, *y = b;
    return (x->seq < y->seq) - (x->seq > y->seq);
}

enum status rebuild_find(const struct rebuild_options *options, struct rebuild_list *out,
                         struct reason *reason)
{
    *out = (struct rebuild_list){ 0 };
    buf_init(&out->other, OTHER_BYTES);
    enum status st = name_stores(options, out, reason);
    for (size_t i = 0; st == ST_OK && i < out->store_count; i++)
        st = walk_store(options->io, out, out->stores[i], reason);
    if (st == ST_OK && out->count > 0)
        qsort(out->list, out->count, sizeof(out->list[0]), newest_first);
    return st;
}

void rebuild_list_release(struct rebuild_list *list)
{
    free(list->stores);
    free(list->list);
    buf_release(&list->other);
    *list = (struct rebuild_list){ 0 };
}
