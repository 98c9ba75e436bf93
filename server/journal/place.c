/*
 * The journal's place: what lies there is looked at before anything is opened, set aside by name,
 * and replaced by a file that was made beside it.
 *
 * A look changes no byte of the file or of its WAL (SQLite may make its index of that, the -shm).
 * If there is no WAL, nobody has the file open: it is looked at as one that can't change, or SQLite
 * would make a WAL. So is a copy that was put in place: no WAL belongs to it (backup.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/limits.h"
#include "server/journal/internal.h"

#define PATH_BYTES  (LIMIT_PATH + 64)
#define URI_BYTES   (3 * LIMIT_PATH + 64)
#define BUSY_MS     2000                 /* its owner may have a lock for an instant */
#define BEAT_STEPS  1000                 /* of SQLite's machine, between two beats */
#define WHOLE_BYTES ((int64_t)256 << 20) /* a larger one isn't read through: that takes seconds */

static const char magic[16] = "SQLite format 3"; /* of the file's header, with the NUL */

/* ---- the file ---- */

/* ST_OK: a file that has something in it; *there then. Otherwise nothing is left to look at. */
static enum status look_at_file(const char *path, bool lived, bool *there, struct reason *reason)
{
    struct stat info;
    *there = false;
    if (lstat(path, &info) != 0) {
        if (errno != ENOENT)
            return status_from_errno(errno);
        reason_set(reason, "it is missing");
        return lived ? ST_NOT_FOUND : ST_OK;
    }
    if (stat(path, &info) != 0) {
        const enum status st = status_from_errno(errno);
        reason_set(reason, "it is a link, and what it leads to can't be reached (%s)",
                   status_string(st));
        return st;
    }
    if (!S_ISREG(info.st_mode)) {
        reason_set(reason, "it is no file");
        return ST_CORRUPT;
    }
    *there = info.st_size > 0;
    if (*there)
        return ST_OK;
    reason_set(reason, "it is empty");
    return lived ? ST_NOT_FOUND : ST_OK;
}

static enum status look_at_header(const char *path, bool *is_copy, int64_t *size,
                                  struct reason *reason)
{
    unsigned char head[100];
    struct stat info;
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0)
        return status_from_errno(errno);
    const ssize_t got = pread(fd, head, sizeof(head), 0);
    if (got < 0)
        return status_from_errno(errno);
    *size = info.st_size;
    if (got < (ssize_t)sizeof(head) || memcmp(head, magic, sizeof(magic)) != 0) {
        reason_set(reason, "it is no SQLite database");
        return ST_CORRUPT;
    }
    const unsigned char *id = &head[JOURNAL_ID_OFFSET];
    const uint32_t found =
        (uint32_t)id[0] << 24 | (uint32_t)id[1] << 16 | (uint32_t)id[2] << 8 | id[3];
    *is_copy = found == strtoul(JOURNAL_BACKUP_ID, NULL, 10);
    return ST_OK;
}

/* ---- the database ---- */

static void encode_uri(const char *path, bool fixed, char out[URI_BYTES])
{
    size_t at = (size_t)snprintf(out, URI_BYTES, "file:");
    for (const char *c = path; *c && at + 4 < URI_BYTES - 32; c++) {
        const bool plain = strchr("?#%", *c) == NULL;
        at += (size_t)snprintf(out + at, 4, plain ? "%c" : "%%%02X", (unsigned char)*c);
    }
    (void)snprintf(out + at, 32, fixed ? "?immutable=1" : "?mode=ro");
}

/* True if there is a WAL beside the file, wherever a link leads to. */
static bool has_wal(const char *path)
{
    char wal[PATH_BYTES];
    auto_free char *real = realpath(path, NULL);
    (void)snprintf(wal, sizeof(wal), "%.1024s-wal", real != NULL ? real : path);
    return access(wal, F_OK) == 0;
}

