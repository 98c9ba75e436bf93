/*
 * What is wrong with a checkpoint: lines for a person, and the worst of their kinds.
 */
#pragma once

#include "checkpoint/checkpoint.h"
#include "common/status.h"

struct ckpt_findings {
    ckpt_finding_fn fn; /* or NULL */
    void *arg;
    enum status worst; /* ST_OK; ST_VERSION < ST_INCOMPLETE < ST_CORRUPT */
};

/* Reports "file: …" of kind st (one of the three above, or ST_OK for a remark) and returns st. */
enum status ckpt_finding(struct ckpt_findings *findings, enum status st, const char *file,
                         const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Whether st is a finding: the bytes are bad. Everything else is a failed call. */
bool ckpt_is_damage(enum status st);
