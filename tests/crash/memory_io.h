/*
 * Files in memory behind struct io: every change is recorded, any call can be made to fail, and
 * what a power failure may leave can be built from the record.
 *
 * The model is the weakest that POSIX allows: a write is safe after fsync of its file, a name
 * (create, link, unlink, rename, mkdir, rmdir) after fsync_dir of its folder. Whatever isn't safe
 * may be there or not after a crash, each change for itself, a write also by half.
 *
 * Thread: one at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/io.h"

struct memory_io;

/* An empty file system with the folder "/". Aborts when memory runs out: it is for tests. */
struct memory_io *memory_io_new(void);
void memory_io_free(struct memory_io *memory);
const struct io *memory_io_table(struct memory_io *memory);

/* ---- failing ---- */

enum memory_io_fault {
    MEMORY_IO_NONE,
    MEMORY_IO_EIO,   /* the call fails and changes nothing; the calls after it work */
    MEMORY_IO_FULL,  /* from this call on, everything that needs room fails: create, write, link */
    MEMORY_IO_SHORT, /* a read or write transfers one byte only */
    MEMORY_IO_AGAIN, /* a read or write is interrupted by a signal */
};
/* The nth call from now, counting from 1, behaves so. 0: none does. */
void memory_io_arm(struct memory_io *memory, enum memory_io_fault fault, uint64_t nth);
/* Calls since memory_io_arm. */
uint64_t memory_io_calls(const struct memory_io *memory);
/* Descriptors that are open. */
size_t memory_io_open_files(const struct memory_io *memory);

/* ---- looking and changing behind the table's back ---- */

/* Bytes of a file, to be read and changed in place; NULL: there is none. Valid until the next call.
 */
uint8_t *memory_io_bytes(struct memory_io *memory, const char *path, size_t *out_size);
/* Makes or replaces a file. */
void memory_io_put(struct memory_io *memory, const char *path, const void *data, size_t size);
bool memory_io_has(const struct memory_io *memory, const char *path);

/* ---- crashing ---- */

/* Changes recorded so far. */
size_t memory_io_changes(const struct memory_io *memory);
/* As a choice: only the process dies, not the machine. All changes are there, what wasn't safe
 * still isn't. */
#define MEMORY_IO_KILL UINT64_MAX

/* What a crash after the first `changes` of them may leave. How many of those are not safe is
 * *out_loose; choice decides about them: 0 none happened, 1 all, 2.. each alone, then each missing,
 * then subsets drawn from choice. The result's record begins with what survived, so that it can
 * crash again. */
struct memory_io *memory_io_crash(const struct memory_io *memory, size_t changes, uint64_t choice,
                                  size_t *out_loose);
