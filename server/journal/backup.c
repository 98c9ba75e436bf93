/*
 * The journal copied while a coordinator goes on with it, and what such a copy is when it takes the
 * journal's place.
 *
 * A copy is marked by its application_id (JOURNAL_BACKUP_ID; a journal has 0), in the first page.
 * While that mark is there no WAL belongs to the file: journal_end_restore takes the mark off and
 * empties the WAL before anything is decided on.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/io.h"
#include "common/limits.h"
#include "server/journal/internal.h"

#define SOURCE_MS  30000 /* for a coordinator that recovers its WAL */
#define PATH_BYTES (LIMIT_PATH + 16)

/* ---- the copy ---- */

/* Saves under way are not gone on with: they are long decided when the copy is used. */
static const char finish[] = "PRAGMA journal_mode=DELETE;"
                             "BEGIN;"
                             "DELETE FROM saves;"
                             "DELETE FROM reports;"
                             "COMMIT;"
                             "PRAGMA application_id=" JOURNAL_BACKUP_ID ";";

static bool is_complete(sqlite3 *db)
{
    sqlite3_stmt *statement = NULL;
    int rc = sqlite3_prepare_v2(db, "PRAGMA quick_check(1)", -1, &statement, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(statement);
    const bool complete =
        rc == SQLITE_ROW && strcmp((const char *)sqlite3_column_text(statement, 0), "ok") == 0;
    (void)sqlite3_finalize(statement);
    return complete;
}

/* Copies all pages in one step: one read transaction, which holds up no writer. */
static int copy_pages(sqlite3 *from, sqlite3 *to)
{
    sqlite3_backup *backup = sqlite3_backup_init(to, "main", from, "main");
    if (backup == NULL)
        return sqlite3_errcode(to);
    int rc = sqlite3_backup_step(backup, -1);
    int end = sqlite3_backup_finish(backup);
    return rc == SQLITE_DONE ? end : rc;
}

static enum status fail_with(sqlite3 *db, int rc, const char *path, struct reason *reason)
{
    reason_set(reason, "%.300s: %s", path, db != NULL ? sqlite3_errmsg(db) : sqlite3_errstr(rc));
    switch (rc & 0xff) {
    case SQLITE_CANTOPEN:
        return ST_NOT_FOUND;
    case SQLITE_FULL:
        return ST_FULL;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return ST_CORRUPT;
    default:
        return ST_IO;
    }
}

static enum status copy_file(const char *path, const char *part, struct reason *reason)
{
    sqlite3 *from = NULL, *to = NULL;
    enum status st = ST_OK;
    int rc = sqlite3_open_v2(path, &from, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_busy_timeout(from, SOURCE_MS);
    if (rc != SQLITE_OK)
        st = fail_with(from, rc, path, reason);
    if (st == ST_OK) {
        rc = sqlite3_open_v2(part, &to, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
        if (rc == SQLITE_OK)
            rc = copy_pages(from, to);
        if (rc == SQLITE_OK)
            rc = sqlite3_exec(to, finish, NULL, NULL, NULL);
        if (rc != SQLITE_OK) {
            st = fail_with(to, rc, part, reason);
        } else if (!is_complete(to)) {
            reason_set(reason, "%.300s: what was read is no whole journal", path);
            st = ST_CORRUPT;
        }
    }
    (void)sqlite3_close(to);
    (void)sqlite3_close(from);
    return st;
}

/* Only its owner may read it: it holds the tokens of generations. */
static enum status make_empty(const char *path)
{
    if (unlink(path) != 0 && errno != ENOENT)
        return status_from_errno(errno);
    auto_close int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0600);
    return fd >= 0 ? ST_OK : status_from_errno(errno);
}

static enum status sync_path(const char *path, int flags)
{
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | flags);
    return fd >= 0 && fsync(fd) == 0 ? ST_OK : status_from_errno(errno);
}

static enum status publish(const char *part, const char *to)
{
    char folder[PATH_BYTES];
    (void)snprintf(folder, sizeof(folder), "%s", to);
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        *slash = '\0';
    enum status st = sync_path(part, 0);
    if (st == ST_OK && rename(part, to) != 0)
        st = status_from_errno(errno);
    if (st != ST_OK)
        return st;
    return sync_path(slash == NULL ? "." : folder[0] ? folder : "/", O_DIRECTORY);
}

enum status journal_backup(const char *path, const char *to, struct reason *reason)
{
    char part[PATH_BYTES];
    const int size = snprintf(part, sizeof(part), "%s.part", to);
    if (size < 0 || (size_t)size >= sizeof(part) || access(path, F_OK) != 0) {
        reason_set(reason, "%.300s: there is no journal, or the path is too long", path);
        return ST_NOT_FOUND;
    }
    enum status st = make_empty(part);
    if (st != ST_OK) {
        reason_set(reason, "%.300s: %s", part, status_string(st));
        return st;
    }
    st = copy_file(path, part, reason);
    if (st == ST_OK) {
        st = publish(part, to);
        if (st != ST_OK)
            reason_set(reason, "%.300s: %s", to, status_string(st));
    }
    if (st != ST_OK)
        (void)unlink(part);
    return st;
}
