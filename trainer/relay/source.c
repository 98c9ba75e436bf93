/* What a program goes on from: copies in memory, a checkpoint's folder, or nothing. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/store/store.h"
#include "session/copies/copy_folder.h"
#include "trainer/relay/internal.h"

static enum status find_copies(struct relay *r, struct reason *out_why)
{
    const struct session_assignment *a = r->options.assignment;
    struct relay_source *source = &r->source;
    source->paths = malloc((size_t)a->memory.size * LIMIT_PATH);
    if (source->paths == NULL)
        return ST_NO_MEMORY;
    for (uint32_t share = 0; share < a->memory.size; share++) {
        struct session_copy wanted = a->memory;
        char path[LIMIT_PATH];
        wanted.rank = share;
        const enum status st = copy_folder_path(r->options.copies, a->job, &wanted, path);
        if (st != ST_OK) {
            reason_set(out_why, "copy in memory of step %llu, share %u of %u: is not there: %s",
                       (unsigned long long)a->memory.step, share, a->memory.size,
                       status_string(st));
            return st;
        }
        const size_t size = strlen(path) + 1;
        memcpy(source->paths + source->size, path, size);
        source->size += size;
    }
    source->kind = WIRE_MEMORY;
    source->count = a->memory.size;
    source->step = a->memory.step;
    return ST_OK;
}

enum status relay_find_source(struct relay *relay, struct reason *out_why)
{
    struct relay *r = relay;
    const struct session_assignment *a = r->options.assignment;
    if (ckpt_store_is_object(r->options.job->checkpoint.store)) {
        reason_set(out_why, "checkpoint.store: a program's checkpoints can't be in S3 in this "
                            "version; name a folder");
        return ST_CONFIG;
    }
    if (a->memory.generation > 0)
        return find_copies(r, out_why);
    if (a->restore[0] == '\0')
        return ST_OK;
    ckpt_await(r->options.io, a->restore);
    r->source = (struct relay_source){ .kind = WIRE_CHECKPOINT,
                                       .step = a->restore_step,
                                       .count = 1,
                                       .paths = strdup(a->restore),
                                       .size = strlen(a->restore) + 1 };
    r->committed = a->restore_step;
    return r->source.paths != NULL ? ST_OK : ST_NO_MEMORY;
}

/* ---- after a failure ---- */

static enum status check_copy(const char *path)
{
    struct copy_view view = { .size = 0 };
    enum status st = copy_view_map(path, &view);
    for (uint32_t i = 0; st == ST_OK && i < view.head->extent_count; i++) {
        size_t size = 0;
        const void *data = copy_view_data(&view, i, &size);
        st = copy_view_check_data(&view, i, 0, data, size);
    }
    copy_view_unmap(&view);
    return st;
}

static enum status check_copies(const struct relay *r, struct reason *out_why)
{
    const char *path = r->source.paths;
    enum status st = ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < r->source.count; i++, path += strlen(path) + 1) {
        st = check_copy(path);
        if (st != ST_OK) {
            reason_set(out_why, "copy in memory of step %llu, share %u of %u: %s",
                       (unsigned long long)r->source.step, i, r->source.count, status_string(st));
        }
    }
    return st;
}

struct finding {
    struct reason *why;
    bool found;
};

static void note_finding(void *arg, const char *line)
{
    struct finding *finding = arg;
    if (!finding->found)
        reason_set(finding->why, "%s", line);
    finding->found = true;
}

static enum status check_checkpoint(const struct relay *r, struct reason *out_why,
                                    uint32_t *out_shard)
{
    const char *dir = r->source.paths;
    struct finding finding = { .why = out_why };
    struct ckpt_manifest manifest;
    enum status st = ckpt_manifest_read(r->options.io, dir, &manifest, out_why);
    if (st != ST_OK)
        return st;
    for (uint32_t i = 0; st == ST_OK && i < manifest.file_count; i++) {
        st = ckpt_verify_file(r->options.io, dir, i, NULL, note_finding, &finding);
        *out_shard = st != ST_OK ? 1 + i : 0;
    }
    if (st != ST_OK && !finding.found)
        reason_set(out_why, "%.300s: %s", dir, status_string(st));
    ckpt_manifest_release(&manifest);
    return st;
}

bool relay_is_damaged(struct relay *relay, struct reason *out_why, uint32_t *out_shard)
{
    struct relay *r = relay;
    enum status st = ST_OK;
    *out_shard = 0;
    (void)pthread_mutex_lock(&r->mutex);
    bool greeted = false, ready = true;
    for (uint32_t i = 0; i < r->count; i++) {
        greeted = greeted || r->processes[i].greeted;
        ready = ready && r->processes[i].ready;
    }
    const bool reads = greeted && !ready;
    (void)pthread_mutex_unlock(&r->mutex);
    if (reads && r->source.kind == WIRE_MEMORY)
        st = check_copies(r, out_why);
    if (reads && r->source.kind == WIRE_CHECKPOINT)
        st = check_checkpoint(r, out_why, out_shard);
    return st == ST_CORRUPT || st == ST_INCOMPLETE;
}
