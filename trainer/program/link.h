/*
 * The session's link over gRPC: one bidirectional stream of the Training service at a time.
 *
 * How a stream ends says what it means: refused as FAILED_PRECONDITION, UNAUTHENTICATED or
 * PERMISSION_DENIED is ST_STALE (this generation is over); any other end is ST_CLOSED (open again).
 *
 * Thread: as struct session_link says (session/session.h): interrupt from any, all others from one.
 */
#pragma once

#include "common/status.h"
#include "session/session.h"

struct link;

/* Borrowed for the link's life. */
struct link_options {
    const char *target;
    const char *token;  /* NULL: none */
    const char *tls_ca; /* file of the authorities that may sign the coordinator; NULL: plaintext */
};

/* Errors: those of rpc_channel_new. */
MUST_CHECK enum status link_new(const struct link_options *how, struct link **out);
/* Frees the link; after session_close. */
void link_free(struct link *link);
/* Borrowed for the link's life. */
const struct session_link *link_table(const struct link *link);