/* Reads what a statement of one row says. ST_CORRUPT, with SQLite's words: it can't be read. */
static enum status ask(sqlite3 *db, const char *sql, int64_t *number, struct reason *text)
{
    sqlite3_stmt *row = NULL;
    int rc = sqlite3_prepare_v2(db, sql, -1, &row, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(row);
    if (rc == SQLITE_ROW) {
        *number = sqlite3_column_int64(row, 0);
        reason_set(text, "%s", (const char *)sqlite3_column_text(row, 0));
    }
    (void)sqlite3_finalize(row);
    if (rc == SQLITE_ROW)
        return ST_OK;
    reason_set(text, "it can't be read: %s", sqlite3_errmsg(db));
    const int kind = rc & 0xff;
    return kind == SQLITE_CORRUPT || kind == SQLITE_NOTADB ? ST_CORRUPT : ST_IO;
}

static enum status look_at_tables(sqlite3 *db, bool lived, bool whole, struct reason *reason)
{
    static const char others[] = "SELECT count(*) FROM sqlite_master";
    static const char ours[] = "SELECT count(*) FROM sqlite_master WHERE name='jobs'";
    int64_t version = 0, tables = 0, jobs = 0, ignored;
    struct reason said;
    enum status st = ask(db, "PRAGMA user_version", &version, &said);
    if (st == ST_OK)
        st = ask(db, others, &tables, &said);
    if (st == ST_OK)
        st = ask(db, ours, &jobs, &said);
    if (st != ST_OK) {
        *reason = said;
        return st;
    }
    if (tables == 0) {
        reason_set(reason, "it holds nothing");
        return lived ? ST_NOT_FOUND : ST_OK;
    }
    if (jobs == 0) {
        reason_set(reason, "it is another program's database");
        return ST_CORRUPT;
    }
    if (version > JOURNAL_VERSION) {
        reason_set(reason,
                   "a newer version of Cairn wrote it (format %" PRId64 "; this one, %s, "
                   "knows up to %d)",
                   version, CAIRN_VERSION, JOURNAL_VERSION);
        return ST_VERSION;
    }
    st = whole ? ask(db, "PRAGMA quick_check(1)", &ignored, &said) : ST_OK;
    if (st == ST_OK && (!whole || strcmp(said.text, "ok") == 0))
        return ST_OK;
    reason_set(reason, "it is damaged (%.200s)", said.text);
    return st == ST_OK ? ST_CORRUPT : st;
}

static int on_progress(void *arg)
{
    const struct journal_watch *watch = arg;
    watch->beat(watch->arg);
    return 0;
}

enum status journal_look(const char *path, bool lived, const struct journal_watch *watch,
                         struct reason *reason)
{
    char uri[URI_BYTES];
    bool there = false, is_copy = false;
    int64_t size = 0;
    sqlite3 *db = NULL;
    enum status st = look_at_file(path, lived, &there, reason);
    if (st == ST_OK && there)
        st = look_at_header(path, &is_copy, &size, reason);
    if (st != ST_OK || !there)
        return st;
    encode_uri(path, is_copy || !has_wal(path), uri);
    int rc = sqlite3_open_v2(uri, &db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX,
                             NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_busy_timeout(db, BUSY_MS);
    if (rc == SQLITE_OK)
        rc = sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    if (rc == SQLITE_OK) {
        if (watch->beat != NULL)
            sqlite3_progress_handler(db, BEAT_STEPS, on_progress, (void *)watch);
        st = look_at_tables(db, lived, size <= WHOLE_BYTES, reason);
    } else {
        reason_set(reason, "it can't be opened: %s", sqlite3_errstr(rc));
        st = ST_IO;
    }
    (void)sqlite3_close(db);
    return st;
}

/* ---- another file in its place ---- */

static enum status sync_path(const char *path, int flags)
{
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | flags);
    return fd >= 0 && fsync(fd) == 0 ? ST_OK : status_from_errno(errno);
}

static enum status sync_folder_of(const char *path)
{
    char folder[PATH_BYTES];
    (void)snprintf(folder, sizeof(folder), "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        *slash = '\0';
    return sync_path(slash == NULL ? "." : folder[0] ? folder : "/", O_DIRECTORY);
}

/* SQLite finds the WAL of what is set aside by the same ending. */
static const char *const ends[] = { "-wal", "-shm", "" };

static enum status check_free(const char *path)
{
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        char name[PATH_BYTES];
        struct stat info;
        const int size = snprintf(name, sizeof(name), "%s%s", path, ends[i]);
        if (size < 0 || size >= LIMIT_PATH)
            return ST_FULL;
        if (lstat(name, &info) == 0)
            return ST_EXISTS;
    }
    return ST_OK;
}

enum status journal_set_aside(const char *path, const char *aside)
{
    const enum status st = check_free(aside);
    if (st != ST_OK)
        return st;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        char from[PATH_BYTES], to[PATH_BYTES];
        (void)snprintf(from, sizeof(from), "%.1024s%s", path, ends[i]);
        (void)snprintf(to, sizeof(to), "%.1024s%s", aside, ends[i]);
        if (rename(from, to) != 0 && errno != ENOENT)
            return status_from_errno(errno);
    }
    return sync_folder_of(path);
}

enum status journal_place(const char *part, const char *path)
{
    enum status st = sync_path(part, 0);
    if (st == ST_OK && rename(part, path) != 0)
        st = status_from_errno(errno);
    return st == ST_OK ? sync_folder_of(path) : st;
}
