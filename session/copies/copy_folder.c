#include "session/copies/copy_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/own/private.h"

/* A copy file by its name; what else lies in the folder is nobody's business. */
struct folder_entry {
    char path[LIMIT_PATH];
    uint32_t generation, rank;
};

struct folder_walk {
    const char *dir;
    DIR *stream;
};

static bool walk_open(struct folder_walk *walk, const char *dir)
{
    struct reason why;
    int fd = -1;
    *walk = (struct folder_walk){ .dir = dir };
    if (dir == NULL || private_folder(AT_FDCWD, dir, 0, &fd, NULL, &why) != ST_OK)
        return false; /* not there; or others could have put copies there */
    walk->stream = fdopendir(fd);
    if (walk->stream == NULL)
        (void)close(fd);
    return walk->stream != NULL;
}

static bool parse_name(const char *name, struct folder_entry *out)
{
    static const char *const before[3] = { "g", "-r", "-" };
    uint32_t numbers[3] = { 0, 0, 0 };
    for (int i = 0; i < 3; i++) {
        const size_t size = strlen(before[i]);
        char *end = NULL;
        if (strncmp(name, before[i], size) != 0 || name[size] < '0' || name[size] > '9')
            return false;
        const unsigned long long number = strtoull(name + size, &end, 10);
        if (number > UINT32_MAX)
            return false;
        numbers[i] = (uint32_t)number;
        name = end;
    }
    out->generation = numbers[0];
    out->rank = numbers[1];
    return strcmp(name, ".copy") == 0;
}

/* The next copy file; false: that was all, and the walk is closed. */
static bool walk_next(struct folder_walk *walk, struct folder_entry *out)
{
    const struct dirent *found = NULL;
    while ((found = readdir(walk->stream)) != NULL) {
        if (!parse_name(found->d_name, out))
            continue;
        const int length =
            snprintf(out->path, sizeof(out->path), "%s/%s", walk->dir, found->d_name);
        if (length > 0 && (size_t)length < sizeof(out->path))
            return true;
    }
    (void)closedir(walk->stream);
    return false;
}

static bool same_share(const struct session_copy *a, const struct session_copy *b)
{
    return a->generation == b->generation && a->rank == b->rank && a->size == b->size &&
           a->step == b->step;
}

static struct session_copy copy_of(const struct copy_view *view)
{
    return (struct session_copy){ .generation = (uint32_t)view->head->generation,
                                  .rank = view->head->rank,
                                  .size = view->head->size,
                                  .step = view->head->step,
                                  .bytes = view->size };
}

/* The name and the head must agree: a file that was moved is nobody's. */
static bool is_of(const struct copy_view *view, const struct folder_entry *entry, const char *job)
{
    return strcmp(view->head->job, job) == 0 && view->head->generation == entry->generation &&
           view->head->rank == entry->rank;
}

enum status copy_folder_list(const char *dir, const char *job, struct session_copy **out,
                             size_t *out_count)
{
    struct folder_walk walk;
    struct folder_entry entry;
    struct session_copy *list = calloc(SESSION_COPIES_MAX, sizeof(*list));
    size_t count = 0;
    if (list == NULL)
        return ST_NO_MEMORY;
    bool more = walk_open(&walk, dir);
    while (more && walk_next(&walk, &entry)) {
        struct copy_view view = { .size = 0 };
        if (count == SESSION_COPIES_MAX || copy_view_map(entry.path, &view) != ST_OK)
            continue; /* being written, or damaged: the store has an older state */
        bool wanted = is_of(&view, &entry, job);
        list[count] = copy_of(&view);
        for (size_t i = 0; wanted && i < count; i++)
            wanted = !same_share(&list[i], &list[count]);
        count += wanted;
        copy_view_unmap(&view);
    }
    *out = list;
    *out_count = count;
    return ST_OK;
}

static enum status find(const char *dir, const char *job, const struct session_copy *copy,
                        struct copy_view *out, char out_path[LIMIT_PATH])
{
    struct folder_walk walk;
    struct folder_entry entry;
    bool found = false;
    bool more = walk_open(&walk, dir);
    while (more && walk_next(&walk, &entry)) {
        struct copy_view view = { .size = 0 };
        if (found || entry.generation != copy->generation || entry.rank != copy->rank ||
            copy_view_map(entry.path, &view) != ST_OK)
            continue;
        const struct session_copy here = copy_of(&view);
        found = is_of(&view, &entry, job) && same_share(&here, copy);
        if (found) {
            *out = view;
            memcpy(out_path, entry.path, LIMIT_PATH);
        } else {
            copy_view_unmap(&view);
        }
    }
    return found ? ST_OK : ST_INCOMPLETE;
}

enum status copy_folder_find(const char *dir, const char *job, const struct session_copy *copy,
                             struct copy_view *out)
{
    char path[LIMIT_PATH];
    return find(dir, job, copy, out, path);
}

enum status copy_folder_path(const char *dir, const char *job, const struct session_copy *copy,
                             char out[LIMIT_PATH])
{
    struct copy_view view = { .size = 0 };
    const enum status st = find(dir, job, copy, &view, out);
    if (st == ST_OK)
        copy_view_unmap(&view);
    return st;
}

/* True if the file belongs to an older generation and isn't a copy of the step `kept`. A file that
 * can't be read now may be one: it counts as old only if it is certainly not complete. */
static bool is_old(const struct folder_entry *entry, uint32_t generation, uint32_t rank,
                   const struct session_copy *kept)
{
    if (entry->generation >= generation || (rank != SESSION_RANK_ANY && entry->rank != rank))
        return false;
    struct copy_view view = { .size = 0 };
    if (kept == NULL)
        return true;
    const enum status st = copy_view_map(entry->path, &view);
    if (st != ST_OK)
        return status_scope(st) == SCOPE_CHECKPOINT || st == ST_VERSION;
    const bool old = view.head->generation != kept->generation || view.head->step != kept->step;
    copy_view_unmap(&view);
    return old;
}

void copy_folder_clean(const char *dir, uint32_t generation, uint32_t rank,
                       const struct session_copy *kept)
{
    struct folder_walk walk;
    struct folder_entry entry;
    bool more = walk_open(&walk, dir);
    while (more && walk_next(&walk, &entry)) {
        if (is_old(&entry, generation, rank, kept))
            (void)unlink(entry.path);
    }
}

bool copy_folder_reuse(const char *dir, uint32_t generation, uint32_t rank,
                       const struct session_copy *kept, size_t size, const char *path)
{
    struct folder_walk walk;
    struct folder_entry entry;
    struct stat about;
    bool done = false;
    bool more = walk_open(&walk, dir);
    while (more && walk_next(&walk, &entry)) {
        if (!done && is_old(&entry, generation, rank, kept) && stat(entry.path, &about) == 0 &&
            about.st_size == (off_t)size)
            done = rename(entry.path, path) == 0;
    }
    return done;
}

uint64_t copy_folder_bytes(const char *dir)
{
    struct folder_walk walk;
    struct folder_entry entry;
    struct stat about;
    uint64_t bytes = 0;
    bool more = walk_open(&walk, dir);
    while (more && walk_next(&walk, &entry)) {
        if (stat(entry.path, &about) == 0)
            bytes += (uint64_t)about.st_blocks * 512;
    }
    return bytes;
}

void copy_folder_forget(const char *dir, uint32_t generation, uint32_t rank)
{
    struct folder_walk walk;
    struct folder_entry entry;
    bool more = walk_open(&walk, dir);
    while (more && walk_next(&walk, &entry)) {
        if (entry.generation == generation && entry.rank == rank)
            (void)unlink(entry.path);
    }
}
