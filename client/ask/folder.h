/*
 * What of Cairn's lies in a folder, by the names and first bytes of what is in it: a folder that
 * somebody names may be anybody's.
 */
#pragma once

#include "checkpoint/checkpoint.h"

#define FOLDER_OTHERS_MAX 4 /* names that are kept to be shown */

enum folder_manifest {
    FOLDER_NO_MANIFEST,
    FOLDER_FOREIGN,       /* a file of that name, which doesn't begin as ours do */
    FOLDER_DAMAGED,       /* begins as ours do, and can't be read */
    FOLDER_OTHER_VERSION, /* of Cairn, not of this build */
    FOLDER_WHOLE
};

struct folder {
    bool named; /* named as checkpoints are: step-000000000008.g1, bad-… of that form */
    enum folder_manifest manifest;
    size_t ours, shards; /* files; ours: a manifest that may be ours is one of them */
    size_t others;
    char other[FOLDER_OTHERS_MAX][LIMIT_NAME];
};

/* ST_NOT_FOUND and others: the folder, or its manifest, can't be read now. */
MUST_CHECK enum status folder_look(const struct io *io, const char *path, struct folder *out);

/* True if the folder is named as a checkpoint. */
bool folder_is_named(const char *path);
/* True for a checkpoint, whole or damaged: by its name, by its manifest, or by a shard beside
 * one. */
bool folder_is_checkpoint(const struct folder *folder);
