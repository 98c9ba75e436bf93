/*
 * Findings about a damaged checkpoint: a line for a person per finding, and the worst kind among
 * them.
 *
 * Findings are about bytes that are there. ST_INCOMPLETE and ST_CORRUPT: they are damaged.
 * ST_VERSION: a later version wrote them, and this build can't tell whether they are. A call that
 * fails (ST_IO, …) says nothing of them.
 */
#pragma once

#include "checkpoint/checkpoint.h"
#include "common/status.h"

struct ckpt_findings {
    ckpt_finding_fn fn; /* or NULL */
    void *arg;
    enum status worst; /* ST_OK < ST_INCOMPLETE < ST_CORRUPT < ST_VERSION */
};

/* Reports "file: …" of kind st (one of the three above, or ST_OK for a remark) and returns st. */
enum status ckpt_finding(struct ckpt_findings *findings, enum status st, const char *file,
                         const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Whether st is one of the three: the calls have done their work, and the bytes can't be used. */
bool ckpt_is_finding(enum status st);
/* Whether the bytes are bad. */
bool ckpt_is_damage(enum status st);
