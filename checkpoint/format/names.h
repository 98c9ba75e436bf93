/*
 * Names of folders and files in a store (design 8, "Layout").
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

/* "dir/name"; ST_FULL: too long. */
MUST_CHECK enum status ckpt_path(const char *dir, const char *name, char out[LIMIT_PATH]);
/* Folder that dir lies in ("." if it has none), and its last part. Trailing slashes don't count. */
MUST_CHECK enum status ckpt_parent(const char *dir, char out[LIMIT_PATH]);
MUST_CHECK enum status ckpt_base(const char *dir, char out[LIMIT_PATH]);

/* "step-000000001000.g7"; ST_INVALID: numbers that no folder has. */
MUST_CHECK enum status ckpt_folder_name(uint64_t step, uint64_t generation, char out[LIMIT_NAME]);
/* Reads "step-000000001000.g7", with "bad-" before and ".2" behind if it is quarantined. */
struct ckpt_folder_name {
    uint64_t step, generation;
    bool quarantined;
};
bool ckpt_folder_parse(const char *name, struct ckpt_folder_name *out);
