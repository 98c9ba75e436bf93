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

struct trainer_link;

/* Borrowed for the link's life. */
struct trainer_link_options {
    const char *target;
    const char *token;  /* NULL: none */
    const char *tls_ca; /* file of the authorities that may sign the coordinator; NULL: plaintext */
};

/* Errors: those of rpc_channel_new. */
MUST_CHECK enum status trainer_link_new(const struct trainer_link_options *how,
                                        struct trainer_link **out);
/* Frees the link; after session_close. */
void trainer_link_free(struct trainer_link *link);
/* Borrowed for the link's life. */
const struct session_link *trainer_link_table(const struct trainer_link *link);
