#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "tests/crash/memory_internal.h"

static void *grow(void *array, size_t count, size_t size)
{
    if (count != 0 && (count & (count - 1)) != 0)
        return array; /* room up to the next power of two */
    void *more = realloc(array, (count == 0 ? 1 : 2 * count) * size);
    CHECK(more != NULL);
    return more;
}

struct name *memory_find(const struct memory_io *memory, const char *path)
{
    for (size_t i = 0; i < memory->name_count; i++) {
        if (strcmp(memory->names[i].path, path) == 0)
            return &memory->names[i];
    }
    return NULL;
}

bool memory_within(const char *path, const char *folder)
{
    size_t size = strcmp(folder, "/") == 0 ? 0 : strlen(folder);
    return strncmp(path, folder, size) == 0 && path[size] == '/' && path[size + 1] != '\0' &&
           strchr(path + size + 1, '/') == NULL;
}

bool memory_parent_there(const struct memory_io *memory, const char *path)
{
    for (size_t i = 0; i < memory->name_count; i++) {
        if (memory->names[i].is_dir && memory_within(path, memory->names[i].path))
            return true;
    }
    return false;
}

struct change *memory_record(struct memory_io *memory, enum change_kind kind, const char *path,
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

struct change *memory_record_write(struct memory_io *memory, size_t inode, const void *data,
                                   size_t size, uint64_t at)
{
    struct change *change = memory_record(memory, WRITE, NULL, NULL, inode);
    change->at = at;
    change->size = size;
    change->data = malloc(size + 1);
    CHECK(change->data != NULL);
    memcpy(change->data, data, size);
    return change;
}

/* ---- the changes themselves; used by the calls and by a replay ---- */

void memory_add_name(struct memory_io *memory, const char *path, bool is_dir, size_t inode)
{
    memory->names = grow(memory->names, memory->name_count, sizeof(*memory->names));
    struct name *name = &memory->names[memory->name_count++];
    (void)snprintf(name->path, sizeof(name->path), "%s", path);
    name->is_dir = is_dir;
    name->inode = inode;
}

void memory_drop_name(struct memory_io *memory, struct name *name)
{
    *name = memory->names[--memory->name_count];
}

size_t memory_add_inode(struct memory_io *memory)
{
    memory->inodes = grow(memory->inodes, memory->inode_count, sizeof(*memory->inodes));
    memory->inodes[memory->inode_count] = (struct inode){ 0 };
    return memory->inode_count++;
}

void memory_write_bytes(struct inode *inode, const void *data, size_t size, uint64_t at)
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

void memory_rename_within(struct memory_io *memory, const char *from, const char *to)
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
    struct name *name = memory_find(memory, path);
    if (create && name != NULL)
        return ST_EXISTS;
    if (create ? !memory_parent_there(memory, path) : name == NULL)
        return ST_NOT_FOUND;
    if (name != NULL && name->is_dir)
        return ST_IO;
    size_t fd = 0;
    while (fd < FILES_OPEN_MAX && memory->open[fd] != 0)
        fd++;
    CHECK(fd < FILES_OPEN_MAX);
    size_t inode = create ? memory_add_inode(memory) : name->inode;
    if (create) {
        memory_add_name(memory, path, false, inode);
        (void)memory_record(memory, CREATE, path, NULL, inode);
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
    memory_write_bytes(&memory->inodes[inode], data, now, at);
    (void)memory_record_write(memory, inode, data, now, at);
    *out_size = now;
    return ST_OK;
}

static enum status memory_fsync(void *self, int fd)
{
    struct memory_io *memory = self;
    enum status st = strike(memory, FSYNC);
    if (st == ST_OK)
        (void)memory_record(memory, FSYNC, NULL, NULL, inode_of(memory, fd));
    return st;
}

static enum status memory_fsync_dir(void *self, const char *path)
{
    struct memory_io *memory = self;
    enum status st = strike(memory, FSYNC);
    if (st != ST_OK)
        return st;
    const struct name *name = memory_find(memory, path);
    if (name == NULL || !name->is_dir)
        return ST_NOT_FOUND;
    (void)memory_record(memory, FSYNC_DIR, path, NULL, 0);
    return ST_OK;
}

static enum status memory_mkdir(void *self, const char *path)
{
    struct memory_io *memory = self;
    enum status st = strike(memory, MKDIR);
    if (st != ST_OK)
        return st;
    if (memory_find(memory, path) != NULL)
        return ST_EXISTS;
    if (!memory_parent_there(memory, path))
        return ST_NOT_FOUND;
    memory_add_name(memory, path, true, 0);
    (void)memory_record(memory, MKDIR, path, NULL, 0);
    return ST_OK;
}

static enum status memory_link(void *self, const char *from, const char *to)
{
    struct memory_io *memory = self;
    enum status st = strike(memory, LINK);
    if (st != ST_OK)
        return st;
    const struct name *name = memory_find(memory, from);
    if (name == NULL || !memory_parent_there(memory, to))
        return ST_NOT_FOUND;
    if (memory_find(memory, to) != NULL)
        return ST_EXISTS;
    size_t inode = name->inode;
    memory_add_name(memory, to, false, inode);
    (void)memory_record(memory, LINK, from, to, inode);
    return ST_OK;
}

static enum status memory_rename(void *self, const char *from, const char *to)
{
    struct memory_io *memory = self;
    enum status st = strike(memory, RENAME);
    if (st != ST_OK)
        return st;
    if (memory_find(memory, from) == NULL || !memory_parent_there(memory, to))
        return ST_NOT_FOUND;
    CHECK(memory_find(memory, to) == NULL); /* no test needs a rename over something */
    memory_rename_within(memory, from, to);
    (void)memory_record(memory, RENAME, from, to, 0);
    return ST_OK;
}

static enum status memory_unlink(void *self, const char *path)
{
    struct memory_io *memory = self;
    enum status st = strike(memory, UNLINK);
    if (st != ST_OK)
        return st;
    struct name *name = memory_find(memory, path);
    if (name == NULL)
        return ST_NOT_FOUND;
    if (name->is_dir)
        return ST_IO;
    memory_drop_name(memory, name);
    (void)memory_record(memory, UNLINK, path, NULL, 0);
    return ST_OK;
}

bool memory_empty(const struct memory_io *memory, const char *path)
{
    for (size_t i = 0; i < memory->name_count; i++) {
        if (memory_within(memory->names[i].path, path))
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
    struct name *name = memory_find(memory, path);
    if (name == NULL)
        return ST_NOT_FOUND;
    if (!name->is_dir || !memory_empty(memory, path))
        return ST_IO;
    memory_drop_name(memory, name);
    (void)memory_record(memory, RMDIR, path, NULL, 0);
    return ST_OK;
}

static enum status memory_stat(void *self, const char *path, struct io_stat *out)
{
    struct memory_io *memory = self;
    enum status st = strike(memory, FSYNC);
    if (st != ST_OK)
        return st;
    const struct name *name = memory_find(memory, path);
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
    const struct name *folder = memory_find(memory, path);
    if (folder == NULL)
        return ST_NOT_FOUND;
    if (!folder->is_dir)
        return ST_IO;
    for (size_t i = 0; i < memory->name_count; i++) {
        const char *name = memory->names[i].path;
        if (memory_within(name, path) && !fn(arg, strrchr(name, '/') + 1))
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
    memory_add_name(memory, "/", true, 0);
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
    const struct name *name = memory_find(memory, path);
    if (name == NULL || name->is_dir)
        return NULL;
    *out_size = memory->inodes[name->inode].size;
    return memory->inodes[name->inode].data;
}

void memory_io_put(struct memory_io *memory, const char *path, const void *data, size_t size)
{
    struct name *name = memory_find(memory, path);
    if (name == NULL) {
        size_t inode = memory_add_inode(memory);
        memory_add_name(memory, path, false, inode);
        name = memory_find(memory, path);
    }
    struct inode *inode = &memory->inodes[name->inode];
    inode->size = 0;
    if (size > 0)
        memory_write_bytes(inode, data, size, 0);
}

bool memory_io_has(const struct memory_io *memory, const char *path)
{
    return memory_find(memory, path) != NULL;
}

size_t memory_io_changes(const struct memory_io *memory)
{
    return memory->change_count;
}
