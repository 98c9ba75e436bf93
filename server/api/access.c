#include "server/api/access.h"

#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "identity/make.h"

/* Methods of Control that change nothing. */
static const char *const looks[] = {
    "ListJobs",  "GetJob",        "WatchJob",    "ListCheckpoints", "StreamLogs",
    "ListNodes", "StreamMetrics", "ReadMetrics", "ExplainJob",      "GetVersion",
};

static bool is_service(const char *path, const char *service)
{
    const size_t size = strlen(service);
    return path[0] == '/' && strncmp(path + 1, service, size) == 0 && path[size + 1] == '/';
}

static bool is_look(const char *path)
{
    const char *method = strrchr(path, '/') + 1;
    for (size_t i = 0; i < sizeof looks / sizeof looks[0]; i++) {
        if (strcmp(method, looks[i]) == 0)
            return true;
    }
    return false;
}

/* By role. Services that aren't ours (health, reflection) tell nothing that matters. */
static enum rpc_code judge(enum identity_role role, const char *path, const char **out_detail)
{
    const bool control = is_service(path, "cairn.v1.Control");
    const bool fleet = is_service(path, "cairn.v1.Fleet");
    if (!control && !fleet)
        return RPC_OK;
    switch (role) {
    case IDENTITY_OPERATOR:
        if (control)
            return RPC_OK;
        *out_detail =
            "an operator's certificate is for people: an agent needs a node's, as made by "
            "'cairn cert node NAME'";
        break;
    case IDENTITY_VIEWER:
        if (control && is_look(path))
            return RPC_OK;
        *out_detail = "a viewer's certificate is for looking: this takes an operator's, as made by "
                      "'cairn cert operator NAME'";
        break;
    case IDENTITY_NODE:
        if (fleet)
            return RPC_OK;
        *out_detail = "a node's certificate is for its agent: commands take an operator's, as made "
                      "by 'cairn cert operator NAME'";
        break;
    case IDENTITY_COORDINATOR:
        *out_detail = "a coordinator's certificate is for serving: commands take an operator's, as "
                      "made by 'cairn cert operator NAME'";
        break;
    }
    return RPC_PERMISSION_DENIED;
}

/* More of it is checked with its hello (server/core/entry/trainers.c). */
static enum rpc_code judge_trainer(const struct access *access, const struct rpc_call *call,
                                   const char **out_detail)
{
    char token[IDENTITY_TOKEN];
    if (rpc_call_token(call, token, sizeof token) && identity_sealed(access->seal, token))
        return RPC_OK;
    for (size_t i = 0; i < access->known_count; i++) {
        if (rpc_call_has_token(call, access->known[i]))
            return RPC_OK;
    }
    *out_detail = "a trainer brings the token of its generation, which its agent gives it: this is "
                  "none that this coordinator made";
    return RPC_UNAUTHENTICATED;
}

/* More of it is checked with its request (admit.c). */
static enum rpc_code judge_joiner(const struct access *access, const struct rpc_call *call,
                                  const char **out_detail)
{
    char secret[IDENTITY_SECRET];
    const int64_t now_s = clock_wall_ms(clock_system()) / 1000;
    const bool shown = rpc_call_token(call, secret, sizeof secret);
    if (shown && invites_know(access->invites, secret, now_s))
        return RPC_OK;
    *out_detail = shown ? INVITES_REFUSED
                        : "an invite's secret comes with the call: an agent that doesn't show it "
                          "so is older than this coordinator, install the same version";
    return RPC_UNAUTHENTICATED;
}

static enum rpc_code judge_peer(const struct access *access, const struct rpc_call *call,
                                const char **out_detail)
{
    struct identity_cert cert;
    const char *path = rpc_call_path(call);
    const enum status st = rpc_call_peer_identity(call, &cert);
    if (st == ST_NOT_FOUND) {
        *out_detail =
            "this coordinator wants a certificate: --tls-cert, --tls-key and --tls-ca, as "
            "made by 'cairn cert'";
        return RPC_UNAUTHENTICATED;
    }
    if (st != ST_OK) {
        *out_detail = "this certificate names nobody of a cluster: 'cairn cert show' says what it "
                      "is, 'cairn cert' makes others";
        return RPC_UNAUTHENTICATED;
    }
    if (cert.not_after_s * 1000 <= clock_wall_ms(clock_system())) {
        *out_detail = ACCESS_EXPIRED;
        return RPC_UNAUTHENTICATED;
    }
    if (strcmp(cert.who.cluster, access->cluster) != 0) {
        *out_detail = "this certificate is of another cluster than the coordinator's";
        return RPC_UNAUTHENTICATED;
    }
    return judge(cert.who.role, path, out_detail);
}

