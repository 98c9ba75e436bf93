/*
 * The copies of one job on one node: a folder of copy files (copy_file.h). Here they are listed to
 * be offered, found to be restored from, taken over by a new generation, and removed.
 *
 * One that isn't ours, or that others may look into, counts as not there (common/own/private.h).
 *
 * The folder holds at most: SESSION_FILES_MAX files of each rank that runs or ran on the node; two
 * of each rank of another node whose copies come here (trainer/state/copy_exchange.h); and what the
 * running generation was restored from. copy_folder_clean removes all else.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "session/copies/copy_file.h"

#define SESSION_COPIES_MAX 4096 /* offered; more are ignored */

struct session_copy {
    uint32_t generation, rank, size;
    uint64_t step, bytes;
};

/* The complete copies of job in dir: sealed, with a good head; each share of a step once. *out:
 * free(). dir NULL, or not there: none. */
MUST_CHECK enum status copy_folder_list(const char *dir, const char *job, struct session_copy **out,
                                        size_t *out_count);

/* Maps that copy; copy->bytes is not looked at. Errors: ST_INCOMPLETE  it is not there, or not
 * whole */
MUST_CHECK enum status copy_folder_find(const char *dir, const char *job,
                                        const struct session_copy *copy, struct copy_view *out);

/* Returns the path of that copy, as copy_folder_find, for another process to map. */
MUST_CHECK enum status copy_folder_path(const char *dir, const char *job,
                                        const struct session_copy *copy, char out[LIMIT_PATH]);

#define SESSION_RANK_ANY UINT32_MAX

/* Removes every file of a rank (or of any) of a generation before `generation`, except those of
 * the same generation and step as kept (NULL: no exception). */
void copy_folder_clean(const char *dir, uint32_t generation, uint32_t rank,
                       const struct session_copy *kept);

/* Gives the name path to one that copy_folder_clean would remove and that is of that size: its
 * memory was touched already, new memory costs 2 GB/s. false: there is none. */
bool copy_folder_reuse(const char *dir, uint32_t generation, uint32_t rank,
                       const struct session_copy *kept, size_t size, const char *path);

/* Returns the bytes that the copy files in dir take. dir NULL, or not there: 0. */
uint64_t copy_folder_bytes(const char *dir);

/* Removes the files of one rank of one generation: it saved and leaves. */
void copy_folder_forget(const char *dir, uint32_t generation, uint32_t rank);
