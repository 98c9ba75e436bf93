/*
 * Jobs as JSON, one text each. Texts of jobs that haven't changed since an earlier answer of the
 * coordinator are that answer's: of many jobs a few change in a second.
 *
 * Thread: any; texts never change once they are made.
 */
#pragma once

#include <stddef.h>

#include "cairn/v1/control.pb-c.h"
#include "common/buf.h"

struct texts;

/* before: those of an earlier answer, or NULL. NULL: no memory. Released by texts_unref. */
struct texts *texts_new(Cairn__V1__Job *const *jobs, size_t count, const struct texts *before);
struct texts *texts_ref(struct texts *texts);
void texts_unref(struct texts *texts); /* NULL is let through */

/* Appends the texts, in their order and with commas between them; with `known`, those alone of
 * jobs that it lacks or that were others in it. out_count: how many. */
MUST_CHECK enum status texts_put(const struct texts *texts, const struct texts *known,
                                 struct buf *out, size_t *out_count);
