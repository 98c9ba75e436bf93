/*
 * Opening a checkpoint for reading: manifest, tables of all files, and the chain of parents that a
 * difference leans on, each in the folder beside.
 *
 *     (nothing)      ─▶ a folder         [ckpt_reader_start]
 *     a folder       ─▶ its manifest     ckpt_manifest_read
 *     its manifest   ─▶ all tables       [ckpt_set_open]
 *     all tables     ─▶ one checkpoint   [ckpt_reader_join], with its parents
 *
 * ckpt_verify goes the same way by itself: it goes on after damage.
 *
 * Memory: the footers; what cursors need.
 */
#include "checkpoint/read/open.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/names.h"
#include "checkpoint/read/cursor.h"
#include "common/check.h"

/* Fills in the reader's description of the state from the first file's tables: all files have the
 * same. */
static void describe_state(struct ckpt_reader *reader)
{
    const struct ckpt_footer *footer = &reader->set.shards[0].footer;
    reader->scalars = (struct ckpt_scalars){
        .seed = footer->scalars->seed,
        .step = footer->scalars->step,
        .epoch = footer->scalars->epoch,
        .epoch_step = footer->scalars->epoch_step,
        .loss_scale = footer->scalars->loss_scale,
        .loss_scale_good_steps = footer->scalars->loss_scale_good_steps,
        .skip = footer->skips,
        .skip_count = footer->head->skip_count,
    };
    reader->buffer_count = footer->head->buffer_count;
    for (uint32_t i = 0; i < reader->buffer_count; i++) {
        struct ckpt_buffer *buffer = &reader->buffers[i];
        memcpy(buffer->name, footer->buffers[i].name, sizeof(buffer->name));
        buffer->dtype = (enum ckpt_dtype)footer->buffers[i].dtype;
        buffer->count = footer->buffers[i].count;
    }
}

static enum status open_all(struct ckpt_reader *reader)
{
    struct reason what = { "" };
    enum status st = ckpt_manifest_read(reader->io, reader->dir, &reader->manifest, &what);
    if (ckpt_is_finding(st))
        return ckpt_finding(&reader->findings, st, CKPT_MANIFEST, "%s", what.text);
    if (st == ST_OK) {
        st = ckpt_set_open(reader->io, reader->dir, &reader->manifest, &reader->findings,
                           &reader->set);
    }
    if (st == ST_OK)
        st = reader->findings.worst;
    return st == ST_OK ? ckpt_reader_join(reader) : st;
}

/* room: parents that may follow. */
static enum status open_with(const struct io *io, const char *dir, uint32_t room,
                             const struct ckpt_findings *findings, struct ckpt_reader **out)
{
    struct ckpt_reader *reader = calloc(1, sizeof(*reader));
    if (reader == NULL)
        return ST_NO_MEMORY;
    enum status st = ckpt_reader_start(reader, io, dir, findings->fn, findings->arg);
    reader->room = room;
    if (st == ST_OK)
        st = open_all(reader);
    if (st != ST_OK) {
        ckpt_close(reader);
        return st;
    }
    *out = reader;
    return ST_OK;
}

enum status ckpt_open(const struct io *io, const char *dir, ckpt_finding_fn fn, void *arg,
                      struct ckpt_reader **out)
{
    const struct ckpt_findings findings = { .fn = fn, .arg = arg };
    return open_with(io, dir, DISK_CHAIN_MAX, &findings, out);
}

enum status ckpt_reader_start(struct ckpt_reader *reader, const struct io *io, const char *dir,
                              ckpt_finding_fn fn, void *arg)
{
    *reader = (struct ckpt_reader){
        .io = io,
        .findings = { .fn = fn, .arg = arg },
        .room = DISK_CHAIN_MAX,
    };
    size_t size = strlen(dir);
    if (size >= sizeof(reader->dir))
        return ST_FULL;
    memcpy(reader->dir, dir, size + 1);
    return ST_OK;
}

void ckpt_reader_release(struct ckpt_reader *reader)
{
    for (uint32_t i = 0; i < CKPT_CREW_MAX; i++)
        ckpt_cursor_free(reader->cursors[i]);
    ckpt_close(reader->parent);
    free(reader->tensors);
    ckpt_set_release(&reader->set);
    ckpt_manifest_release(&reader->manifest);
    *reader = (struct ckpt_reader){ 0 };
}

void ckpt_close(struct ckpt_reader *reader)
{
    if (reader == NULL)
        return;
    ckpt_reader_release(reader);
    free(reader);
}

/* ---- the parent ---- */

/* Reports findings of a parent as findings of the child, with the parent's folder. */
struct parent_findings {
    struct ckpt_findings *of_child;
    const char *folder; /* of the parent */
};

static void report_to_child(void *arg, const char *line)
{
    const struct parent_findings *it = arg;
    (void)ckpt_finding(it->of_child, ST_OK, it->folder, "%s", line);
}

/* ST_NOT_FOUND: it wasn't published; others: nobody knows. */
static enum status look_at_manifest(const struct io *io, const char *beside, const char *name)
{
    char dir[LIMIT_PATH], path[LIMIT_PATH];
    struct io_stat info;
    enum status st = ckpt_path(beside, name, dir);
    if (st == ST_OK)
        st = ckpt_path(dir, CKPT_MANIFEST, path);
    return st == ST_OK ? io->stat(io->self, path, &info) : st;
}

