/*
 * What a trainer leaves: its last words (training.proto, LastWords) and its flight recorder.
 */
#pragma once

#include "agent/ref.h"
#include "cairn/v1/common.pb-c.h"
#include "common/io.h"

/* NULL: there are none, or they are not whole, or somebody else's. words_free. */
Cairn__V1__LastWords *words_read(const struct io *io, const char *path, const struct ref *ref);
void words_free(const Cairn__V1__LastWords *words);

/* The flight recorder's last mark, as "in phase reduce of step 7"; "" if there is none. */
void last_mark_read(const struct io *io, const char *path, char *out, size_t capacity);
