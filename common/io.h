/*
 * File operations as a table, so that tests can fail, record and replay them.
 *
 * All paths are absolute or relative to the working directory; files are opened O_CLOEXEC. Each
 * call returns a status made by status_from_errno. Implementations log nothing: the caller that
 * decides what follows does.
 *
 * Thread: any.
 * Durable: after fsync of a file its bytes survive a crash; its name only after fsync_dir of the
 *          folder.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/limits.h"
#include "common/reason.h"
#include "common/status.h"

enum io_open_flags {
    IO_READ = 0,
    IO_CREATE_NEW = 1 << 0, /* O_WRONLY | O_CREAT | O_EXCL, mode 0644 */
    IO_DIRECT = 1 << 1,     /* past the page cache, where the file system can; a hint */
    IO_PRIVATE = 1 << 2,    /* with IO_CREATE_NEW: mode 0600 */
};

/* For writes to a file that was opened with IO_DIRECT: their address in memory, their size and
 * their place in the file are multiples of this. */
#define IO_DIRECT_ALIGN 4096u

struct io_stat {
    uint64_t size;
    uint64_t inode;
    int64_t mtime_ms;
    int64_t changed_ns; /* content, or name, or rights: moves with each of them */
    bool is_dir;
    bool is_special; /* a device, a FIFO, a socket */
};

/* Called once per name in a folder, without "." and ".."; false stops. */
typedef bool (*io_name_fn)(void *arg, const char *name);
/* Like io_name_fn, with a file's size. */
#define IO_SIZE_UNKNOWN UINT64_MAX
typedef bool (*io_size_fn)(void *arg, const char *name, uint64_t size);

#define IO_UNLINK_MAX 1000 /* files that one call removes */

struct io {
    void *self;
    /* The caller's part of temporary names (io_temporary): a call that is carried out late then has
     * no name in common with the call that was made in its place. NULL or "": nobody else writes
     * there at the same time. Borrowed. */
    const char *call;
    /* Called once a second or so by what waits (io_find); false: it waits no longer. Or NULL. */
    bool (*waiting)(void *arg);
    void *waiting_arg;
    enum status (*open)(void *self, const char *path, int flags, int *out_fd);
    enum status (*close)(void *self, int fd);
    /* pread and pwrite make one attempt each: they may transfer less, out_size bytes. The end of
     * the file is ST_OK with 0. */
    enum status (*pread)(void *self, int fd, void *data, size_t size, uint64_t at,
                         size_t *out_size);
    enum status (*pwrite)(void *self, int fd, const void *data, size_t size, uint64_t at,
                          size_t *out_size);
    enum status (*fsync)(void *self, int fd);
    enum status (*fsync_dir)(void *self, const char *path);
    enum status (*mkdir)(void *self, const char *path);                /* mode 0755 */
    enum status (*link)(void *self, const char *from, const char *to); /* never over a name */
    enum status (*rename)(void *self, const char *from, const char *to);
    enum status (*unlink)(void *self, const char *path);
    enum status (*rmdir)(void *self, const char *path);
    enum status (*stat)(void *self, const char *path, struct io_stat *out);
    enum status (*list)(void *self, const char *path, io_name_fn fn, void *arg);
    /* A whole file as memory to read (only: a write is a SIGSEGV); the descriptor may be closed
     * afterwards. Pages are read when they are touched: one that the file has lost since, or that
     * the medium can't give, is a SIGBUS. An empty file is NULL with size 0. The call is NULL in
     * tables of tests that map nothing. */
    enum status (*map)(void *self, int fd, void **out_data, size_t *out_size);
    enum status (*unmap)(void *self, void *data, size_t size);

    /* The rest is NULL in tables that hold folders only. */

    /* Whether path lies in an object store: it has no links and no folders (mkdir, rmdir and
     * fsync_dir do nothing, list of anything is ST_OK); a file appears as a whole with its fsync
     * or never; rename sets a checkpoint's folder aside and does nothing else. */
    bool (*is_object)(void *self, const char *path);
    /* Makes an object at once, never over one that is there (ST_EXISTS). Durable: on ST_OK. */
    enum status (*put_new)(void *self, const char *path, const void *data, size_t size);
    /* Tries on path, where there is a file, what put_new doesn't: that a file which is written in
     * parts never goes over one that is there. ST_CONFIG: it would. NULL: nothing to try. */
    enum status (*probe)(void *self, const char *path);
    /* The files of a folder with their sizes, as far as its list says them (io_list_sizes). */
    enum status (*list_sizes)(void *self, const char *path, io_size_fn fn, void *arg);
    /* Removes some of a folder's files by one request (io_unlink_many). */
    enum status (*unlink_many)(void *self, const char *dir, const char *const *names,
                               uint32_t count, bool *out_gone);
    /* Whether a name below path that another machine has made may be missing here for a while, as
     * this one has looked for it before (NFS and its like). NULL: never. */
    bool (*seen_late)(void *self, const char *path);
    /* Bytes that may still be written below path. NULL where that isn't known (io_space). */
    enum status (*space)(void *self, const char *path, uint64_t *out_bytes);
    /* A hint about an open file. For a file that is read: [at, end) will be read, once and in
     * order, so that it may be fetched ahead; nothing beyond will be. A hint that begins where the
     * last one ended continues it. For a file that is written: it gets no longer than end. */
    void (*expect)(void *self, int fd, uint64_t at, uint64_t end);
    /* Explains in a sentence why this thread's last call that returned st did so; "": nothing to
     * say. */
    void (*explain)(void *self, enum status st, struct reason *out);
};

