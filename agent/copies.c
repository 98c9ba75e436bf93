#include "agent/copies.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "agent/ref.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "common/job_id.h"
#include "common/own/private.h"

/* ---- where they lie ---- */

static void say_trouble(struct copies *copies, const char *first, const char *then)
{
    reason_set(&copies->trouble, "%.300s: %s", first, then);
    LOG_WARN(copies->log, "%s", copies->trouble.text);
}

/* A base of random digits, from now on. false: it can't be had, or not be kept. */
static bool move_base(struct copies *copies, const struct reason *why)
{
    uint64_t digits = 0;
    char base[LIMIT_PATH];
    const char *slash = strrchr(copies->base, '/');
    if (copies->kept[0] == '\0' || slash == NULL ||
        getrandom(&digits, sizeof(digits), 0) != (ssize_t)sizeof(digits))
        return false;
    const int length =
        snprintf(base, sizeof(base), "%.*s/cairn-%u-%016" PRIx64, (int)(slash - copies->base),
                 copies->base, (unsigned)geteuid(), digits);
    if (length < 0 || (size_t)length >= sizeof(base) ||
        io_replace_private(io_system(), copies->kept, base, strlen(base)) != ST_OK)
        return false;
    char then[LIMIT_PATH + 64];
    (void)snprintf(then, sizeof(then), "copies in memory lie in %s", base);
    say_trouble(copies, why->text, then);
    memcpy(copies->base, base, sizeof(base));
    return true;
}

/* The base, looked at. flags: PRIVATE_MAKE or 0. */
static enum status open_base(struct copies *copies, unsigned flags, int *out_fd)
{
    struct reason why = { "" };
    if (copies->base[0] == '\0')
        return ST_FULL;
    enum status st = private_folder(AT_FDCWD, copies->base, flags, out_fd, NULL, &why);
    if (st == ST_REFUSED && move_base(copies, &why))
        st = private_folder(AT_FDCWD, copies->base, flags, out_fd, NULL, &why);
    if (st == ST_REFUSED)
        say_trouble(copies, why.text, "no copies in memory outlive a worker here");
    return st;
}

/* The base of before that the home keeps. */
static void take_kept(struct copies *copies)
{
    auto_free char *text = NULL;
    size_t size = 0;
    struct reason why = { "" };
    if (private_read(copies->kept, LIMIT_PATH - 1, &text, &size, &why) == ST_OK && text[0] == '/')
        (void)snprintf(copies->base, sizeof(copies->base), "%s", text);
}

void copies_open(struct copies *copies, const struct paths *paths, const char *node,
                 const struct log *log)
{
    const char *given = getenv("CAIRN_COPIES");
    *copies = (struct copies){ .log = log };
    (void)snprintf(copies->node, sizeof(copies->node), "%s", node);
    if (paths_copies(paths, copies->base, sizeof(copies->base)) != ST_OK)
        copies->base[0] = '\0';
    if ((given == NULL || given[0] != '/') &&
        paths_join(paths, copies->kept, sizeof(copies->kept), "agent/%s.copies", node) != ST_OK)
        copies->kept[0] = '\0';
    if (copies->kept[0] != '\0')
        take_kept(copies);
    auto_close int base = -1;
    const enum status st = open_base(copies, 0, &base);
    if (st != ST_OK && st != ST_NOT_FOUND && st != ST_REFUSED) /* that has been told */
        LOG_WARN(log, "%s: %s, ignoring", copies->base, status_string(st));
}

enum status copies_folder(struct copies *copies, const char *job, char out[LIMIT_PATH])
{
    struct reason why = { "" };
    auto_close int base = -1, node = -1, folder = -1;
    enum status st = open_base(copies, PRIVATE_MAKE, &base);
    if (st == ST_OK)
        st = private_folder(base, copies->node, PRIVATE_MAKE, &node, NULL, &why);
    if (st == ST_OK)
        st = private_folder(node, job, PRIVATE_MAKE, &folder, NULL, &why);
    if (st == ST_REFUSED && why.text[0] != '\0')
        LOG_WARN(copies->log, "in %s: %s", copies->base, why.text);
    if (st != ST_OK)
        return st;
    const int length = snprintf(out, LIMIT_PATH, "%s/%s/%s", copies->base, copies->node, job);
    return length > 0 && length < LIMIT_PATH ? ST_OK : ST_FULL;
}

