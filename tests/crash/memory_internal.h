/*
 * What the table's calls, the tree of files and the building of a crashed file system share.
 */
#pragma once

#include <pthread.h>

#include "tests/crash/memory_io.h"

#define FILES_OPEN_MAX 64
#define NAME_MAX_SIZE  80
#define NO_INODE       SIZE_MAX /* as the value of a name: there is none */

/* ---- a tree of folders and files; the contents of files are shared until they are written to ----
 */

struct content {
    size_t references, size, room;
    uint64_t hash;
    bool hashed;
    uint8_t bytes[];
};

struct entry {
    char name[NAME_MAX_SIZE];
    size_t inode;
};

struct inode {
    bool is_dir;
    struct content *content; /* of a file; NULL: empty */
    struct entry *entries;   /* of a folder */
    size_t entry_count, entry_room;
};

struct tree {
    struct inode *inodes; /* number 0 is "/" */
    size_t count, room;
};

void tree_init(struct tree *tree);
void tree_release(struct tree *tree);
void tree_clone(const struct tree *tree, struct tree *out);
size_t tree_add(struct tree *tree, bool is_dir);
/* NO_INODE: there is nothing. */
size_t tree_find(const struct tree *tree, const char *path);
/* The folder that path's last name lies in, and that name. */
size_t tree_find_parent(const struct tree *tree, const char *path, const char **out_name);
size_t tree_get(const struct tree *tree, size_t dir, const char *name);
void tree_set(struct tree *tree, size_t dir, const char *name, size_t inode);
void tree_write(struct tree *tree, size_t inode, const void *data, size_t size, uint64_t at);
/* The file's content, of this tree alone. */
struct content *tree_own(struct tree *tree, size_t inode, size_t size);
/* Hash of everything that can be reached from inode: names and bytes, whatever their numbers. */
uint64_t tree_hash(struct tree *tree, size_t inode);

/* ---- the record ---- */

enum change_kind {
    CHANGE_NAME, /* name in folder `inode` becomes value */
    CHANGE_DATA, /* bytes of file `inode` */
    CHANGE_SYNC, /* fsync of a file or folder */
};

struct change {
    enum change_kind kind;
    bool safe;   /* is on the medium, whatever follows */
    bool failed; /* a sync that returned an error, and left what it should have written clean */
    bool lie;    /* a sync that did nothing: for tests of the test */
    size_t inode;
    char name[NAME_MAX_SIZE];
    size_t value;
    uint64_t at;
    uint8_t *data;
    size_t size;
};

struct memory_io {
    struct io io;
    pthread_mutex_t lock;
    struct tree tree, base;      /* now, and when the record began */
    size_t open[FILES_OPEN_MAX]; /* inode + 1; 0: free */
    bool recording;
    struct change *changes;
    size_t change_count, change_room;
    enum memory_io_fault fault;
    uint64_t nth, calls;
    size_t write_max; /* 0: none */
};

/* A table over a tree, which it takes. */
struct memory_io *memory_over(struct tree *tree);
struct change *memory_record(struct memory_io *memory, enum change_kind kind, size_t inode);
void memory_record_data(struct memory_io *memory, size_t inode, const void *data, size_t size,
                        uint64_t at);
