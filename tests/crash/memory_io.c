#include "tests/crash/memory_io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/limits.h"
#include "common/rng.h"

#define FILES_OPEN_MAX 64

struct inode {
    uint8_t *data;
    size_t size;
};

struct name {
    char path[LIMIT_PATH];
    bool is_dir;
    size_t inode; /* of a file */
};

enum change_kind { CREATE, WRITE, LINK, RENAME, UNLINK, MKDIR, RMDIR, FSYNC, FSYNC_DIR };

struct change {
    enum change_kind kind;
    char *path; /* or NULL */
    char *to;   /* link, rename */
    size_t inode;
    uint64_t at;
    uint8_t *data;
    size_t size;
    bool safe; /* survived a crash already */
};

struct memory_io {
    struct io io;
    struct inode *inodes;
    size_t inode_count;
    struct name *names;
    size_t name_count;
    size_t open[FILES_OPEN_MAX]; /* inode + 1; 0: free */
    struct change *changes;
    size_t change_count;
    enum memory_io_fault fault;
    uint64_t nth, calls;
};

static void *grow(void *array, size_t count, size_t size)
{
    if (count != 0 && (count & (count - 1)) != 0)
        return array; /* room up to the next power of two */
    void *more = realloc(array, (count == 0 ? 1 : 2 * count) * size);
    CHECK(more != NULL);
    return more;
}

static struct name *find(const struct memory_io *memory, const char *path)
{
    for (size_t i = 0; i < memory->name_count; i++) {
        if (strcmp(memory->names[i].path, path) == 0)
            return &memory->names[i];
    }
    return NULL;
}

static bool is_within(const char *path, const char *folder)
{
    size_t size = strcmp(folder, "/") == 0 ? 0 : strlen(folder);
    return strncmp(path, folder, size) == 0 && path[size] == '/' && path[size + 1] != '\0' &&
           strchr(path + size + 1, '/') == NULL;
}

static bool has_parent(const struct memory_io *memory, const char *path)
{
    for (size_t i = 0; i < memory->name_count; i++) {
        if (memory->names[i].is_dir && is_within(path, memory->names[i].path))
            return true;
    }
    return false;
}

static struct change *record(struct memory_io *memory, enum change_kind kind, const char *path,
                             const char *to, size_t inode)
{
    memory->changes = grow(memory->changes, memory->change_count, sizeof(*memory->changes));
    struct change *change = &memory->changes[memory->change_count++];
    *change = (struct change){
        .kind = kind,
        .path = path == NULL ? NULL : strdup(path),
        .to = to == NULL ? NULL : strdup(to),
        .inode = inode,
    };
    return change;
}

static struct change *record_write(struct memory_io *memory, size_t inode, const void *data,
                                   size_t size, uint64_t at)
{
    struct change *change = record(memory, WRITE, NULL, NULL, inode);
    change->at = at;
    change->size = size;
    change->data = malloc(size + 1);
    CHECK(change->data != NULL);
    memcpy(change->data, data, size);
    return change;
}

/* ---- the changes themselves; used by the calls and by a replay ---- */

static void add_name(struct memory_io *memory, const char *path, bool is_dir, size_t inode)
{
    memory->names = grow(memory->names, memory->name_count, sizeof(*memory->names));
    struct name *name = &memory->names[memory->name_count++];
    (void)snprintf(name->path, sizeof(name->path), "%s", path);
    name->is_dir = is_dir;
    name->inode = inode;
}

static void drop_name(struct memory_io *memory, struct name *name)
{
    *name = memory->names[--memory->name_count];
}

static size_t add_inode(struct memory_io *memory)
{
    memory->inodes = grow(memory->inodes, memory->inode_count, sizeof(*memory->inodes));
    memory->inodes[memory->inode_count] = (struct inode){ 0 };
    return memory->inode_count++;
}

