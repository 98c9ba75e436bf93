/*
 * Checkpoints set aside without a rename.
 *
 * On a file system quarantine renames a checkpoint's folder X to bad-X. An object store would copy
 * every byte, and be cut off in between. Here X's objects stay where they are; the object bad-X,
 * right beside the folder, says that X is set aside, and holds what was its manifest:
 *
 *     JOB/X/manifest.json  --rename--> (nothing)       read as JOB/bad-X/manifest.json:
 *     (nothing)                        JOB/bad-X       the object JOB/bad-X
 *     JOB/X/shard-…                    JOB/X/shard-…   also under JOB/bad-X/shard-…
 *
 * While bad-X is there, X isn't listed, can't be asked for as a folder and can't be made anew.
 */
#pragma once

#include <stdbool.h>

#include "checkpoint/s3/url.h"

/* Meaning of a path's last two parts. */
enum s3_meaning {
    S3_PLAIN,         /* an object, or any folder */
    S3_STEP,          /* a checkpoint's folder X */
    S3_ASIDE,         /* bad-X as a folder */
    S3_ASIDE_MANIFEST /* bad-X/manifest.json */
};

struct s3_path {
    enum s3_meaning meaning;
    struct s3_place place;  /* the object; of S3_STEP and S3_ASIDE: the folder X */
    struct s3_place marker; /* the object bad-X; of all but S3_PLAIN */
};

/* false: this is no path of S3, or a part of it is too long. */
bool s3_path_parse(const char *path, struct s3_path *out);
/* A name inside of a folder. */
bool s3_place_join(const struct s3_place *folder, const char *name, struct s3_place *out);
