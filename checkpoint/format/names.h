/*
 * Names of folders and files in a store: docs/rules.md ("Checkpoints") says what each is.
 *
 *     STORE/JOB/step-000000001000.g7/     a checkpoint, of step 1000 and generation 7
 *         shard-00000-of-00008.cairn …    one file per rank
 *         manifest.json                   it exists by this one; before, under the temporary name
 *     STORE/JOB/bad-step-…                set aside; of several, the later ones end in .2, .3, …
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/limits.h"
#include "common/status.h"

#define CKPT_MANIFEST           "manifest.json"
#define CKPT_MANIFEST_TEMPORARY "manifest.json.tmp"
#define CKPT_QUARANTINE         "bad-"

/* A job id that may be part of a path: letters, digits, '-', '_', '.'; not empty, no dot first. */
bool ckpt_name_is_good(const char *name);

/* "shard-00000-of-00008.cairn" */
void ckpt_shard_name(uint32_t rank, uint32_t size, char out[64]);
/* Whether a file's name is one that this library makes in a checkpoint's folder. */
bool ckpt_file_is_ours(const char *name);

/* "dir/name". ST_FULL: it is too long, as in the next two. */
MUST_CHECK enum status ckpt_path(const char *dir, const char *name, char out[LIMIT_PATH]);
/* The folder that dir lies in ("." if none is named), and the last part of dir, as the commands
 * dirname and basename have them: trailing slashes don't count. */
MUST_CHECK enum status ckpt_dirname(const char *dir, char out[LIMIT_PATH]);
MUST_CHECK enum status ckpt_basename(const char *dir, char out[LIMIT_PATH]);

/* "step-000000001000.g7". ST_INVALID: numbers that no folder has. */
MUST_CHECK enum status ckpt_folder_name(uint64_t step, uint64_t generation, char out[LIMIT_NAME]);
/* What a folder's name says; false: it is none of ours. */
struct ckpt_folder_name {
    uint64_t step, generation;
    bool quarantined;
};
bool ckpt_folder_parse(const char *name, struct ckpt_folder_name *out);
