/*
 * Files in memory behind struct io: every change is recorded, any call can be made to fail, and
 * what a power failure may leave can be built from the record.
 *
 * The model is weaker than any file system in use; it is what POSIX allows:
 *  - a write is safe after a good fsync of its file, a name (create, link, unlink, mkdir, rmdir,
 *    either side of a rename) after a good fsync of its folder; nothing else makes anything safe,
 *    O_DIRECT neither. An fsync of a file doesn't reach its name, nor one of a folder that
 *    folder's own name;
 *  - of what isn't safe, any part may be there: each name has any of the values that it had since
 *    it was safe (a rename may leave both names or none); each write is there, not there, torn, or
 *    only its length is, with zeros or anything else for bytes;
 *  - an fsync that fails has left what it should have written clean: a later one doesn't reach it.
 *    For a folder it does, once another change has made the folder dirty again.
 * Not modelled: damage to what is safe (other tests do that), an fsync that lies (only where a test
 * of the tests asks for it), open files whose name is gone, O_APPEND, truncation.
 *
 * Thread: any for the table's calls; else one at a time.
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
/* What is there now, in one of its own; nothing is open or recorded. */
struct memory_io *memory_io_clone(const struct memory_io *memory);
const struct io *memory_io_table(struct memory_io *memory);

/* ---- failing ---- */

enum memory_io_fault {
    MEMORY_IO_NONE,
    MEMORY_IO_EIO,  /* the call fails and changes nothing; the calls after it work */
    MEMORY_IO_FULL, /* from this call on, whatever needs room fails: create, write, link, mkdir */
    MEMORY_IO_FULL_ONCE, /* this call alone, an fsync, too: space is there again afterwards */
    MEMORY_IO_SHORT,     /* a read or write transfers one byte only */
    MEMORY_IO_TORN,      /* a write puts half its bytes there and fails */
    MEMORY_IO_AGAIN,     /* a read or write is interrupted by a signal */
    MEMORY_IO_INTERRUPT, /* likewise, whatever the call */
    MEMORY_IO_READ_ONLY, /* from this call on, every change is refused */
    MEMORY_IO_DEAD,      /* from this call on, nothing works: the process is gone */
    MEMORY_IO_FAULTS
};
/* The nth call from now, counting from 1, behaves so. 0: none does. */
void memory_io_arm(struct memory_io *memory, enum memory_io_fault fault, uint64_t nth);
/* Calls since memory_io_arm. */
uint64_t memory_io_calls(const struct memory_io *memory);
/* No write transfers more than so many bytes from now on; 0: as many as it wants. */
void memory_io_limit_writes(struct memory_io *memory, size_t size_max);
/* Descriptors that are open. */
size_t memory_io_open_files(const struct memory_io *memory);
/* What the end of a process does to them. */
void memory_io_close_all(struct memory_io *memory);

/* ---- looking and changing behind the table's back ---- */

/* Bytes of a file, to be read and changed in place; NULL: there is none. Valid until the next call.
 */
uint8_t *memory_io_bytes(struct memory_io *memory, const char *path, size_t *out_size);
/* Makes or replaces a file; it is safe at once. */
void memory_io_put(struct memory_io *memory, const char *path, const void *data, size_t size);
/* The medium changes one byte of a file. */
void memory_io_damage(struct memory_io *memory, const char *path, uint64_t at, uint8_t mask);
bool memory_io_has(const struct memory_io *memory, const char *path);
/* Hash of all names and bytes below a path; 0: there is nothing. */
uint64_t memory_io_hash(struct memory_io *memory, const char *path);

/* ---- crashing ---- */

/* Changes and syncs recorded so far. */
size_t memory_io_changes(const struct memory_io *memory);
/* Whether number i of them is an fsync that worked, and whether from now on it shall be taken for
 * one that did nothing. */
bool memory_io_is_sync(const struct memory_io *memory, size_t i);
void memory_io_lie(struct memory_io *memory, size_t i, bool lie);
/*
 * Reorders the changes [first, last), which `parts` writers made one after the other, each to files
 * of its own: writer k those from ends[k - 1] on. Draws one of the orders in which they could have
 * happened side by side.
 */
void memory_io_interleave(struct memory_io *memory, size_t first, const size_t *ends, size_t parts,
                          uint64_t seed);

/* The moment after the first `changes` of them. */
struct crash_point *crash_point_new(const struct memory_io *memory, size_t changes);
void crash_point_free(struct crash_point *point);

#define CRASH_CHOICES_MAX 256
#define CRASH_WRITE_FATES 7 /* gone, there, first half, some sectors, some pages, junk, zeros */

/* What isn't safe then: first the names, then the writes, and how many values each may have. Value
 * 0 is as if nothing had happened, value newest as if everything had; a write's are above. */
size_t crash_point_names(const struct crash_point *point);
size_t crash_point_choices(const struct crash_point *point);
uint32_t crash_point_values(const struct crash_point *point, size_t choice);
uint32_t crash_point_newest(const struct crash_point *point, size_t choice);
/* What a machine finds that comes up again. picks: a value per choice; seed: of junk and sectors.
 * It records nothing until memory_io_record. */
struct memory_io *crash_point_build(const struct crash_point *point, const uint8_t *picks,
                                    uint64_t seed);
/* What a process finds after only its predecessor died: everything is there, what wasn't safe
 * still isn't. It records. */
struct memory_io *crash_point_kill(const struct crash_point *point);
/* From now on changes are recorded; what is there is safe. */
void memory_io_record(struct memory_io *memory);
