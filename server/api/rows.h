/*
 * Pages of a job's rows, packed as the journal has them. The next one can be read before anybody
 * asks for it.
 *
 * Thread: the journal's.
 */
#pragma once

#include "cairn/v1/control.pb-c.h"
#include "common/buf.h"
#include "server/journal/journal.h"

#define ROWS_PAGE  4096
#define ROWS_BYTES ((size_t)1024 * 1024) /* of a page; one row may be over it */

struct rows_page {
    ProtobufCMessageUnknownField *list; /* owned; ROWS_PAGE of them */
    size_t count;
    struct buf bytes;
    char job[16]; /* "": there is no page */
    uint64_t from_step, next_step;
    bool more;
    bool told;   /* the page was put into a reply: the next one is wanted */
    bool failed; /* no memory */
};

/* Makes the page of that step the one that is here, if it isn't. Errors: the journal's,
 * ST_NO_MEMORY */
MUST_CHECK enum status rows_read(struct rows_page *rows, struct journal *journal, const char *job,
                                 uint64_t from_step);
/* Writes the page into a reply, whose rows are borrowed. */
void rows_put(struct rows_page *rows, Cairn__V1__ReadMetricsReply *out);
/* Forgets the page: it is read anew when it is asked for. */
void rows_forget(struct rows_page *rows);
/* Reads the next page after one that was told and isn't the last; if it can't be read, none. */
void rows_read_ahead(struct rows_page *rows, struct journal *journal);
void rows_release(struct rows_page *rows);