static void write_bytes(struct inode *inode, const void *data, size_t size, uint64_t at)
{
    size_t end = (size_t)at + size;
    if (end > inode->size) {
        uint8_t *more = realloc(inode->data, end);
        CHECK(more != NULL);
        memset(more + inode->size, 0, end - inode->size);
        inode->data = more;
        inode->size = end;
    }
    memcpy(inode->data + at, data, size);
}

static void rename_within(struct memory_io *memory, const char *from, const char *to)
{
    size_t size = strlen(from);
    for (size_t i = 0; i < memory->name_count; i++) {
        struct name *name = &memory->names[i];
        if (strncmp(name->path, from, size) != 0 ||
            (name->path[size] != '/' && name->path[size] != '\0'))
            continue;
        char path[2 * LIMIT_PATH];
        (void)snprintf(path, sizeof(path), "%s%s", to, name->path + size);
        CHECK(strlen(path) < sizeof(name->path));
        memcpy(name->path, path, strlen(path) + 1);
    }
}

/* ---- the table ---- */

static bool needs_room(enum change_kind kind)
{
    return kind == CREATE || kind == WRITE || kind == LINK || kind == MKDIR;
}

/* Counts the call; what it must fail with, or ST_OK. */
static enum status strike(struct memory_io *memory, enum change_kind kind)
{
    memory->calls++;
    bool now = memory->nth != 0 && memory->calls == memory->nth;
    if (memory->fault == MEMORY_IO_EIO && now)
        return ST_IO;
    if (memory->fault == MEMORY_IO_FULL && memory->nth != 0 && memory->calls >= memory->nth &&
        needs_room(kind))
        return ST_FULL;
    if (memory->fault == MEMORY_IO_AGAIN && now && kind == WRITE)
        return ST_AGAIN;
    return ST_OK;
}

static size_t transfer(const struct memory_io *memory, size_t size)
{
    bool now = memory->nth != 0 && memory->calls == memory->nth;
    return memory->fault == MEMORY_IO_SHORT && now && size > 1 ? 1 : size;
}

static enum status memory_open(void *self, const char *path, int flags, int *out_fd)
{
    struct memory_io *memory = self;
    bool create = (flags & IO_CREATE_NEW) != 0;
    enum status st = strike(memory, create ? CREATE : FSYNC);
    if (st != ST_OK)
        return st;
    struct name *name = find(memory, path);
    if (create && name != NULL)
        return ST_EXISTS;
    if (create ? !has_parent(memory, path) : name == NULL)
        return ST_NOT_FOUND;
    if (name != NULL && name->is_dir)
        return ST_IO;
    size_t fd = 0;
    while (fd < FILES_OPEN_MAX && memory->open[fd] != 0)
        fd++;
    CHECK(fd < FILES_OPEN_MAX);
    size_t inode = create ? add_inode(memory) : name->inode;
    if (create) {
        add_name(memory, path, false, inode);
        (void)record(memory, CREATE, path, NULL, inode);
    }
    memory->open[fd] = inode + 1;
    *out_fd = (int)fd;
    return ST_OK;
}

static size_t inode_of(const struct memory_io *memory, int fd)
{
    CHECK(fd >= 0 && fd < FILES_OPEN_MAX);
    CHECK(memory->open[fd] != 0);
    return memory->open[fd] - 1;
}

static enum status memory_close(void *self, int fd)
{
    struct memory_io *memory = self;
    enum status st = strike(memory, FSYNC);
    (void)inode_of(memory, fd);
    memory->open[fd] = 0; /* closed even when it says it failed, as Linux does */
    return st;
}

static enum status memory_pread(void *self, int fd, void *data, size_t size, uint64_t at,
                                size_t *out_size)
{
    struct memory_io *memory = self;
    enum status st = strike(memory, FSYNC);
    if (st != ST_OK)
        return st;
    const struct inode *inode = &memory->inodes[inode_of(memory, fd)];
    size_t left = at < inode->size ? inode->size - (size_t)at : 0;
    size_t now = transfer(memory, size < left ? size : left);
    if (now > 0)
        memcpy(data, inode->data + at, now);
    *out_size = now;
    return ST_OK;
}

