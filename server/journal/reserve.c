/*
 * Room that the journal has on its disk before it needs it, in both of its files. So a disk that
 * others fill up is noticed while the journal can still be written.
 *
 * The room lies behind the files' ends (FALLOC_FL_KEEP_SIZE). The main file's descriptor is opened
 * before SQLite opens it and closed after SQLite has closed it. With any close of a descriptor of
 * that file a process loses the locks that SQLite has on it. SQLite has none on the WAL.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/limits.h"
#include "server/journal/internal.h"

/* If blocks can't be had beforehand, there must be as many free ones. */
static enum status look_at_disk(int fd)
{
    struct statvfs disk;
    if (fstatvfs(fd, &disk) != 0)
        return status_from_errno(errno);
    const uint64_t bytes = (uint64_t)disk.f_bavail * disk.f_frsize;
    return bytes < (uint64_t)JOURNAL_RESERVE_BYTES ? ST_FULL : ST_OK;
}

static enum status reserve(int fd, off_t from)
{
    if (fallocate(fd, FALLOC_FL_KEEP_SIZE, from, JOURNAL_RESERVE_BYTES) == 0)
        return ST_OK;
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
        return ST_FULL;
    return errno == EINTR ? ST_OK : look_at_disk(fd);
}

enum status journal_reserve(struct journal *journal)
{
    struct stat of;
    char name[LIMIT_PATH + 8];
    if (journal->file_fd < 0)
        return ST_OK;
    if (fstat(journal->file_fd, &of) != 0)
        return status_from_errno(errno);
    const enum status st = reserve(journal->file_fd, of.st_size);
    const int size =
        snprintf(name, sizeof(name), "%s-wal", sqlite3_db_filename(journal->db, "main"));
    if (st != ST_OK || size < 0 || (size_t)size >= sizeof(name))
        return st;
    auto_close int wal = open(name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    return wal < 0 ? ST_OK : reserve(wal, 0); /* none: nothing was written yet */
}
