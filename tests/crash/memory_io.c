#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "tests/crash/memory_internal.h"

enum call {
    CALL_LOOK, /* open to read, stat, list */
    CALL_READ,
    CALL_WRITE,
    CALL_SYNC,
    CALL_CLOSE,
    CALL_MAKE, /* a name: create, mkdir, link */
    CALL_MOVE, /* or take one away: unlink, rmdir, rename */
};

/* ---- the record ---- */

struct change *memory_record(struct memory_io *memory, enum change_kind kind, size_t inode)
{
    if (memory->change_count == memory->change_room) {
        memory->change_room = memory->change_room == 0 ? 32 : 2 * memory->change_room;
        memory->changes = realloc(memory->changes, memory->change_room * sizeof(*memory->changes));
        CHECK(memory->changes != NULL);
    }
    struct change *change = &memory->changes[memory->change_count++];
    *change = (struct change){ .kind = kind, .inode = inode };
    return change;
}

void memory_record_data(struct memory_io *memory, size_t inode, const void *data, size_t size,
                        uint64_t at)
{
    struct change *change = memory_record(memory, CHANGE_DATA, inode);
    change->at = at;
    change->size = size;
    change->data = malloc(size + 1);
    CHECK(change->data != NULL);
    memcpy(change->data, data, size);
}

/* A name's value changes, now and in the record. */
static void set_name(struct memory_io *memory, size_t dir, const char *name, size_t value)
{
    CHECK(strlen(name) < NAME_MAX_SIZE);
    tree_set(&memory->tree, dir, name, value);
    if (!memory->recording)
        return;
    struct change *change = memory_record(memory, CHANGE_NAME, dir);
    memcpy(change->name, name, strlen(name) + 1);
    change->value = value;
}

static void write_bytes(struct memory_io *memory, size_t inode, const void *data, size_t size,
                        uint64_t at)
{
    tree_write(&memory->tree, inode, data, size, at);
    if (memory->recording)
        memory_record_data(memory, inode, data, size, at);
}

static enum status synced(struct memory_io *memory, size_t inode, enum status st)
{
    if (memory->recording && st != ST_CLOSED)
        memory_record(memory, CHANGE_SYNC, inode)->failed = st != ST_OK;
    return st;
}

/* ---- the table ---- */

static struct memory_io *enter(void *self)
{
    struct memory_io *memory = self;
    CHECK(pthread_mutex_lock(&memory->lock) == 0);
    return memory;
}

static void leave(struct memory_io *const *memory)
{
    CHECK(pthread_mutex_unlock(&(*memory)->lock) == 0);
}

#define auto_leave __attribute__((cleanup(leave)))

static bool needs_room(enum call call)
{
    return call == CALL_MAKE || call == CALL_WRITE;
}

static bool armed(const struct memory_io *memory, enum memory_io_fault fault)
{
    return memory->fault == fault && memory->nth != 0 && memory->calls == memory->nth;
}

/* Counts the call; what it must fail with, or ST_OK. */
static enum status strike(struct memory_io *memory, enum call call)
{
    memory->calls++;
    bool now = memory->nth != 0 && memory->calls == memory->nth;
    bool since = memory->nth != 0 && memory->calls >= memory->nth;
    bool transfers = call == CALL_READ || call == CALL_WRITE;
    switch (memory->fault) {
    case MEMORY_IO_EIO:
        return now ? ST_IO : ST_OK;
    case MEMORY_IO_FULL:
        return since && needs_room(call) ? ST_FULL : ST_OK;
    case MEMORY_IO_FULL_ONCE:
        return now && (needs_room(call) || call == CALL_SYNC) ? ST_FULL : ST_OK;
    case MEMORY_IO_AGAIN:
        return now && transfers ? ST_AGAIN : ST_OK;
    case MEMORY_IO_INTERRUPT:
        return now ? ST_AGAIN : ST_OK;
    case MEMORY_IO_READ_ONLY:
        return since && (needs_room(call) || call == CALL_MOVE) ? ST_REFUSED : ST_OK;
    case MEMORY_IO_DEAD:
        return since ? ST_CLOSED : ST_OK;
    case MEMORY_IO_NONE:
    case MEMORY_IO_SHORT:
    case MEMORY_IO_TORN:
    case MEMORY_IO_FAULTS:
        break;
    }
    return ST_OK;
}

