/* Folders and files in memory, as cheap to copy as to throw away. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/hash.h"
#include "common/check.h"
#include "tests/crash/memory_internal.h"

static void *grown(void *array, size_t *room, size_t count, size_t size)
{
    if (count < *room)
        return array;
    *room = *room == 0 ? 8 : 2 * *room;
    void *more = realloc(array, *room * size);
    CHECK(more != NULL);
    return more;
}

static void drop(struct content *content)
{
    if (content != NULL && --content->references == 0)
        free(content);
}

void tree_init(struct tree *tree)
{
    *tree = (struct tree){ 0 };
    (void)tree_add(tree, true);
}

void tree_release(struct tree *tree)
{
    for (size_t i = 0; i < tree->count; i++) {
        drop(tree->inodes[i].content);
        free(tree->inodes[i].entries);
    }
    free(tree->inodes);
    *tree = (struct tree){ 0 };
}

void tree_clone(const struct tree *tree, struct tree *out)
{
    *out = (struct tree){ .count = tree->count, .room = tree->count };
    out->inodes = calloc(tree->count, sizeof(*out->inodes));
    CHECK(out->inodes != NULL);
    for (size_t i = 0; i < tree->count; i++) {
        const struct inode *from = &tree->inodes[i];
        struct inode *to = &out->inodes[i];
        to->is_dir = from->is_dir;
        to->content = from->content;
        if (to->content != NULL)
            to->content->references++;
        if (from->entry_count == 0)
            continue;
        to->entry_count = to->entry_room = from->entry_count;
        to->entries = malloc(from->entry_count * sizeof(*to->entries));
        CHECK(to->entries != NULL);
        memcpy(to->entries, from->entries, from->entry_count * sizeof(*to->entries));
    }
}

size_t tree_add(struct tree *tree, bool is_dir)
{
    tree->inodes = grown(tree->inodes, &tree->room, tree->count, sizeof(*tree->inodes));
    tree->inodes[tree->count] = (struct inode){ .is_dir = is_dir };
    return tree->count++;
}

static struct entry *entry_of(const struct inode *dir, const char *name, size_t size)
{
    for (size_t i = 0; i < dir->entry_count; i++) {
        struct entry *entry = &dir->entries[i];
        if (strncmp(entry->name, name, size) == 0 && entry->name[size] == '\0')
            return entry;
    }
    return NULL;
}

/* Follows the first `size` bytes of a path. */
static size_t walk(const struct tree *tree, const char *path, size_t size)
{
    size_t inode = 0;
    const char *end = path + size;
    while (path < end) {
        if (*path == '/') {
            path++;
            continue;
        }
        size_t part = strcspn(path, "/");
        if (part > (size_t)(end - path))
            part = (size_t)(end - path);
        const struct inode *dir = &tree->inodes[inode];
        const struct entry *entry = dir->is_dir ? entry_of(dir, path, part) : NULL;
        if (entry == NULL)
            return NO_INODE;
        inode = entry->inode;
        path += part;
    }
    return inode;
}

size_t tree_find(const struct tree *tree, const char *path)
{
    return walk(tree, path, strlen(path));
}

size_t tree_find_parent(const struct tree *tree, const char *path, const char **out_name)
{
    const char *slash = strrchr(path, '/');
    CHECK(slash != NULL); /* tests use absolute paths */
    *out_name = slash + 1;
    size_t dir = walk(tree, path, (size_t)(slash - path));
    return dir != NO_INODE && tree->inodes[dir].is_dir ? dir : NO_INODE;
}

size_t tree_get(const struct tree *tree, size_t dir, const char *name)
{
    const struct entry *entry = entry_of(&tree->inodes[dir], name, strlen(name));
    return entry == NULL ? NO_INODE : entry->inode;
}

void tree_set(struct tree *tree, size_t dir, const char *name, size_t inode)
{
    struct inode *folder = &tree->inodes[dir];
    struct entry *entry = entry_of(folder, name, strlen(name));
    if (inode == NO_INODE) {
        if (entry != NULL)
            *entry = folder->entries[--folder->entry_count];
        return;
    }
    if (entry == NULL) {
        folder->entries = grown(folder->entries, &folder->entry_room, folder->entry_count,
                                sizeof(*folder->entries));
        entry = &folder->entries[folder->entry_count++];
        int size = snprintf(entry->name, sizeof(entry->name), "%s", name);
        CHECK(size > 0);
        CHECK((size_t)size < sizeof(entry->name));
    }
    entry->inode = inode;
}

struct content *tree_own(struct tree *tree, size_t inode, size_t size)
{
    struct content *old = tree->inodes[inode].content;
    if (old != NULL && size < old->size)
        size = old->size;
    if (old == NULL || old->references > 1 || size > old->room) {
        size_t room = old != NULL && size > old->size ? size + size / 2 : size;
        struct content *content = malloc(sizeof(*content) + room + 1);
        CHECK(content != NULL);
        *content = (struct content){ .references = 1, .room = room };
        content->size = old == NULL ? 0 : old->size;
        if (content->size > 0)
            memcpy(content->bytes, old->bytes, content->size);
        drop(old);
        tree->inodes[inode].content = content;
        old = content;
    }
    memset(old->bytes + old->size, 0, size - old->size);
    old->size = size;
    old->hashed = false;
    return old;
}

void tree_write(struct tree *tree, size_t inode, const void *data, size_t size, uint64_t at)
{
    struct content *content = tree_own(tree, inode, (size_t)at + size);
    memcpy(content->bytes + at, data, size);
}

static uint64_t content_hash(struct content *content)
{
    if (content == NULL)
        return 1;
    if (!content->hashed) {
        content->hash = ckpt_check_of(content->bytes, content->size) ^ content->size;
        content->hashed = true;
    }
    return content->hash;
}

uint64_t tree_hash(struct tree *tree, size_t inode)
{
    const struct inode *it = &tree->inodes[inode];
    if (!it->is_dir)
        return content_hash(it->content);
    uint64_t sum = 7;
    for (size_t i = 0; i < it->entry_count; i++) { /* in any order */
        uint64_t pair[2] = { ckpt_check_of(it->entries[i].name, strlen(it->entries[i].name)),
                             tree_hash(tree, it->entries[i].inode) };
        sum += ckpt_check_of(pair, sizeof(pair));
    }
    return sum;
}