static enum status memory_pwrite(void *self, int fd, const void *data, size_t size, uint64_t at,
                                 size_t *out_size)
{
    struct memory_io *memory = self;
    enum status st = strike(memory, WRITE);
    if (st != ST_OK)
        return st;
    size_t inode = inode_of(memory, fd), now = transfer(memory, size);
    write_bytes(&memory->inodes[inode], data, now, at);
    (void)record_write(memory, inode, data, now, at);
    *out_size = now;
    return ST_OK;
}

static enum status memory_fsync(void *self, int fd)
{
    struct memory_io *memory = self;
    enum status st = strike(memory, FSYNC);
    if (st == ST_OK)
        (void)record(memory, FSYNC, NULL, NULL, inode_of(memory, fd));
    return st;
}

static enum status memory_fsync_dir(void *self, const char *path)
{
    struct memory_io *memory = self;
    enum status st = strike(memory, FSYNC);
    if (st != ST_OK)
        return st;
    const struct name *name = find(memory, path);
    if (name == NULL || !name->is_dir)
        return ST_NOT_FOUND;
    (void)record(memory, FSYNC_DIR, path, NULL, 0);
    return ST_OK;
}

static enum status memory_mkdir(void *self, const char *path)
{
    struct memory_io *memory = self;
    enum status st = strike(memory, MKDIR);
    if (st != ST_OK)
        return st;
    if (find(memory, path) != NULL)
        return ST_EXISTS;
    if (!has_parent(memory, path))
        return ST_NOT_FOUND;
    add_name(memory, path, true, 0);
    (void)record(memory, MKDIR, path, NULL, 0);
    return ST_OK;
}

static enum status memory_link(void *self, const char *from, const char *to)
{
    struct memory_io *memory = self;
    enum status st = strike(memory, LINK);
    if (st != ST_OK)
        return st;
    const struct name *name = find(memory, from);
    if (name == NULL || !has_parent(memory, to))
        return ST_NOT_FOUND;
    if (find(memory, to) != NULL)
        return ST_EXISTS;
    size_t inode = name->inode;
    add_name(memory, to, false, inode);
    (void)record(memory, LINK, from, to, inode);
    return ST_OK;
}

static enum status memory_rename(void *self, const char *from, const char *to)
{
    struct memory_io *memory = self;
    enum status st = strike(memory, RENAME);
    if (st != ST_OK)
        return st;
    if (find(memory, from) == NULL || !has_parent(memory, to))
        return ST_NOT_FOUND;
    CHECK(find(memory, to) == NULL); /* no test needs a rename over something */
    rename_within(memory, from, to);
    (void)record(memory, RENAME, from, to, 0);
    return ST_OK;
}

static enum status memory_unlink(void *self, const char *path)
{
    struct memory_io *memory = self;
    enum status st = strike(memory, UNLINK);
    if (st != ST_OK)
        return st;
    struct name *name = find(memory, path);
    if (name == NULL)
        return ST_NOT_FOUND;
    if (name->is_dir)
        return ST_IO;
    drop_name(memory, name);
    (void)record(memory, UNLINK, path, NULL, 0);
    return ST_OK;
}

static bool is_empty(const struct memory_io *memory, const char *path)
{
    for (size_t i = 0; i < memory->name_count; i++) {
        if (is_within(memory->names[i].path, path))
            return false;
    }
    return true;
}

static enum status memory_rmdir(void *self, const char *path)
{
    struct memory_io *memory = self;
    enum status st = strike(memory, RMDIR);
    if (st != ST_OK)
        return st;
    struct name *name = find(memory, path);
    if (name == NULL)
        return ST_NOT_FOUND;
    if (!name->is_dir || !is_empty(memory, path))
        return ST_IO;
    drop_name(memory, name);
    (void)record(memory, RMDIR, path, NULL, 0);
    return ST_OK;
}