/* The machine's files. Borrowed for ever. */
const struct io *io_system(void);

bool io_is_object(const struct io *io, const char *path);
/* Does nothing if the table has no such call. */
void io_expect(const struct io *io, int fd, uint64_t at, uint64_t end);
/* Lists a folder with the sizes of its files. Sizes that the list doesn't bring are
 * IO_SIZE_UNKNOWN: in an object store those of few files, elsewhere all. Elsewhere folders are
 * among the names. */
MUST_CHECK enum status io_list_sizes(const struct io *io, const char *path, io_size_fn fn,
                                     void *arg);
/*
 * Removes files names[0], … of a folder, IO_UNLINK_MAX at most, with one request; out_gone says
 * which are gone. Also on ST_OK some files may remain, or all of them if there is no such request:
 * the caller has to unlink those one by one.
 */
MUST_CHECK enum status io_unlink_many(const struct io *io, const char *dir,
                                      const char *const *names, uint32_t count, bool *out_gone);

#define IO_FIND_MS                                                                                 \
    60000 /* how long an NFS client remembers that there is no such name (acdirmax) */
/*
 * Looks for a file at path that another machine has made, of size bytes (IO_SIZE_UNKNOWN: of any
 * size).
 *
 * This machine may remember an older state of the path. If the size differs, the file is opened,
 * which makes an NFS client ask the server. If it is missing, and that may be old (seen_late), its
 * folder is read and the file looked for again, until clock_mono_ms is at until_ms. In the usual
 * case this is one stat. The size in out may differ from `size` all the same.
 * Errors: ST_NOT_FOUND  it is not there; else those of the calls
 */
MUST_CHECK enum status io_find(const struct io *io, const char *path, uint64_t size,
                               int64_t until_ms, struct io_stat *out);
/* Returns the time at which a search that begins now ends. */
int64_t io_find_until(void);

/* Bytes that may still be written below path, a folder that is there; UINT64_MAX: not known. */
MUST_CHECK enum status io_space(const struct io *io, const char *path, uint64_t *out_bytes);
/* A line about st, which a call on io has just come to: its text, and what the table explains. */
void io_explain(const struct io *io, enum status st, struct reason *out);

/* Write or read exactly size bytes; a short read is ST_INCOMPLETE. */
MUST_CHECK enum status io_write_all(const struct io *io, int fd, const void *data, size_t size,
                                    uint64_t at);
MUST_CHECK enum status io_read_all(const struct io *io, int fd, void *data, size_t size,
                                   uint64_t at);

/* Reads a whole file of at most size_max bytes; *out is owned by the caller and NUL-terminated. */
MUST_CHECK enum status io_read_file(const struct io *io, const char *path, size_t size_max,
                                    char **out, size_t *out_size);

/* Bytes of struct io's call, with the NUL. */
#define IO_CALL 32
/* Writes the temporary name of a file that is to become path: "path.CALL.tmp", "path.tmp" without a
 * call. ST_TOO_LONG: the name is too long. */
MUST_CHECK enum status io_temporary(const struct io *io, const char *path, char out[LIMIT_PATH]);

/*
 * Publishes a file so that it is either absent or whole: temporary name beside it, write, fsync,
 * link() to path (never over an existing name), unlink of the temporary name, fsync of the folder.
 * In an object store by put_new.
 * Durable: on ST_OK. On an error the temporary name may be left; a repetition replaces it,
 * if it is made with the same call.
 * Errors: ST_EXISTS  path is there already
 */
MUST_CHECK enum status io_publish(const struct io *io, const char *path, const void *data,
                                  size_t size);

/* Like io_publish, for a file that nobody else may read (mode 0600); not in an object store. */
MUST_CHECK enum status io_publish_private(const struct io *io, const char *path, const void *data,
                                          size_t size);

/* Like io_publish, but replaces a file that is there (rename): for state of our own only. */
MUST_CHECK enum status io_replace(const struct io *io, const char *path, const void *data,
                                  size_t size);

/* Like io_replace, for a file that nobody else may read (mode 0600); not in an object store. */
MUST_CHECK enum status io_replace_private(const struct io *io, const char *path, const void *data,
                                          size_t size);

/* Makes path and every missing parent, each fsynced into its parent. In an object
 * store there is nothing to make: one mkdir. */
MUST_CHECK enum status io_mkdir_all(const struct io *io, const char *path);

/* The kinds of file systems that can hold a path. */
enum io_mount {
    IO_MOUNT_LOCAL, /* this machine's, or one that all machines see alike */
    IO_MOUNT_NFS,   /* remembers for up to a minute what it has seen; locks may be this machine's */
    IO_MOUNT_OTHER, /* FUSE, SMB and their like: may do as NFS does */
};
/* Returns the kind of the file system that holds path; if path doesn't exist, that of the nearest
 * existing folder above it. Returns IO_MOUNT_LOCAL, too, if the kind is unknown. */
enum io_mount io_mount_of(const char *path);
/* Whether a file in dir, a folder that may be written to, can be locked by fcntl and flock, as
 * SQLite and we do. A file comes and goes. */
bool io_locks(const char *dir);

/*
 * Raises the number of descriptors (files, sockets) that this process may have open as far as this
 * user may, to a million at most, and returns it; what the process starts inherits it. At the start
 * of a program that holds a connection per worker.
 */
uint64_t io_descriptors_raise(void);
