/*
 * The coordinator's file operations around a commit (docs/invariants.md, "Checkpoints").
 *
 *                    ckpt_folder_create              every rank: ckpt_shard_write
 *     (nothing) ------------------------> FOLDER ---------------------------------> WRITTEN
 *                                           |                                          |
 *                         ckpt_folder_drop  |                          ckpt_commit_check, then the
 *     (nothing) <---------------------------+                          journal's committing record
 *         ^                                                                            |
 *         |   ckpt_remove        ckpt_manifest_publish                                 v
 *         +--------------- COMMITTED <-------------------------------------------- DECIDED
 *                              |  ckpt_quarantine
 *                              +------------------> bad-…
 *
 * ckpt_folder_drop also takes a WRITTEN save that the check refuses. The save's state in
 * server/jobfsm/parts.h is COLLECTING at FOLDER, CHECKING at WRITTEN, COMMITTING at DECIDED.
 *
 * Invariants:
 *  (1) manifest.json is in a folder only after every byte of every file that it names, and their
 *      names, are durable.
 *  (2) manifest.json is whole as soon as it is there, and never written to: it comes by link(), in
 *      an object store by put_new.
 *  (3) Every call may be cut off anywhere and made again, by another process too.
 *  (4) What isn't a checkpoint any more loses its manifest first, durably, then its files.
 *  (5) Only files whose names this library makes are ever removed.
 *  (6) A failed fsync of a folder has left it clean without having written it, so that a second one
 *      would lie: either the change is taken back, for the repetition to make it again, or the
 *      folder is changed once more, or (before the decision) the save is over.
 *  (7) A temporary name is one call's (struct io's call): a call that is carried out late, from
 *      a coordinator that is dead, too, can't touch what another one writes, nor publish it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/format/names.h"
#include "checkpoint/store/each_file.h"
#include "common/cleanup.h"
#include "common/fault.h"

#define NAMES_MAX      IO_UNLINK_MAX /* of a folder, looked at in one go */
#define QUARANTINE_MAX 100           /* folders of one step and generation that went bad */

struct names {
    char name[NAMES_MAX][64];
    const char *each[NAMES_MAX];
    bool gone[NAMES_MAX];
    uint32_t count;
    bool foreign;
    bool held; /* one of ours was removed and is still open (ckpt_file_is_held) */
    bool more; /* of ours */
};

/* The manifest isn't among them: what takes it away says so. */
static bool collect_ours(void *arg, const char *name)
{
    struct names *names = arg;
    if (ckpt_file_is_held(name)) {
        names->held = true;
        return true;
    }
    if (!ckpt_file_is_ours(name) || strcmp(name, CKPT_MANIFEST) == 0 ||
        strlen(name) >= sizeof(names->name[0])) {
        names->foreign = true;
        return true;
    }
    names->more = names->count == NAMES_MAX;
    if (names->more)
        return false;
    (void)snprintf(names->name[names->count], sizeof(names->name[0]), "%s", name);
    names->count++;
    return true;
}

static enum status unlink_if_there(const struct io *io, const char *path)
{
    enum status st = io->unlink(io->self, path);
    return st == ST_NOT_FOUND ? ST_OK : st;
}

static enum status unlink_in(const struct io *io, const char *dir, const char *name)
{
    char path[LIMIT_PATH];
    enum status st = ckpt_path(dir, name, path);
    return st == ST_OK ? unlink_if_there(io, path) : st;
}

struct removal {
    const struct io *io;
    const char *dir;
    const struct names *names;
};

/* A ckpt_file_fn. */
static enum status unlink_item(void *arg, uint32_t item)
{
    const struct removal *it = arg;
    return it->names->gone[item] ? ST_OK : unlink_in(it->io, it->dir, it->names->name[item]);
}

