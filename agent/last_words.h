/*
 * What a trainer leaves that says why it ended: its last words (training.proto, LastWords), written
 * by session/last_words.c, and the last mark of its flight recorder (common/flight.h).
 */
#pragma once

#include "agent/ref.h"
#include "cairn/v1/common.pb-c.h"
#include "common/io.h"

/* Reads a trainer's last words. NULL: there are none, or they are not complete, or are another
 * trainer's. Freed by last_words_free. */
Cairn__V1__LastWords *last_words_read(const struct io *io, const char *path, const struct ref *ref);
void last_words_free(const Cairn__V1__LastWords *words);

/* The last mark as text, and what was before it: "in phase forward of step 7, before that data,
 * update, reduce; collective 7 (reduce) has ended"; "" if there is none. */
void last_mark_read(const struct io *io, const char *path, char *out, size_t capacity);
/* The steps that it had finished at the last mark, 0 if there is none. Last words are written only
 * where a session's thread gets to it, marks with each phase. */
uint64_t last_mark_step(const struct io *io, const char *path);
