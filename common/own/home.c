#include "common/own/home.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/io.h"
#include "common/own/private.h"

/* The folder that the home lies in. */
static enum status make_parent(const struct paths *paths, char parent[sizeof(paths->home)])
{
    (void)snprintf(parent, sizeof(paths->home), "%s", paths->home);
    for (size_t end = strlen(parent); end > 1 && parent[end - 1] == '/'; end--)
        parent[end - 1] = '\0';
    char *slash = strrchr(parent, '/');
    if (slash == NULL || slash == parent)
        return ST_OK;
    *slash = '\0';
    return io_mkdir_all(io_system(), parent);
}

enum status private_home_claim(const struct paths *paths, struct reason *done, struct reason *why)
{
    char parent[sizeof(paths->home)];
    struct private_found found = { .mended = false };
    auto_close int fd = -1;
    const bool there = access(paths->home, F_OK) == 0;
    *done = (struct reason){ "" };
    enum status st = there ? ST_OK : make_parent(paths, parent);
    if (st != ST_OK)
        return st;
    st = private_folder(AT_FDCWD, paths->home, PRIVATE_MAKE | PRIVATE_MEND | PRIVATE_LINKS, &fd,
                        &found, why);
    if (st == ST_OK && !there)
        st = io_system()->fsync_dir(NULL, parent);
    if (st == ST_OK && found.mended) {
        reason_set(done, "%s could be read by others (mode %04o): now it is of mode 0700",
                   paths->home, (unsigned)found.mode);
    }
    return st;
}
