/*
 * The folders of this node's memory that hold jobs' copies (session/copies/copy_file.h): made when
 * a trainer is started, removed when the coordinator says that the job needs them no more.
 *
 *     BASE/             paths_copies(); of mode 0700 and our own, else not used
 *     BASE/NODE/        this agent's
 *     BASE/NODE/JOB/    the job's copy files
 */
#pragma once

#include <stddef.h>

#include "common/limits.h"
#include "common/log.h"
#include "common/paths.h"

#define COPIES_JOBS_MAX 4096

struct copies {
    char base[LIMIT_PATH];
    char root[LIMIT_PATH]; /* BASE/NODE; "": the path is too long, nothing is kept */
};

void copies_open(struct copies *copies, const struct paths *paths, const char *node);

/* The folder of a job, made if it isn't there. ST_REFUSED: somebody else's is in its place; … */
MUST_CHECK enum status copies_folder(const struct copies *copies, const char *job,
                                     char out[LIMIT_PATH]);

/* Jobs that have a folder. *out: free(), one block with the names; NULL where the count is 0. */
size_t copies_jobs(const struct copies *copies, char ***out);

/* Removes a job's folder with what is in it. */
void copies_forget(const struct copies *copies, const char *job, const struct log *log);
