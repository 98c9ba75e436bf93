/*
 * Last words: the file that a trainer leaves (training.proto, LastWords).
 */
#pragma once

#include "agent/ref.h"
#include "cairn/v1/common.pb-c.h"
#include "common/io.h"

/* NULL: there are none, or they are not whole, or somebody else's. words_free. */
Cairn__V1__LastWords *words_read(const struct io *io, const char *path, const struct ref *ref);
void words_free(const Cairn__V1__LastWords *words);
