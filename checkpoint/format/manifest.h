/*
 * The bytes of a manifest (docs/format.md): BODY ,"xxh3_128":"HASH"} newline.
 */
#pragma once

#include <stddef.h>

#include "checkpoint/checkpoint.h"

/* ST_CORRUPT, ST_VERSION: *what is then static text. */
MUST_CHECK enum status ckpt_manifest_parse(const char *bytes, size_t size,
                                           struct ckpt_manifest *out, const char **what);
/* As ckpt_manifest_read; says what is wrong. */
MUST_CHECK enum status ckpt_manifest_load(const struct io *io, const char *dir,
                                          struct ckpt_manifest *out, const char **what);
