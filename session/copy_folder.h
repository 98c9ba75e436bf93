/*
 * The copies in a node's folder of a job (copy_file.h): which are there, to offer them, to
 * restore from them, to remove them.
 *
 * A folder holds at most SESSION_SLOTS_MAX slots of each rank that runs or ran on the node, two of
 * each rank of another node whose copies come here (trainer/state/peers.h), and what the running
 * generation was restored from: session_memory_clean removes all else.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "session/copy_file.h"

#define SESSION_COPIES_MAX 4096 /* offered; more are ignored */

struct session_copy {
    uint32_t generation, rank, size;
    uint64_t step, bytes;
};

/* The whole copies of job in dir: sealed, with a good head; each share of a step once. *out:
 * free(). dir NULL, or not there: none. */
MUST_CHECK enum status session_memory_list(const char *dir, const char *job,
                                           struct session_copy **out, size_t *out_count);

/* That copy; bytes is not looked at. Errors: ST_INCOMPLETE  it is not there, or not whole */
MUST_CHECK enum status session_memory_find(const char *dir, const char *job,
                                           const struct session_copy *copy, struct slot_view *out);

#define SESSION_RANK_ANY UINT32_MAX

/* Removes every slot of a rank (or of any) of a generation before `generation`, but those of kept
 * (or NULL). */
void session_memory_clean(const char *dir, uint32_t generation, uint32_t rank,
                          const struct session_copy *kept);

/* Gives the name path to one that session_memory_clean would remove and that is of that size: its
 * memory was touched already, new memory costs 2 GB/s. false: there is none. */
bool session_memory_reuse(const char *dir, uint32_t generation, uint32_t rank,
                          const struct session_copy *kept, size_t size, const char *path);

/* Removes the slots of one rank of one generation: it saved and leaves. */
void session_memory_forget(const char *dir, uint32_t generation, uint32_t rank);