/* Removes the names, in no order: a caller that is cut off can't tell which are gone. */
static enum status unlink_names(const struct io *io, const char *dir, struct names *names)
{
    struct removal removal = { .io = io, .dir = dir, .names = names };
    for (uint32_t i = 0; i < names->count; i++)
        names->each[i] = names->name[i];
    enum status st = io_unlink_many(io, dir, names->each, names->count, names->gone);
    if (st == ST_OK && io_is_object(io, dir))
        return ckpt_each_file(names->count, unlink_item, &removal);
    for (uint32_t i = 0; i < names->count && st == ST_OK; i++)
        st = unlink_item(&removal, i);
    return st;
}

/* Files left in a folder that was emptied. */
struct rest {
    bool foreign; /* other files than ours */
    bool held;    /* our files that are still open: to be waited for */
};

/* Removes our files but for a manifest. */
static enum status empty_folder(const struct io *io, const char *dir, struct rest *out)
{
    auto_free struct names *names = malloc(sizeof(*names));
    if (names == NULL)
        return ST_NO_MEMORY;
    do {
        names->count = 0;
        names->foreign = names->held = names->more = false;
        enum status st = io->list(io->self, dir, collect_ours, names);
        if (st == ST_OK)
            st = unlink_names(io, dir, names);
        if (st != ST_OK)
            return st;
    } while (names->more);
    *out = (struct rest){ .foreign = names->foreign, .held = names->held };
    return ST_OK;
}

/*
 * Calls fsync for every folder that dir lies in, whichever process made it: that one may have died
 * before its fsync. Folders that hold the store may not be ours to open; then they were not ours to
 * make either.
 */
static enum status sync_parents(const struct io *io, const char *dir)
{
    char path[LIMIT_PATH], parent[LIMIT_PATH];
    if (io_is_object(io, dir))
        return ST_OK; /* an object lies in no folder: its key is its name */
    int size = snprintf(path, sizeof(path), "%s", dir);
    if (size < 0 || (size_t)size >= sizeof(path))
        return ST_INVALID;
    for (int level = 0; level < LIMIT_PATH; level++) {
        enum status st = ckpt_dirname(path, parent);
        if (st == ST_OK && strcmp(parent, path) == 0)
            break; /* "/" or "." */
        if (st == ST_OK)
            st = io->fsync_dir(io->self, parent);
        if (st != ST_OK && (st != ST_REFUSED || level < 2))
            return st;
        memcpy(path, parent, strlen(parent) + 1);
    }
    return ST_OK;
}

enum status ckpt_folder_create(const struct io *io, const char *dir)
{
    char manifest[LIMIT_PATH];
    struct io_stat info;
    enum status st = ckpt_path(dir, CKPT_MANIFEST, manifest);
    if (st == ST_OK)
        st = io->stat(io->self, manifest, &info);
    if (st == ST_OK)
        return ST_EXISTS;
    if (st != ST_NOT_FOUND)
        return st;
    st = io_mkdir_all(io, dir);
    if (st != ST_OK)
        return st;
    struct rest rest;
    st = empty_folder(io, dir, &rest);
    if (st == ST_OK)
        st = io->fsync_dir(io->self, dir);
    if (st == ST_OK)
        st = sync_parents(io, dir);
    if (st != ST_OK) {
        (void)io->rmdir(io->self, dir); /* made again by the repetition: (6) */
        return st;
    }
    return fault_status("commit.folder");
}

/* ---- whether every file is there ---- */

struct check {
    const struct io *io;
    const char *dir;
    const struct ckpt_report *reports;
    uint32_t count;
    bool *there;      /* is known to have its size */
    int64_t until_ms; /* of the search for what isn't seen here yet */
};

/* An io_size_fn. */
static bool note_size(void *arg, const char *name, uint64_t size)
{
    const struct check *it = arg;
    static const char begin[] = "shard-";
    unsigned long rank = 0;
    if (strncmp(name, begin, sizeof(begin) - 1) == 0)
        rank = strtoul(name + sizeof(begin) - 1, NULL, 10);
    if (rank < it->count && strcmp(name, it->reports[rank].file) == 0)
        it->there[rank] = size == it->reports[rank].size;
    return true;
}

