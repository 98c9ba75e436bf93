/* Writes the lines of families: of one subject, or of all parts of one. */
#pragma once

#include "common/buf.h"
#include "common/status.h"
#include "observer/prometheus/families.h"

/* Returns the families whose subjects are of this kind. */
struct prometheus_table prometheus_families(enum prometheus_of of);

/* Writes all lines that the family has for this subject.
 * Errors: ST_FULL, ST_NO_MEMORY: some of them may be written. */
MUST_CHECK enum status prometheus_put_family(const struct prometheus_family *family,
                                             enum prometheus_of of,
                                             const struct prometheus_subject *subject,
                                             struct buf *out);

/* Like prometheus_put_family, for all workers of a job (PROMETHEUS_OF_WORKER), or all GPUs of a
 * node (PROMETHEUS_OF_GPU). */
MUST_CHECK enum status prometheus_put_parts(const struct prometheus_family *family,
                                            enum prometheus_of of,
                                            const struct prometheus_subject *whole,
                                            struct buf *out);
