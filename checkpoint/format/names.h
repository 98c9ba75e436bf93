/*
 * Names of folders and files in a store: docs/invariants.md ("Checkpoints") says what each is.
 *
 *     STORE/JOB/step-000000001000.g7/     a checkpoint, of step 1000 and generation 7
 *     STORE/JOB/step-000000001000.g7.t2/  the same, of the second further try of that save
 *         shard-00000-of-00008.cairn …    one file per rank
 *         manifest.json                   it exists by this one
 *     STORE/JOB/bad-step-…                set aside; of several, the later ones end in .2, .3, …
 *     STORE/JOB/generations-to-1000007    no generation up to that one is ever formed again
 *
 * Every try of a save has a folder of its own. So a late call of an earlier try, even from a
 * process that is dead, finds nothing that it could spoil. The try is no part of what a checkpoint
 * is: of one step and generation one try at most is ever published.
 *
 * What is published is written under a temporary name, which each call has for itself
 * (io_temporary): manifest.json.CALL.tmp, store-mark.CALL.tmp, and .probe.CALL.tmp with its own
 * .probe.CALL.tmp.CALL.tmp. CALL is g7.0123456789abcdef: the job's generation when the call was
 * made, and what was drawn for it. What a call leaves when it is cut off goes with its folder, or
 * once a later generation sweeps.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/io.h"
#include "common/limits.h"
#include "common/status.h"

#define CKPT_MANIFEST   "manifest.json"
#define CKPT_MARK_NAME  "store-mark" /* checkpoint/store/store.h */
#define CKPT_PROBE      ".probe"     /* comes and goes, to see whether the store takes files */
#define CKPT_QUARANTINE "bad-"

/* The longest name that is ever made below a store, of a coordinator's jobs: LIMIT_STORE leaves
 * room for it. */
#define CKPT_DEEPEST                                                                               \
    "/j-0123456789abc/bad-step-999999999999999999.g4294967295.t4294967295.99999"                   \
    "/manifest.json.g4294967295.0123456789abcdef.tmp"
_Static_assert(LIMIT_STORE - 1 + sizeof(CKPT_DEEPEST) <= LIMIT_PATH, "a store leaves no room");

/* A job id that may be part of a path: letters, digits, '-', '_', '.'; not empty, no dot first. */
bool ckpt_name_is_good(const char *name);

/* "shard-00000-of-00008.cairn" */
void ckpt_shard_name(uint32_t rank, uint32_t size, char out[64]);
/* Whether a file's name is one that this library makes in a checkpoint's folder. */
bool ckpt_file_is_ours(const char *name);
/* Whether it is the name that an NFS client gives to a file which was removed while somebody on its
 * machine has it open: it goes when that is closed. */
bool ckpt_file_is_held(const char *name);

/* A call's part of temporary names, of so many digits of nonce. */
void ckpt_call_name(uint32_t generation, const char *nonce, char out[IO_CALL]);
#define CKPT_CALL_DIGITS 16
/* Whether name, in a checkpoint's folder or a job's, is a temporary one of this library;
 * *generation is the call's then, 0 if it doesn't say. */
bool ckpt_temporary_parse(const char *name, uint64_t *generation);

/* Says that generations were used up, with folders or without (ckpt_used_generation_write). */
#define CKPT_USED "generations-to-"
bool ckpt_used_generation_parse(const char *name, uint64_t *generation);

/* "dir/name". ST_TOO_LONG: it is too long, as in the next two. */
MUST_CHECK enum status ckpt_path(const char *dir, const char *name, char out[LIMIT_PATH]);
/* The folder that dir lies in ("." if none is named), and the last part of dir, as the commands
 * dirname and basename have them: trailing slashes don't count. */
MUST_CHECK enum status ckpt_dirname(const char *dir, char out[LIMIT_PATH]);
MUST_CHECK enum status ckpt_basename(const char *dir, char out[LIMIT_PATH]);

/* "step-000000001000.g7", of a further try ".t1" and so on at its end. ST_INVALID: numbers that no
 * folder has. */
MUST_CHECK enum status ckpt_folder_name(uint64_t step, uint64_t generation, uint32_t try_number,
                                        char out[LIMIT_NAME]);
/* The parts of a folder's name; false: it is none of ours. */
struct ckpt_folder_name {
    uint64_t step, generation;
    uint32_t try_number; /* 0: the first one */
    uint32_t plain_size; /* bytes of step-…: without bad- and the number of several */
    bool quarantined;
};
bool ckpt_folder_parse(const char *name, struct ckpt_folder_name *out);
