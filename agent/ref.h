/*
 * Identifies a trainer: (job, generation, rank), as it names files and messages.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cairn/v1/fleet.pb-c.h"
#include "common/limits.h"
#include "common/paths.h"
#include "common/status.h"

struct ref {
    char job[LIMIT_NAME];
    uint32_t generation, rank;
};

/* Errors: ST_INVALID  no reference, a rank out of range, or a job id that is no file name */
MUST_CHECK enum status ref_from_wire(const Cairn__V1__TrainerRef *wire, struct ref *out);
/* The wire's view of a reference: borrows from it. */
void ref_to_wire(struct ref *ref, Cairn__V1__TrainerRef *out);
bool ref_equal(const struct ref *a, const struct ref *b);

/* A name that can be part of a file's: 1 to LIMIT_NAME - 1 of [A-Za-z0-9._-], the first no dot. */
bool ref_name_is_safe(const char *name);

/*
 * Returns the trainer that had this rank in this generation: that of the newest generation up to it
 * which has a log here, as a trainer may outlive the generation that it was started for. Returns
 * ref if there is no such log.
 */
struct ref ref_born(const struct ref *ref, const struct paths *paths);

/* The files of one trainer (common/paths.h). */
struct ref_files {
    char folder[LIMIT_PATH];
    char log[LIMIT_PATH];
    char words[LIMIT_PATH];
    char flight[LIMIT_PATH];
    char program[LIMIT_PATH];
    char record[LIMIT_PATH];
};
MUST_CHECK enum status ref_files(const struct ref *ref, const struct paths *paths,
                                 struct ref_files *out);
