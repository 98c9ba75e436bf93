/*
 * What the table's calls and the building of a crashed file system share.
 */
#pragma once

#include "common/limits.h"
#include "tests/crash/memory_io.h"

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

struct name *memory_find(const struct memory_io *memory, const char *path);
bool memory_within(const char *path, const char *folder); /* directly */
bool memory_parent_there(const struct memory_io *memory, const char *path);
bool memory_empty(const struct memory_io *memory, const char *path);

struct change *memory_record(struct memory_io *memory, enum change_kind kind, const char *path,
                             const char *to, size_t inode);
struct change *memory_record_write(struct memory_io *memory, size_t inode, const void *data,
                                   size_t size, uint64_t at);

/* The changes themselves, unrecorded. */
void memory_add_name(struct memory_io *memory, const char *path, bool is_dir, size_t inode);
void memory_drop_name(struct memory_io *memory, struct name *name);
size_t memory_add_inode(struct memory_io *memory);
void memory_write_bytes(struct inode *inode, const void *data, size_t size, uint64_t at);
void memory_rename_within(struct memory_io *memory, const char *from, const char *to);
