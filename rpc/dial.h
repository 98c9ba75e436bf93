/*
 * Private to rpc/: whom a channel's calls go to, looked at before each of them. A socket must be
 * ours or root's, in a folder where nobody else may put one; a token goes, on loopback, only to
 * whoever listens there as us or root. So no caller can forget to look.
 *
 * Thread: any, once it is open.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/limits.h"
#include "rpc/client.h"

struct rpc_dial {
    char target[LIMIT_PATH + 16]; /* the target that gRPC is given */
    char folder[LIMIT_PATH];      /* of the socket; "": the target is none */
    char name[LIMIT_NAME];        /* name of the socket in that folder */
    int folder_fd;                /* the open folder, if gRPC can't take its path; or -1 */
    char *token;                  /* or NULL */
    char *token_file;             /* read for each call, instead; or NULL */
    bool bare; /* a token would be seen by anybody who listens there: TCP without TLS */
};

void rpc_dial_open(struct rpc_dial *dial, const struct rpc_channel_options *options);
void rpc_dial_close(struct rpc_dial *dial);

/*
 * Looks whether a call may be made, and which token it carries: *out_authorization is free()d by
 * the caller, or NULL. wait_ms: how long to wait for somebody who listens.
 * Errors: the code, with the way out in detail
 */
MUST_CHECK enum rpc_code rpc_dial_admit(const struct rpc_dial *dial, int64_t wait_ms,
                                        char **out_authorization, struct rpc_result *result);
