/* The reports of a save, as the ranks packed them (cairn.v1.SaveReport), read from the journal. */
#pragma once

#include "checkpoint/checkpoint.h"

/* The save whose reports are read. */
struct store_reports {
    const char *journal; /* its path */
    const char *job;
    uint64_t step;
    uint32_t generation, ranks;
};

/*
 * On any thread. out: by rank; each of out_count is to be released, then freed together, whatever
 * comes back.
 * Errors: ST_INCOMPLETE: not those of all ranks are there; ST_CORRUPT, ST_INVALID: one makes no
 *         sense; those of the journal
 */
MUST_CHECK enum status store_reports_read(const struct store_reports *of, struct ckpt_report **out,
                                          uint32_t *out_count);
