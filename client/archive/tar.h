/*
 * Files packed as one: a tar (POSIX.1-1988, ustar) of regular files, compressed by gzip.
 *
 * Written from memory, read into memory: nothing is ever unpacked into the file system. What is
 * read may be anybody's bytes; it is bounded, and every header has to be as one of ours.
 *
 * Thread: one at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/reason.h"
#include "common/status.h"

#define TAR_NAME         100                 /* bytes of a member's name, without a NUL */
#define TAR_MEMBER_BYTES ((size_t)16 << 20)  /* of one member */
#define TAR_TOTAL_BYTES  ((size_t)256 << 20) /* of all members that are read */
#define TAR_MEMBERS_MAX  16384

struct tar_writer;

/*
 * Begins a file at path, which must not be there yet; until tar_publish it has the name PATH.tmp.
 * now_s: the time that members have.
 * Errors: ST_EXISTS, ST_REFUSED, ST_NOT_FOUND, ST_FULL, ...: reason says which file
 */
MUST_CHECK enum status tar_create(const char *path, int64_t now_s, struct tar_writer **out,
                                  struct reason *reason);
/* Adds a member. Errors: ST_TOO_LONG  the name; ST_FULL  more than TAR_MEMBER_BYTES; ST_IO */
MUST_CHECK enum status tar_add(struct tar_writer *writer, const char *name, const void *data,
                               size_t size);
/*
 * Ends the file and makes it visible, mode 0600, never over another one; frees the writer.
 * Durable: on ST_OK. On an error nothing is left.
 */
MUST_CHECK enum status tar_publish(struct tar_writer *writer, struct reason *reason);
/* Removes what was written, and frees the writer. NULL is fine. */
void tar_drop(struct tar_writer *writer);

/* Is given each member: the data, with a NUL behind, are borrowed for the call. Anything but ST_OK
 * ends the reading. */
typedef enum status (*tar_member_fn)(void *arg, const char *name, const char *data, size_t size);

/*
 * Reads all members in their order.
 * Errors: ST_NOT_FOUND, ST_REFUSED  the file
 *         ST_CORRUPT                no such archive, or a damaged one
 *         ST_FULL                   larger than the bounds
 *         ST_NO_MEMORY, ST_IO; those of fn
 */
MUST_CHECK enum status tar_read(const char *path, tar_member_fn fn, void *arg,
                                struct reason *reason);