int64_t access_until_ms(const struct rpc_call *call)
{
    struct identity_cert cert;
    return rpc_call_peer_identity(call, &cert) == ST_OK ? cert.not_after_s * 1000 : INT64_MAX;
}

bool access_node(const struct rpc_call *call, char out[LIMIT_NAME], int64_t *out_issued_s)
{
    struct identity_cert cert;
    if (rpc_call_peer_identity(call, &cert) != ST_OK || cert.who.role != IDENTITY_NODE)
        return false;
    (void)snprintf(out, LIMIT_NAME, "%s", cert.who.name);
    *out_issued_s = cert.not_before_s + IDENTITY_EARLY_S;
    return true;
}

void access_actor(const struct rpc_call *call, bool refused, char out[ACCESS_ACTOR])
{
    struct identity_cert cert;
    struct ucred peer;
    const enum status st = rpc_call_peer_identity(call, &cert);
    if (st == ST_OK) {
        (void)snprintf(out, ACCESS_ACTOR, "%s/%s", identity_role_name(cert.who.role),
                       cert.who.name);
        return;
    }
    const bool local =
        rpc_call_peer_cred(call, &peer) ||
        (st == ST_NOT_FOUND && !refused && is_service(rpc_call_path(call), "cairn.v1.Control"));
    (void)snprintf(out, ACCESS_ACTOR, "%s", local ? ACCESS_LOCAL : "nobody");
}

/* A method that changes something, or lets somebody in. */
static bool changes(const char *path)
{
    return (is_service(path, "cairn.v1.Control") && !is_look(path)) ||
           strcmp(path, "/cairn.v1.Fleet/Join") == 0 || strcmp(path, "/cairn.v1.Fleet/Renew") == 0;
}

void access_note(struct audit *audit, const struct rpc_call *call, const char *about,
                 enum rpc_code code, const char *why)
{
    static const char package[] = "/cairn.v1.";
    const bool refused = code == RPC_UNAUTHENTICATED || code == RPC_PERMISSION_DENIED;
    const char *path = rpc_call_path(call);
    if (!refused && !changes(path))
        return;
    char actor[ACCESS_ACTOR], peer[64];
    access_actor(call, refused, actor);
    rpc_call_peer(call, peer, sizeof peer);
    const bool ours = strncmp(path, package, sizeof package - 1) == 0;
    const struct audit_call row = { .actor = actor,
                                    .peer = peer,
                                    .method = ours ? path + sizeof package - 1 : path,
                                    .about = about,
                                    .code = rpc_code_name(code),
                                    .why = refused ? why : NULL };
    if (refused) {
        audit_refusal(audit, &row);
    } else {
        audit_note(audit, &row);
    }
}

static enum rpc_code authorize(const struct access *access, struct rpc_call *call,
                               const char **out_detail)
{
    struct ucred peer;
    if (rpc_call_peer_cred(call, &peer))
        return RPC_OK; /* the listener checked them */
    if (is_service(rpc_call_path(call), "cairn.v1.Training"))
        return judge_trainer(access, call, out_detail);
    if (access->tls && strcmp(rpc_call_path(call), "/cairn.v1.Fleet/Join") == 0)
        return judge_joiner(access, call, out_detail);
    if (access->tls)
        return judge_peer(access, call, out_detail);
    if (access->token[0] != '\0' && rpc_call_has_token(call, access->token))
        return RPC_OK;
    *out_detail = "the bearer token of CAIRN_HOME/token is missing or wrong";
    return RPC_UNAUTHENTICATED;
}

enum rpc_code access_authorize(void *ctx, struct rpc_call *call, const char **out_detail)
{
    const struct access *access = ctx;
    const enum rpc_code code = authorize(access, call, out_detail);
    if (code != RPC_OK)
        access_note(access->audit, call, "", code, *out_detail);
    return code;
}
