/*
 * The rights of callers: who may call what.
 *
 *     over                  is                 may call
 *     the Unix socket       its owner, or root everything; what it says it asks for another
 *                                            (identity/behalf.h): what that one's role may
 *     loopback, no TLS      with the token     everything but Training
 *                           with a generation's token   Training
 *     TLS                   node               Fleet, as the node that its certificate names
 *                           operator           Control
 *                           viewer             what Control has to look at
 *                           coordinator        nothing
 *                           any of them        health, reflection
 *                           anybody with a generation's token   Training
 *                           anybody with the secret of an invite   Fleet.Join
 *
 * A caller that may not is told so before anything that it sends is read: a stranger costs a
 * connection and a refusal. A trainer shows no certificate, as a node's key stays with the agent:
 * it is known by the token of its generation, in the call's metadata. Here the token only has to be
 * one that this coordinator made (identity/seal.h); the trainer's hello says which generation it is
 * of. An invite's secret comes the same way. The bearer token of loopback isn't taken over TLS: it
 * tells nobody apart.
 *
 * Thread: access_authorize on gRPC's; it reads what doesn't change after the start.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "identity/identity.h"
#include "identity/seal.h"
#include "rpc/server.h"
#include "server/api/invites.h"
#include "server/auditlog/auditlog.h"

struct access {
    bool tls;                       /* TCP speaks TLS */
    char cluster[IDENTITY_CLUSTER]; /* with TLS: the cluster whose certificates count */
    char token[IDENTITY_TOKEN];     /* without; "": no TCP */
    char seal[IDENTITY_TOKEN];      /* key of the tokens of generations */
    /* Tokens of generations that another key made, or a version without one; owned by the caller,
     * who changes them before the first call only. */
    char (*known)[IDENTITY_TOKEN];
    size_t known_count;
    struct invites *invites;   /* borrowed */
    struct auditlog *auditlog; /* refusals go there */
};

#define ACCESS_LOCAL "local"
#define ACCESS_PAGE  "@page" /* follows the page's user: no certificate's name has an '@' */
#define ACCESS_ACTOR (LIMIT_NAME + 24) /* bytes of "operator/alice@page", with the NUL */
/*
 * Writes who calls, by what was checked: the role and name of a certificate. For the page it is its
 * user, as the observer says it ("operator/alice@page", "operator/session:3f2a9c@page"). "local" is
 * somebody on this machine, who came over the socket or has the token; "nobody" anybody else.
 * refused: the call wasn't let through.
 */
void access_actor(const struct rpc_call *call, bool refused, char out[ACCESS_ACTOR]);
/*
 * Notes the end of a call in the audit log, if it belongs there: whatever changes something or lets
 * somebody in, and what was refused because of who asked. about: a job or node, or "". why: what a
 * refused caller is told.
 */
void access_note(struct auditlog *auditlog, const struct rpc_call *call, const char *about,
                 enum rpc_code code, const char *why);

/* Returns when a call that goes on has to end, in Unix time, with the detail ACCESS_EXPIRED;
 * INT64_MAX: no certificate was shown. */
#define ACCESS_EXPIRED                                                                             \
    "this certificate has expired since it connected: renew it with 'cairn cert renew', and "      \
    "connect again"
int64_t access_until_ms(const struct rpc_call *call);
/* Finds the node that the caller's certificate names, and when that was issued (Unix time); false:
 * it shows none. */
bool access_node(const struct rpc_call *call, char out[LIMIT_NAME], int64_t *out_issued_s);

/* Decides whether a call is let through. ctx is a struct access. A detail is one line with the way
 * out. */
enum rpc_code access_authorize(void *ctx, struct rpc_call *call, const char **out_detail);