static size_t transfer(const struct memory_io *memory, size_t size)
{
    return armed(memory, MEMORY_IO_SHORT) && size > 1 ? 1 : size;
}

static enum status memory_open(void *self, const char *path, int flags, int *out_fd)
{
    auto_leave struct memory_io *memory = enter(self);
    bool create = (flags & IO_CREATE_NEW) != 0;
    enum status st = strike(memory, create ? CALL_MAKE : CALL_LOOK);
    if (st != ST_OK)
        return st;
    size_t inode = tree_find(&memory->tree, path);
    if (create && inode != NO_INODE)
        return ST_EXISTS;
    const char *name = NULL;
    size_t dir = tree_find_parent(&memory->tree, path, &name);
    if (create ? dir == NO_INODE : inode == NO_INODE)
        return ST_NOT_FOUND;
    if (!create && memory->tree.inodes[inode].is_dir)
        return ST_IO;
    size_t fd = 0;
    while (fd < FILES_OPEN_MAX && memory->open[fd] != 0)
        fd++;
    CHECK(fd < FILES_OPEN_MAX);
    if (create) {
        inode = tree_add(&memory->tree, false);
        set_name(memory, dir, name, inode);
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
    auto_leave struct memory_io *memory = enter(self);
    enum status st = strike(memory, CALL_CLOSE);
    (void)inode_of(memory, fd);
    memory->open[fd] = 0; /* closed even when it says it failed, as Linux does */
    return st;
}

static enum status memory_pread(void *self, int fd, void *data, size_t size, uint64_t at,
                                size_t *out_size)
{
    auto_leave struct memory_io *memory = enter(self);
    enum status st = strike(memory, CALL_READ);
    if (st != ST_OK)
        return st;
    const struct content *content = memory->tree.inodes[inode_of(memory, fd)].content;
    size_t left = content != NULL && at < content->size ? content->size - (size_t)at : 0;
    size_t now = transfer(memory, size < left ? size : left);
    if (now > 0)
        memcpy(data, content->bytes + at, now);
    *out_size = now;
    return ST_OK;
}

static enum status memory_pwrite(void *self, int fd, const void *data, size_t size, uint64_t at,
                                 size_t *out_size)
{
    auto_leave struct memory_io *memory = enter(self);
    enum status st = strike(memory, CALL_WRITE);
    size_t inode = inode_of(memory, fd), now = transfer(memory, size);
    if (memory->write_max != 0 && now > memory->write_max)
        now = memory->write_max;
    if (st == ST_OK && armed(memory, MEMORY_IO_TORN)) {
        st = ST_IO;
        now = size / 2;
    } else if (st != ST_OK) {
        now = 0;
    }
    if (now > 0)
        write_bytes(memory, inode, data, now, at);
    if (st == ST_OK)
        *out_size = now;
    return st;
}

static enum status memory_fsync(void *self, int fd)
{
    auto_leave struct memory_io *memory = enter(self);
    enum status st = strike(memory, CALL_SYNC);
    return synced(memory, inode_of(memory, fd), st);
}

static enum status memory_fsync_dir(void *self, const char *path)
{
    auto_leave struct memory_io *memory = enter(self);
    enum status st = strike(memory, CALL_SYNC);
    size_t inode = tree_find(&memory->tree, path);
    if (inode == NO_INODE || !memory->tree.inodes[inode].is_dir)
        return st != ST_OK ? st : ST_NOT_FOUND;
    return synced(memory, inode, st);
}

/* The folder and the name for something new. */
static enum status place_for(const struct memory_io *memory, const char *path, size_t *out_dir,
                             const char **out_name)
{
    size_t dir = tree_find_parent(&memory->tree, path, out_name);
    if (dir == NO_INODE)
        return ST_NOT_FOUND;
    if (tree_get(&memory->tree, dir, *out_name) != NO_INODE)
        return ST_EXISTS;
    *out_dir = dir;
    return ST_OK;
}

static enum status memory_mkdir(void *self, const char *path)
{
    auto_leave struct memory_io *memory = enter(self);
    size_t dir = 0;
    const char *name = NULL;
    enum status st = strike(memory, CALL_MAKE);
    if (st == ST_OK)
        st = place_for(memory, path, &dir, &name);
    if (st == ST_OK)
        set_name(memory, dir, name, tree_add(&memory->tree, true));
    return st;
}

static enum status memory_link(void *self, const char *from, const char *to)
{
    auto_leave struct memory_io *memory = enter(self);
    size_t dir = 0, inode = tree_find(&memory->tree, from);
    const char *name = NULL;
    enum status st = strike(memory, CALL_MAKE);
    if (st == ST_OK && inode == NO_INODE)
        st = ST_NOT_FOUND;
    if (st == ST_OK && memory->tree.inodes[inode].is_dir)
        st = ST_REFUSED;
    if (st == ST_OK)
        st = place_for(memory, to, &dir, &name);
    if (st == ST_OK)
        set_name(memory, dir, name, inode);
    return st;
}

static enum status memory_rename(void *self, const char *from, const char *to)
{
    auto_leave struct memory_io *memory = enter(self);
    enum status st = strike(memory, CALL_MOVE);
    if (st != ST_OK)
        return st;
    const char *from_name = NULL, *to_name = NULL;
    size_t from_dir = tree_find_parent(&memory->tree, from, &from_name);
    size_t to_dir = tree_find_parent(&memory->tree, to, &to_name);
    size_t inode = tree_find(&memory->tree, from), old = tree_find(&memory->tree, to);
    if (inode == NO_INODE || to_dir == NO_INODE)
        return ST_NOT_FOUND;
    if (old != NO_INODE && (memory->tree.inodes[old].is_dir || memory->tree.inodes[inode].is_dir))
        return ST_EXISTS;
    set_name(memory, to_dir, to_name, inode);
    set_name(memory, from_dir, from_name, NO_INODE);
    return ST_OK;
}

/* unlink or rmdir */
static enum status take_name(struct memory_io *memory, const char *path, bool dir_wanted)
{
    const char *name = NULL;
    size_t inode = tree_find(&memory->tree, path);
    if (inode == NO_INODE)
        return ST_NOT_FOUND;
    const struct inode *it = &memory->tree.inodes[inode];
    if (it->is_dir != dir_wanted || it->entry_count > 0)
        return ST_IO;
    size_t dir = tree_find_parent(&memory->tree, path, &name);
    set_name(memory, dir, name, NO_INODE);
    return ST_OK;
}

static enum status memory_unlink(void *self, const char *path)
{
    auto_leave struct memory_io *memory = enter(self);
    enum status st = strike(memory, CALL_MOVE);
    return st == ST_OK ? take_name(memory, path, false) : st;
}

static enum status memory_rmdir(void *self, const char *path)
{
    auto_leave struct memory_io *memory = enter(self);
    enum status st = strike(memory, CALL_MOVE);
    return st == ST_OK ? take_name(memory, path, true) : st;
}

static enum status memory_stat(void *self, const char *path, struct io_stat *out)
{
    auto_leave struct memory_io *memory = enter(self);
    enum status st = strike(memory, CALL_LOOK);
    if (st != ST_OK)
        return st;
    size_t inode = tree_find(&memory->tree, path);
    if (inode == NO_INODE)
        return ST_NOT_FOUND;
    const struct inode *it = &memory->tree.inodes[inode];
    *out = (struct io_stat){ .is_dir = it->is_dir };
    if (!it->is_dir && it->content != NULL)
        out->size = it->content->size;
    return ST_OK;
}

static enum status copy_names(void *self, const char *path, struct entry **out, size_t *out_count)
{
    auto_leave struct memory_io *memory = enter(self);
    enum status st = strike(memory, CALL_LOOK);
    if (st != ST_OK)
        return st;
    size_t inode = tree_find(&memory->tree, path);
    if (inode == NO_INODE)
        return ST_NOT_FOUND;
    const struct inode *it = &memory->tree.inodes[inode];
    if (!it->is_dir)
        return ST_IO;
    *out = malloc((it->entry_count + 1) * sizeof(**out));
    CHECK(*out != NULL);
    if (it->entry_count > 0)
        memcpy(*out, it->entries, it->entry_count * sizeof(**out));
    *out_count = it->entry_count;
    return ST_OK;
}

static enum status memory_list(void *self, const char *path, io_name_fn fn, void *arg)
{
    auto_free struct entry *entries = NULL;
    size_t count = 0;
    enum status st = copy_names(self, path, &entries, &count);
    for (size_t i = 0; i < count && st == ST_OK; i++) { /* fn may call */
        if (!fn(arg, entries[i].name))
            break;
    }
    return st;
}

struct memory_io *memory_over(struct tree *tree)
{
    struct memory_io *memory = calloc(1, sizeof(*memory));
    CHECK(memory != NULL);
    CHECK(pthread_mutex_init(&memory->lock, NULL) == 0);
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
    memory->tree = *tree;
    *tree = (struct tree){ 0 };
    return memory;
}

struct memory_io *memory_io_new(void)
{
    struct tree tree;
    tree_init(&tree);
    struct memory_io *memory = memory_over(&tree);
    memory_io_record(memory);
    return memory;
}

struct memory_io *memory_io_clone(const struct memory_io *memory)
{
    struct tree tree;
    tree_clone(&memory->tree, &tree);
    return memory_over(&tree);
}

void memory_io_free(struct memory_io *memory)
{
    if (memory == NULL)
        return;
    tree_release(&memory->tree);
    tree_release(&memory->base);
    for (size_t i = 0; i < memory->change_count; i++)
        free(memory->changes[i].data);
    free(memory->changes);
    CHECK(pthread_mutex_destroy(&memory->lock) == 0);
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

void memory_io_limit_writes(struct memory_io *memory, size_t size_max)
{
    memory->write_max = size_max;
}

size_t memory_io_open_files(const struct memory_io *memory)
{
    size_t count = 0;
    for (size_t i = 0; i < FILES_OPEN_MAX; i++)
        count += memory->open[i] != 0;
    return count;
}

void memory_io_close_all(struct memory_io *memory)
{
    memset(memory->open, 0, sizeof(memory->open));
}

uint8_t *memory_io_bytes(struct memory_io *memory, const char *path, size_t *out_size)
{
    size_t inode = tree_find(&memory->tree, path);
    if (inode == NO_INODE || memory->tree.inodes[inode].is_dir)
        return NULL;
    struct content *content = tree_own(&memory->tree, inode, 0);
    *out_size = content->size;
    return content->bytes;
}

void memory_io_put(struct memory_io *memory, const char *path, const void *data, size_t size)
{
    const char *name = NULL;
    size_t first = memory->change_count, dir = tree_find_parent(&memory->tree, path, &name);
    CHECK(dir != NO_INODE);
    size_t inode = tree_add(&memory->tree, false);
    set_name(memory, dir, name, inode);
    if (size > 0)
        write_bytes(memory, inode, data, size, 0);
    for (size_t i = first; i < memory->change_count; i++)
        memory->changes[i].safe = true;
}

void memory_io_damage(struct memory_io *memory, const char *path, uint64_t at, uint8_t mask)
{
    size_t inode = tree_find(&memory->tree, path);
    CHECK(inode != NO_INODE);
    const struct content *content = memory->tree.inodes[inode].content;
    CHECK(content != NULL);
    CHECK(at < content->size);
    uint8_t byte = content->bytes[at] ^ mask;
    write_bytes(memory, inode, &byte, 1, at);
    if (memory->recording)
        memory->changes[memory->change_count - 1].safe = true;
}

bool memory_io_has(const struct memory_io *memory, const char *path)
{
    return tree_find(&memory->tree, path) != NO_INODE;
}

uint64_t memory_io_hash(struct memory_io *memory, const char *path)
{
    size_t inode = tree_find(&memory->tree, path);
    return inode == NO_INODE ? 0 : tree_hash(&memory->tree, inode);
}

size_t memory_io_changes(const struct memory_io *memory)
{
    return memory->change_count;
}

void memory_io_record(struct memory_io *memory)
{
    CHECK(memory->change_count == 0);
    tree_release(&memory->base);
    tree_clone(&memory->tree, &memory->base);
    memory->recording = true;
}