static enum status memory_stat(void *self, const char *path, struct io_stat *out)
{
    struct memory_io *memory = self;
    enum status st = strike(memory, FSYNC);
    if (st != ST_OK)
        return st;
    const struct name *name = find(memory, path);
    if (name == NULL)
        return ST_NOT_FOUND;
    *out = (struct io_stat){ .is_dir = name->is_dir };
    if (!name->is_dir)
        out->size = memory->inodes[name->inode].size;
    return ST_OK;
}

static enum status memory_list(void *self, const char *path, io_name_fn fn, void *arg)
{
    struct memory_io *memory = self;
    enum status st = strike(memory, FSYNC);
    if (st != ST_OK)
        return st;
    const struct name *folder = find(memory, path);
    if (folder == NULL)
        return ST_NOT_FOUND;
    if (!folder->is_dir)
        return ST_IO;
    for (size_t i = 0; i < memory->name_count; i++) {
        const char *name = memory->names[i].path;
        if (is_within(name, path) && !fn(arg, strrchr(name, '/') + 1))
            break;
    }
    return ST_OK;
}

struct memory_io *memory_io_new(void)
{
    struct memory_io *memory = calloc(1, sizeof(*memory));
    CHECK(memory != NULL);
    memory->io = (struct io){
        .self = memory,
        .open = memory_open,
        .close = memory_close,
        .pread = memory_pread,
        .pwrite = memory_pwrite,
        .fsync = memory_fsync,
        .fsync_dir = memory_fsync_dir,
        .mkdir = memory_mkdir,
        .link = memory_link,
        .rename = memory_rename,
        .unlink = memory_unlink,
        .rmdir = memory_rmdir,
        .stat = memory_stat,
        .list = memory_list,
    };
    add_name(memory, "/", true, 0);
    return memory;
}

void memory_io_free(struct memory_io *memory)
{
    if (memory == NULL)
        return;
    for (size_t i = 0; i < memory->inode_count; i++)
        free(memory->inodes[i].data);
    for (size_t i = 0; i < memory->change_count; i++) {
        free(memory->changes[i].path);
        free(memory->changes[i].to);
        free(memory->changes[i].data);
    }
    free(memory->inodes);
    free(memory->names);
    free(memory->changes);
    free(memory);
}

const struct io *memory_io_table(struct memory_io *memory)
{
    return &memory->io;
}

void memory_io_arm(struct memory_io *memory, enum memory_io_fault fault, uint64_t nth)
{
    memory->fault = fault;
    memory->nth = nth;
    memory->calls = 0;
}

uint64_t memory_io_calls(const struct memory_io *memory)
{
    return memory->calls;
}

size_t memory_io_open_files(const struct memory_io *memory)
{
    size_t count = 0;
    for (size_t i = 0; i < FILES_OPEN_MAX; i++)
        count += memory->open[i] != 0;
    return count;
}

uint8_t *memory_io_bytes(struct memory_io *memory, const char *path, size_t *out_size)
{
    const struct name *name = find(memory, path);
    if (name == NULL || name->is_dir)
        return NULL;
    *out_size = memory->inodes[name->inode].size;
    return memory->inodes[name->inode].data;
}

void memory_io_put(struct memory_io *memory, const char *path, const void *data, size_t size)
{
    struct name *name = find(memory, path);
    if (name == NULL) {
        size_t inode = add_inode(memory);
        add_name(memory, path, false, inode);
        name = find(memory, path);
    }
    struct inode *inode = &memory->inodes[name->inode];
    inode->size = 0;
    if (size > 0)
        write_bytes(inode, data, size, 0);
}

bool memory_io_has(const struct memory_io *memory, const char *path)
{
    return find(memory, path) != NULL;
}