/* ---- what is there ---- */

/* BASE/NODE, and the base of it. */
static enum status open_node(const struct copies *copies, int *out_base, int *out_node)
{
    struct reason why = { "" };
    enum status st = copies->base[0] == '\0' ? ST_FULL : ST_OK;
    if (st == ST_OK)
        st = private_folder(AT_FDCWD, copies->base, 0, out_base, NULL, &why);
    if (st == ST_OK)
        st = private_folder(*out_base, copies->node, 0, out_node, NULL, &why);
    return st;
}

/* Opens a folder's list, which takes over fd. */
static DIR *list_of(int *fd)
{
    DIR *stream = fdopendir(*fd);
    if (stream != NULL)
        *fd = -1;
    return stream;
}

size_t copies_jobs(const struct copies *copies, char ***out)
{
    auto_close int base = -1, node = -1;
    DIR *stream = open_node(copies, &base, &node) == ST_OK ? list_of(&node) : NULL;
    *out = NULL;
    if (stream == NULL)
        return 0;
    /* Pointers, then room for the names. */
    char **list = calloc(COPIES_JOBS_MAX, sizeof(char *) + LIMIT_NAME);
    size_t count = 0;
    const struct dirent *found = NULL;
    while (list != NULL && count < COPIES_JOBS_MAX && (found = readdir(stream)) != NULL) {
        if (!job_id_valid(found->d_name))
            continue;
        list[count] = (char *)(list + COPIES_JOBS_MAX) + count * LIMIT_NAME;
        memcpy(list[count], found->d_name, strlen(found->d_name) + 1); /* a valid name fits */
        count++;
    }
    (void)closedir(stream);
    *out = list;
    return count;
}

/* Past digits; NULL: there are none. */
static const char *past_number(const char *text, const char *before)
{
    const size_t size = strlen(before);
    if (text == NULL || strncmp(text, before, size) != 0 || !isdigit((unsigned char)text[size]))
        return NULL;
    return text + size + strspn(text + size, "0123456789");
}

/* A name that sessions give their files (session/copies/copy_file.h). */
static bool is_copy(const char *name)
{
    const char *rest = past_number(past_number(past_number(name, "g"), "-r"), "-");
    return rest != NULL && strcmp(rest, ".copy") == 0;
}

/* Removes a name, or an empty folder in its place; says nothing if it isn't there. */
static void remove_name(const struct copies *copies, int at, const char *name, int flags)
{
    if (unlinkat(at, name, flags) == 0 || errno == ENOENT)
        return;
    if (errno == EISDIR && unlinkat(at, name, AT_REMOVEDIR) == 0)
        return;
    LOG_WARN(copies->log, "%s/%s: %s: not removed, ignoring: %s", copies->base, copies->node, name,
             strerrordesc_np(errno));
}

void copies_forget(const struct copies *copies, const char *job)
{
    struct reason why = { "" };
    auto_close int base = -1, node = -1, folder = -1;
    if (!ref_name_is_safe(job) || open_node(copies, &base, &node) != ST_OK)
        return;
    const enum status st = private_folder(node, job, 0, &folder, NULL, &why);
    if (st != ST_OK) {
        if (st != ST_NOT_FOUND) /* never made, or gone already */
            LOG_WARN(copies->log, "in %s: %s: not removed", copies->base, why.text);
        return;
    }
    DIR *stream = list_of(&folder);
    const struct dirent *found = NULL;
    while (stream != NULL && (found = readdir(stream)) != NULL) {
        if (is_copy(found->d_name))
            remove_name(copies, dirfd(stream), found->d_name, 0);
    }
    if (stream != NULL)
        (void)closedir(stream);
    /* If it stays, the next hello lists it, and it is ordered away anew. */
    remove_name(copies, node, job, AT_REMOVEDIR);
    (void)unlinkat(base, copies->node, AT_REMOVEDIR); /* the last of this node, and of all */
    (void)rmdir(copies->base);
}
