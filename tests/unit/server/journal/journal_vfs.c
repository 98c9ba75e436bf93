#include "tests/unit/server/journal/journal_vfs.h"

#include <sqlite3.h>
#include <string.h>

#include "common/check.h"

#define KINDS_MAX 4 /* of files: the system has a table of methods for each */

struct kind {
    sqlite3_io_methods methods; /* first: what the file points at */
    const sqlite3_io_methods *of_system;
};

static sqlite3_vfs watching;
static sqlite3_vfs *system_vfs;
static struct kind kinds[KINDS_MAX];
static journal_call_fn tell;
static void *tell_arg;
static long room = -1; /* writes that the disk has room for; negative: any number */

/* Tells it; what the system would do with the file. */
static const sqlite3_io_methods *told(const sqlite3_file *file, enum journal_call call)
{
    if (tell)
        tell(tell_arg, call);
    return ((const struct kind *)file->pMethods)->of_system;
}

static int watched_write(sqlite3_file *file, const void *data, int size, sqlite3_int64 offset)
{
    const sqlite3_io_methods *of_system = told(file, JOURNAL_WRITE);
    if (room == 0)
        return SQLITE_FULL;
    room -= room > 0;
    return of_system->xWrite(file, data, size, offset);
}

static int watched_truncate(sqlite3_file *file, sqlite3_int64 size)
{
    return told(file, JOURNAL_WRITE)->xTruncate(file, size);
}

static int watched_sync(sqlite3_file *file, int flags)
{
    return told(file, JOURNAL_SYNC)->xSync(file, flags);
}

static struct kind *kind_of(const sqlite3_io_methods *methods)
{
    size_t i = 0;
    while (i < KINDS_MAX && kinds[i].of_system != NULL && kinds[i].of_system != methods)
        i++;
    CHECK(i < KINDS_MAX);
    kinds[i].of_system = methods;
    kinds[i].methods = *methods;
    kinds[i].methods.xWrite = watched_write;
    kinds[i].methods.xTruncate = watched_truncate;
    kinds[i].methods.xSync = watched_sync;
    return &kinds[i];
}

static int watched_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int flags,
                        int *out_flags)
{
    (void)vfs;
    int rc = system_vfs->xOpen(system_vfs, name, file, flags, out_flags);
    if (file->pMethods != NULL)
        file->pMethods = &kind_of(file->pMethods)->methods;
    return rc;
}

void journal_vfs_watch(journal_call_fn fn, void *arg)
{
    tell = fn;
    tell_arg = arg;
    if (system_vfs != NULL)
        return;
    system_vfs = sqlite3_vfs_find(NULL);
    CHECK(system_vfs != NULL);
    watching = *system_vfs;
    watching.zName = "watched";
    watching.xOpen = watched_open;
    CHECK(sqlite3_vfs_register(&watching, 1) == SQLITE_OK);
}

void journal_vfs_space(long writes)
{
    room = writes;
}