size_t memory_io_changes(const struct memory_io *memory)
{
    return memory->change_count;
}

/* ---- crashing ---- */

/* Whether a sync among changes i+1 .. end-1 makes change i safe. */
static bool is_safe(const struct memory_io *memory, size_t i, size_t end)
{
    const struct change *change = &memory->changes[i];
    if (change->safe || change->kind == FSYNC || change->kind == FSYNC_DIR)
        return true;
    const char *path = change->to != NULL ? change->to : change->path;
    for (size_t k = i + 1; k < end; k++) {
        const struct change *sync = &memory->changes[k];
        if (change->kind == WRITE ? sync->kind == FSYNC && sync->inode == change->inode
                                  : sync->kind == FSYNC_DIR && is_within(path, sync->path))
            return true;
    }
    return false;
}

/* What choice says about loose change number k of `loose`: 0 lost, 1 half of it, 2 whole. */
static int verdict(uint64_t choice, size_t k, size_t loose)
{
    if (choice < 2 || choice == MEMORY_IO_KILL)
        return choice == 0 ? 0 : 2;
    choice -= 2;
    if (choice < loose)
        return choice == k ? 2 : 0;
    choice -= loose;
    if (choice < loose)
        return choice == k ? 0 : 2;
    struct rng_counter words = rng_words(choice, (uint32_t)k, 0, 0, 0);
    return (int)rng_below(words.word[0], 3);
}

static void replay(struct memory_io *memory, const struct change *change, bool half)
{
    struct name *name = change->path == NULL ? NULL : find(memory, change->path);
    const char *made = change->to != NULL ? change->to : change->path;
    bool free_place = made != NULL && find(memory, made) == NULL && has_parent(memory, made);
    switch (change->kind) {
    case CREATE:
        if (free_place)
            add_name(memory, change->path, false, change->inode);
        break;
    case WRITE:
        write_bytes(&memory->inodes[change->inode], change->data,
                    half ? change->size / 2 : change->size, change->at);
        break;
    case LINK: /* the new name holds, whatever became of the old one */
        if (free_place)
            add_name(memory, change->to, false, change->inode);
        break;
    case RENAME:
        if (name != NULL && free_place)
            rename_within(memory, change->path, change->to);
        break;
    case MKDIR:
        if (free_place)
            add_name(memory, change->path, true, 0);
        break;
    case UNLINK:
        if (name != NULL)
            drop_name(memory, name);
        break;
    case RMDIR:
        if (name != NULL && is_empty(memory, change->path))
            drop_name(memory, name);
        break;
    case FSYNC:
    case FSYNC_DIR:
        break;
    }
}

/* What survived is the beginning of the new record. */
static void keep(struct memory_io *memory, const struct change *change, bool half, bool safe)
{
    size_t size = half ? change->size / 2 : change->size;
    struct change *kept =
        change->kind == WRITE
            ? record_write(memory, change->inode, change->data, size, change->at)
            : record(memory, change->kind, change->path, change->to, change->inode);
    kept->safe = safe;
}

struct memory_io *memory_io_crash(const struct memory_io *memory, size_t changes, uint64_t choice,
                                  size_t *out_loose)
{
    CHECK(changes <= memory->change_count);
    struct memory_io *after = memory_io_new();
    while (after->inode_count < memory->inode_count)
        (void)add_inode(after);
    size_t loose = 0;
    for (size_t i = 0; i < changes; i++)
        loose += !is_safe(memory, i, changes);
    for (size_t i = 0, k = 0; i < changes; i++) {
        int how = is_safe(memory, i, changes) ? 2 : verdict(choice, k++, loose);
        if (how > 0) {
            replay(after, &memory->changes[i], how == 1);
            keep(after, &memory->changes[i], how == 1,
                 choice != MEMORY_IO_KILL || memory->changes[i].safe);
        }
    }
    *out_loose = loose;
    return after;
}
