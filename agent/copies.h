/*
 * The folders of this node's memory that hold jobs' copies (session/copies/copy_file.h): made when
 * a trainer is started, removed when the coordinator says that the job needs them no more.
 *
 *     BASE/             of mode 0700 and our own, else nothing in it is looked at
 *     BASE/NODE/        this agent's
 *     BASE/NODE/JOB/    the job's copy files
 *
 * BASE is paths_copies(), whose name everybody can compute, in a folder where everybody may make
 * it. Where it isn't ours, another with random digits is used from then on: HOME/agent/NODE.copies
 * holds it. One that CAIRN_COPIES names is a person's choice, and has no other.
 */
#pragma once

#include <stddef.h>

#include "common/limits.h"
#include "common/log.h"
#include "common/paths.h"
#include "common/reason.h"

#define COPIES_JOBS_MAX 4096

struct copies {
    char base[LIMIT_PATH];
    char node[LIMIT_NAME];
    char kept[LIMIT_PATH]; /* the file that holds another base; "": there is none, and no other */
    struct reason trouble; /* "": none; else what people should know of where copies lie */
    const struct log *log; /* borrowed */
};

/* Finds the base folder. Problems are logged, and noted in trouble. */
void copies_open(struct copies *copies, const struct paths *paths, const char *node,
                 const struct log *log);

/* The folder of a job, made if it isn't there. ST_REFUSED: somebody else's is in its place; … */
MUST_CHECK enum status copies_folder(struct copies *copies, const char *job, char out[LIMIT_PATH]);

/* Jobs, by names of the coordinator's form, that have a folder. *out: free(), one block with the
 * names; NULL where the count is 0. */
size_t copies_jobs(const struct copies *copies, char ***out);

/* Removes a job's copy files, and its folder if nothing else is in it. */
void copies_forget(const struct copies *copies, const char *job);