/* A ckpt_file_fn. */
static enum status check_file(void *arg, uint32_t rank)
{
    const struct check *it = arg;
    const struct ckpt_report *report = &it->reports[rank];
    char path[LIMIT_PATH];
    struct io_stat info;
    if (it->there[rank])
        return ST_OK;
    enum status st = ckpt_path(it->dir, report->file, path);
    if (st == ST_OK)
        st = io_find(it->io, path, report->size, it->until_ms, &info);
    if (st == ST_NOT_FOUND || (st == ST_OK && (info.is_dir || info.size != report->size)))
        return ST_INCOMPLETE;
    return st;
}

enum status ckpt_commit_check(const struct io *io, const char *dir,
                              const struct ckpt_report *reports, uint32_t count)
{
    enum status st = fault_status("commit.check");
    if (st == ST_OK) {
        st = io->fsync_dir(io->self, dir);
        if (st != ST_OK && st != ST_NOT_FOUND)
            return ST_INCOMPLETE; /* the names can't be made durable any more: (6) */
    }
    for (uint32_t i = 0; i < count && st == ST_OK; i++) {
        char name[64];
        ckpt_shard_name(i, count, name);
        if (reports[i].rank != i || strcmp(reports[i].file, name) != 0)
            return ST_INVALID;
    }
    auto_free bool *there = calloc((size_t)count + 1, sizeof(*there));
    if (st == ST_OK && there == NULL)
        st = ST_NO_MEMORY;
    struct check check = { .io = io,
                           .dir = dir,
                           .reports = reports,
                           .count = count,
                           .there = there,
                           .until_ms = io_find_until() };
    if (st == ST_OK && io_is_object(io, dir)) /* elsewhere a list brings no sizes */
        st = io_list_sizes(io, dir, note_size, &check);
    return st == ST_OK ? ckpt_each_file(count, check_file, &check) : st;
}

/* The manifest under its temporary name, durable. */
static enum status write_temporary(const struct io *io, const char *path, const void *bytes,
                                   size_t size)
{
    int fd = -1;
    enum status st = io->unlink(io->self, path); /* of a publication that was cut off */
    if (st == ST_OK || st == ST_NOT_FOUND)
        st = io->open(io->self, path, IO_CREATE_NEW, &fd);
    if (st != ST_OK)
        return st;
    st = io_write_all(io, fd, bytes, size, 0);
    if (st == ST_OK)
        st = io->fsync(io->self, fd);
    enum status closed = io->close(io->self, fd);
    if (st == ST_OK)
        st = closed;
    if (st == ST_OK)
        st = fault_status("commit.manifest_tmp");
    if (st != ST_OK)
        (void)io->unlink(io->self, path);
    return st;
}

/* Whether path holds exactly these bytes. ST_NOT_FOUND: there is nothing. ST_EXISTS: others. */
static enum status compare_with(const struct io *io, const char *path, const void *bytes,
                                size_t size)
{
    auto_free char *there = NULL;
    size_t there_size = 0;
    enum status st = io_read_file(io, path, size, &there, &there_size);
    if (st == ST_FULL || st == ST_INVALID)
        return ST_EXISTS;
    if (st != ST_OK)
        return st;
    return there_size == size && memcmp(there, bytes, size) == 0 ? ST_OK : ST_EXISTS;
}

/*
 * The manifest is there, but maybe only in memory: an earlier fsync of the folder may have failed
 * or never have run. A failed one has left the folder's blocks marked clean, so they are changed
 * again (a second name comes and goes) before the fsync that counts.
 */
static enum status publish_again(const struct io *io, const char *dir, const char *path,
                                 const char *temporary)
{
    enum status st = unlink_if_there(io, temporary);
    if (st == ST_OK)
        st = io->link(io->self, path, temporary);
    if (st == ST_OK)
        st = unlink_if_there(io, temporary);
    return st == ST_OK ? io->fsync_dir(io->self, dir) : st;
}

/* Publishes a manifest in an object store. Another process may have done so, with the same
 * bytes. */