struct parent_search {
    const struct ckpt_reader *reader;
    const char *beside; /* the folder of both */
    char *name;         /* LIMIT_NAME bytes */
    enum status status; /* of looking at what was found */
};

/* An io_name_fn: takes the folder of a further try of the parent that was published. */
static bool look_at_try(void *arg, const char *name)
{
    struct parent_search *search = arg;
    const struct ckpt_parent *parent = &search->reader->manifest.parent;
    struct ckpt_folder_name found;
    if (!ckpt_folder_parse(name, &found) || found.quarantined || found.try_number == 0 ||
        found.step != parent->step || found.generation != parent->generation ||
        strlen(name) >= LIMIT_NAME)
        return true;
    const enum status st = look_at_manifest(search->reader->io, search->beside, name);
    if (st == ST_NOT_FOUND)
        return true;
    search->status = st;
    (void)snprintf(search->name, LIMIT_NAME, "%s", name);
    return false;
}

/* The parent's folder: its name, and its path beside the child's. That of its first try, where no
 * other was published. */
static enum status parent_place(const struct ckpt_reader *reader, char name[LIMIT_NAME],
                                char path[LIMIT_PATH])
{
    const struct ckpt_parent *parent = &reader->manifest.parent;
    char beside[LIMIT_PATH];
    enum status st = ckpt_dirname(reader->dir, beside);
    if (st == ST_OK)
        st = ckpt_folder_name(parent->step, parent->generation, 0, name);
    if (st == ST_OK)
        st = look_at_manifest(reader->io, beside, name);
    if (st == ST_NOT_FOUND) {
        struct parent_search search = { reader, beside, name, ST_OK };
        st = reader->io->list(reader->io->self, beside, look_at_try, &search);
        st = st == ST_OK ? search.status : st;
    }
    return st == ST_OK ? ckpt_path(beside, name, path) : st;
}

/* NULL, or why the checkpoint in the parent's folder can't be the parent. */
static const char *parent_misfit(const struct ckpt_reader *reader, const struct ckpt_reader *parent)
{
    const struct ckpt_manifest *it = &parent->manifest;
    const struct ckpt_footer *mine = &reader->set.shards[0].footer;
    const struct ckpt_footer *other = &parent->set.shards[0].footer;
    if (it->step != reader->manifest.parent.step ||
        it->generation != reader->manifest.parent.generation ||
        strcmp(it->job, reader->manifest.job) != 0)
        return "is of another job, step or generation than its folder";
    if (parent->buffer_count != reader->buffer_count ||
        memcmp(mine->buffers, other->buffers, mine->head->buffer_count * sizeof(*mine->buffers)) !=
            0)
        return "has other buffers";
    return NULL;
}

static enum status open_parent(struct ckpt_reader *reader)
{
    char name[LIMIT_NAME], dir[LIMIT_PATH];
    enum status st = parent_place(reader, name, dir);
    if (reader->room == 0 || st == ST_INVALID) {
        return ckpt_finding(&reader->findings, ST_CORRUPT, CKPT_MANIFEST,
                            "the chain of its parents is too long");
    }
    if (st != ST_OK)
        return st;
    struct parent_findings of_parent = { &reader->findings, name };
    const struct ckpt_findings findings = { .fn = report_to_child, .arg = &of_parent };
    struct ckpt_reader *parent = NULL;
    st = open_with(reader->io, dir, reader->room - 1, &findings, &parent);
    if (st == ST_NOT_FOUND) {
        return ckpt_finding(&reader->findings, ST_INCOMPLETE, CKPT_MANIFEST,
                            "it is a difference to %s, which is missing", name);
    }
    if (ckpt_is_finding(st)) {
        return ckpt_finding(&reader->findings, st, CKPT_MANIFEST,
                            "it is a difference to %s, which is %s", name,
                            ckpt_is_damage(st) ? "damaged" : "of another version");
    }
    if (st != ST_OK)
        return st;
    const char *what = parent_misfit(reader, parent);
    if (what != NULL) {
        ckpt_close(parent);
        return ckpt_finding(&reader->findings, ST_CORRUPT, CKPT_MANIFEST,
                            "it is a difference to %s, which %s", name, what);
    }
    parent->findings = (struct ckpt_findings){ 0 }; /* what is found later, cursors report */
    reader->parent = parent;
    return ST_OK;
}

enum status ckpt_reader_join(struct ckpt_reader *reader)
{
    CHECK(reader->parent == NULL);
    enum status st = ckpt_set_join(&reader->set, &reader->manifest, &reader->findings);
    if (st == ST_OK) {
        st = ckpt_set_tensors(&reader->set, &reader->manifest, &reader->findings, &reader->tensors,
                              &reader->tensor_count);
    }
    if (st != ST_OK)
        return st;
    describe_state(reader);
    return reader->manifest.parent.generation == 0 ? ST_OK : open_parent(reader);
}

enum status ckpt_reader_need_cursors(struct ckpt_reader *reader, uint32_t count)
{
    enum status st = ST_OK;
    CHECK(count <= CKPT_CREW_MAX);
    for (uint32_t i = 0; i < count && st == ST_OK; i++) {
        if (reader->cursors[i] == NULL)
            st = ckpt_cursor_new(reader, &reader->cursors[i]);
    }
    return st;
}
