/*
 * The reports of a save, as the ranks packed them (cairn.v1.SaveReport): a task carries them to
 * where it runs, and unpacks them there.
 */
#pragma once

#include "checkpoint/checkpoint.h"
#include "common/buf.h"

struct store_reports {
    struct buf packed;
    uint32_t count;
};

void store_reports_init(struct store_reports *reports);
void store_reports_release(struct store_reports *reports);
/* Of the next rank. */
MUST_CHECK enum status store_reports_add(struct store_reports *reports, const void *report,
                                         size_t size);
/*
 * out: by rank; each is to be released, then freed together, whatever comes back.
 * Errors: ST_CORRUPT, ST_INVALID: one makes no sense
 */
MUST_CHECK enum status store_reports_unpack(const struct store_reports *reports,
                                            struct ckpt_report **out, uint32_t *out_count);