static enum status publish_object(const struct io *io, const char *path, const void *bytes,
                                  size_t size)
{
    enum status st = io->put_new(io->self, path, bytes, size);
    return st == ST_EXISTS ? compare_with(io, path, bytes, size) : st;
}

enum status ckpt_manifest_publish(const struct io *io, const char *dir, const void *bytes,
                                  size_t size)
{
    char path[LIMIT_PATH], temporary[LIMIT_PATH];
    enum status st = ckpt_path(dir, CKPT_MANIFEST, path);
    if (st == ST_OK)
        st = io_temporary(io, path, temporary);
    if (st != ST_OK)
        return st;
    st = compare_with(io, path, bytes, size);
    if (st != ST_EXISTS && io_is_object(io, path))
        return st == ST_NOT_FOUND ? publish_object(io, path, bytes, size) : st;
    if (st == ST_OK)
        return publish_again(io, dir, path, temporary);
    if (st != ST_NOT_FOUND)
        return st;
    st = write_temporary(io, temporary, bytes, size);
    if (st != ST_OK)
        return st;
    st = io->link(io->self, temporary, path);
    if (st == ST_EXISTS) /* another one was quicker; or it was us, and NFS lost its answer */
        st = compare_with(io, path, bytes, size);
    if (st == ST_OK)
        st = fault_status("commit.link");
    if (st == ST_OK)
        st = unlink_if_there(io, temporary);
    if (st == ST_OK)
        st = io->fsync_dir(io->self, dir);
    return st == ST_OK ? fault_status("commit.fsync_dir") : st;
}

/* The folder is gone; maybe only in memory. Without the one that it lay in there is nothing to do.
 */
static enum status sync_removal(const struct io *io, const char *dir)
{
    char parent[LIMIT_PATH];
    enum status st = ckpt_dirname(dir, parent);
    if (st == ST_OK)
        st = io->fsync_dir(io->self, parent);
    if (st == ST_NOT_FOUND)
        return ST_OK;
    if (st != ST_OK)
        (void)io->mkdir(io->self, dir); /* gone again by the repetition: (6) */
    return st;
}

/* The manifest's name is gone; durably, or the folder is dirty for the repetition. */
static enum status sync_unpublished(const struct io *io, const char *dir)
{
    enum status st = io->fsync_dir(io->self, dir);
    char path[LIMIT_PATH], temporary[LIMIT_PATH];
    if (st == ST_OK || ckpt_path(dir, CKPT_MANIFEST, path) != ST_OK ||
        io_temporary(io, path, temporary) != ST_OK)
        return st;
    int fd = -1;
    if (io->open(io->self, temporary, IO_CREATE_NEW, &fd) == ST_OK)
        (void)io->close(io->self, fd);
    (void)io->unlink(io->self, temporary);
    return st;
}

/* A folder without a manifest goes, with our files; with others it stays. What is open goes by
 * itself: until then the folder can't. It may have become so by what was just removed. */
static enum status remove_unpublished(const struct io *io, const char *dir)
{
    struct rest rest;
    enum status st = empty_folder(io, dir, &rest);
    if (st != ST_OK || rest.foreign)
        return st;
    st = rest.held ? ST_AGAIN : io->rmdir(io->self, dir);
    if (st == ST_IO && empty_folder(io, dir, &rest) == ST_OK && rest.held)
        st = ST_AGAIN;
    return st == ST_OK || st == ST_NOT_FOUND ? sync_removal(io, dir) : st;
}

enum status ckpt_remove(const struct io *io, const char *dir)
{
    struct io_stat info;
    enum status st = io->stat(io->self, dir, &info);
    if (st == ST_NOT_FOUND)
        return sync_removal(io, dir);
    if (st == ST_OK)
        st = unlink_in(io, dir, CKPT_MANIFEST);
    if (st == ST_OK)
        st = fault_status("retention.unpublish");
    if (st == ST_OK)
        st = sync_unpublished(io, dir);
    return st == ST_OK ? remove_unpublished(io, dir) : st;
}

