#include "agent/copies.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/ref.h"

/* Ours alone: others' files there could be restored from. */
static enum status make_private(const char *path)
{
    struct stat about;
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return status_from_errno(errno);
    if (lstat(path, &about) != 0)
        return status_from_errno(errno);
    const bool ours = S_ISDIR(about.st_mode) && about.st_uid == geteuid() &&
                      (about.st_mode & (S_IRWXG | S_IRWXO)) == 0;
    return ours ? ST_OK : ST_REFUSED;
}

static enum status join_path(char out[LIMIT_PATH], const char *folder, const char *name)
{
    const int length = snprintf(out, LIMIT_PATH, "%s/%s", folder, name);
    return length > 0 && length < LIMIT_PATH ? ST_OK : ST_FULL;
}

void copies_open(struct copies *copies, const struct paths *paths, const char *node)
{
    enum status st = paths_copies(paths, copies->base, sizeof(copies->base));
    if (st == ST_OK)
        st = join_path(copies->root, copies->base, node);
    if (st != ST_OK)
        copies->root[0] = '\0';
}

enum status copies_folder(const struct copies *copies, const char *job, char out[LIMIT_PATH])
{
    if (copies->root[0] == '\0')
        return ST_FULL;
    enum status st = join_path(out, copies->root, job);
    if (st == ST_OK)
        st = make_private(copies->base);
    if (st == ST_OK)
        st = make_private(copies->root);
    return st == ST_OK ? make_private(out) : st;
}

size_t copies_jobs(const struct copies *copies, char ***out)
{
    DIR *stream = copies->root[0] != '\0' ? opendir(copies->root) : NULL;
    *out = NULL;
    if (stream == NULL)
        return 0;
    /* Pointers, then room for the names. */
    char **list = calloc(COPIES_JOBS_MAX, sizeof(char *) + LIMIT_NAME);
    size_t count = 0;
    const struct dirent *found = NULL;
    while (list != NULL && count < COPIES_JOBS_MAX && (found = readdir(stream)) != NULL) {
        if (!ref_name_is_safe(found->d_name))
            continue;
        list[count] = (char *)(list + COPIES_JOBS_MAX) + count * LIMIT_NAME;
        memcpy(list[count], found->d_name, strlen(found->d_name) + 1); /* a safe name fits */
        count++;
    }
    (void)closedir(stream);
    *out = list;
    return count;
}

/* Files, and others' empty folders, too. One that stays keeps none of the rest. */
static void remove_path(const char *path, const struct log *log)
{
    if (remove(path) == 0 || errno == ENOENT)
        return;
    LOG_WARN(log, "%s: not removed, ignoring: %s", path, status_string(status_from_errno(errno)));
}

void copies_forget(const struct copies *copies, const char *job, const struct log *log)
{
    char folder[LIMIT_PATH], path[LIMIT_PATH];
    if (copies->root[0] == '\0' || !ref_name_is_safe(job) ||
        join_path(folder, copies->root, job) != ST_OK)
        return;
    DIR *stream = opendir(folder);
    if (stream == NULL)
        return; /* never made, or gone already */
    const struct dirent *found = NULL;
    while ((found = readdir(stream)) != NULL) {
        const bool is_link = strcmp(found->d_name, ".") == 0 || strcmp(found->d_name, "..") == 0;
        if (!is_link && join_path(path, folder, found->d_name) == ST_OK)
            remove_path(path, log);
    }
    (void)closedir(stream);
    remove_path(folder,
                log); /* if it stays, the next hello lists it, and it is ordered away anew */
    (void)rmdir(copies->root); /* if that was the last, of this node and of all */
    (void)rmdir(copies->base);
}