enum status ckpt_folder_drop(const struct io *io, const char *dir)
{
    char manifest[LIMIT_PATH];
    struct io_stat info;
    enum status st = io->stat(io->self, dir, &info);
    if (st == ST_NOT_FOUND)
        return sync_removal(io, dir);
    if (st == ST_OK)
        st = ckpt_path(dir, CKPT_MANIFEST, manifest);
    if (st == ST_OK)
        st = io->stat(io->self, manifest, &info);
    if (st == ST_OK)
        return ST_EXISTS;
    return st == ST_NOT_FOUND ? remove_unpublished(io, dir) : st;
}

struct stale {
    struct names names;
    uint32_t before;
};

static bool collect_stale(void *arg, const char *name)
{
    struct stale *stale = arg;
    struct names *names = &stale->names;
    uint64_t generation = 0;
    if (!ckpt_temporary_parse(name, &generation) || generation >= stale->before)
        return true;
    int size = snprintf(names->name[names->count], sizeof(names->name[0]), "%s", name);
    names->count += size > 0 && (size_t)size < sizeof(names->name[0]);
    return names->count < NAMES_MAX;
}

enum status ckpt_sweep_temporaries(const struct io *io, const char *dir, uint32_t before)
{
    auto_free struct stale *stale = calloc(1, sizeof(*stale));
    if (stale == NULL)
        return ST_NO_MEMORY;
    stale->before = before;
    enum status st = io->list(io->self, dir, collect_stale, stale);
    for (size_t i = 0; i < stale->names.count && st == ST_OK; i++)
        st = unlink_in(io, dir, stale->names.name[i]);
    return st == ST_NOT_FOUND ? ST_OK : st;
}

/* The path of a folder that was set aside: the copy-th of that name. */
static enum status quarantine_path(const char *dir, int copy, char *out, size_t capacity)
{
    char parent[LIMIT_PATH], base[LIMIT_PATH], suffix[8] = "";
    enum status st = ckpt_dirname(dir, parent);
    if (st == ST_OK)
        st = ckpt_basename(dir, base);
    if (st != ST_OK)
        return st;
    if (copy > 1)
        (void)snprintf(suffix, sizeof(suffix), ".%d", copy);
    int size = snprintf(out, capacity, "%s/%s%s%s", parent, CKPT_QUARANTINE, base, suffix);
    return size < 0 || (size_t)size >= capacity ? ST_TOO_LONG : ST_OK;
}

enum status ckpt_quarantine(const struct io *io, const char *dir, char *out, size_t capacity)
{
    char parent[LIMIT_PATH], path[LIMIT_PATH];
    struct io_stat info;
    int copy = 0;
    enum status there = io->stat(io->self, dir, &info), st = ckpt_dirname(dir, parent);
    if (there != ST_OK && there != ST_NOT_FOUND)
        return there;
    while (st == ST_OK && copy < QUARANTINE_MAX) { /* to the first that is free */
        st = quarantine_path(dir, ++copy, path, sizeof(path));
        if (st == ST_OK)
            st = io->stat(io->self, path, &info);
    }
    if (st != ST_NOT_FOUND)
        return st == ST_OK ? ST_FULL : st;
    st = ST_OK;
    if (there == ST_NOT_FOUND) /* set aside already, perhaps */
        st = copy > 1 ? quarantine_path(dir, copy - 1, path, sizeof(path)) : ST_NOT_FOUND;
    if (st == ST_OK && strlen(path) >= capacity)
        st = ST_TOO_LONG;
    if (st == ST_OK && there == ST_OK)
        st = io->rename(io->self, dir, path);
    if (st != ST_OK)
        return st;
    st = io->fsync_dir(io->self, parent);
    if (st != ST_OK) {
        (void)io->rename(io->self, path, dir); /* again by the repetition: (6) */
        return st;
    }
    memcpy(out, path, strlen(path) + 1);
    return ST_OK;
}
