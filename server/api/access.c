#include "server/api/access.h"

#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "identity/behalf.h"
#include "identity/make.h"
#include "identity/rights.h"

#define PEER_BYTES 128

static bool is_service(const char *path, const char *service)
{
    const size_t size = strlen(service);
    return path[0] == '/' && strncmp(path + 1, service, size) == 0 && path[size + 1] == '/';
}

/* "/cairn.v1.Control/GetJob": "GetJob". */
static const char *method_of(const char *path)
{
    return strrchr(path, '/') + 1;
}

/* Judges a call by the caller's role. Services that aren't ours (health, reflection) tell nothing
 * that matters. */
static enum rpc_code judge(enum identity_role role, const char *path, const char **out_detail)
{
    const bool control = is_service(path, "cairn.v1.Control");
    if (!control && !is_service(path, "cairn.v1.Fleet"))
        return RPC_OK;
    const char *why =
        identity_refusal(role, control ? IDENTITY_CONTROL : IDENTITY_FLEET, method_of(path));
    if (why == NULL)
        return RPC_OK;
    *out_detail = why;
    return RPC_PERMISSION_DENIED;
}

/* Whether the caller says for whom it asks, in words that will do. Only the page does: it has the
 * rights of the home's owner, and the people that it asks for have fewer. */
enum behalf { BEHALF_NONE, BEHALF_GOOD, BEHALF_BAD };

static enum behalf read_behalf(const struct rpc_call *call, struct identity_behalf *out)
{
    struct ucred peer;
    struct rpc_bytes text;
    if (!rpc_call_peer_cred(call, &peer) || !rpc_call_metadata(call, IDENTITY_BEHALF_KEY, &text))
        return BEHALF_NONE;
    return identity_behalf_read(text.data, text.size, out) ? BEHALF_GOOD : BEHALF_BAD;
}

/* Over the socket, where the listener checked who calls. */
static enum rpc_code judge_owner(const struct rpc_call *call, const char **out_detail)
{
    struct identity_behalf behalf;
    switch (read_behalf(call, &behalf)) {
    case BEHALF_NONE:
        return RPC_OK;
    case BEHALF_GOOD:
        return judge(behalf.role, rpc_call_path(call), out_detail);
    case BEHALF_BAD:
        break;
    }
    *out_detail = IDENTITY_BEHALF_KEY " says for whom the page asks, as 'operator/NAME ADDRESS' or "
                                      "'viewer/NAME ADDRESS': leave it out";
    return RPC_UNAUTHENTICATED;
}

/* More of it is checked with its hello (server/coord/inputs/trainers.c). */
static enum rpc_code judge_trainer(const struct access *access, const struct rpc_call *call,
                                   const char **out_detail)
{
    char token[IDENTITY_TOKEN];
    if (rpc_call_token(call, token, sizeof(token)) && identity_sealed(access->seal, token))
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
    const bool shown = rpc_call_token(call, secret, sizeof(secret));
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
    struct identity_behalf behalf;
    struct ucred peer;
    if (read_behalf(call, &behalf) == BEHALF_GOOD) {
        (void)snprintf(out, ACCESS_ACTOR, "%s/%s" ACCESS_PAGE, identity_role_name(behalf.role),
                       behalf.who);
        return;
    }
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
    return (is_service(path, "cairn.v1.Control") && !identity_method_looks(method_of(path))) ||
           strcmp(path, "/cairn.v1.Fleet/Join") == 0 || strcmp(path, "/cairn.v1.Fleet/Renew") == 0;
}

/* Writes the caller's address and, for a caller behind the page, the address of the page's user. */
static void describe_peer(const struct rpc_call *call, char out[PEER_BYTES])
{
    struct identity_behalf behalf;
    rpc_call_peer(call, out, PEER_BYTES);
    const size_t size = strlen(out);
    if (read_behalf(call, &behalf) == BEHALF_GOOD)
        (void)snprintf(out + size, PEER_BYTES - size, " for %s", behalf.address);
}

void access_note(struct auditlog *auditlog, const struct rpc_call *call, const char *about,
                 enum rpc_code code, const char *why)
{
    static const char package[] = "/cairn.v1.";
    const bool refused = code == RPC_UNAUTHENTICATED || code == RPC_PERMISSION_DENIED;
    const char *path = rpc_call_path(call);
    if (!refused && !changes(path))
        return;
    char actor[ACCESS_ACTOR], peer[PEER_BYTES];
    access_actor(call, refused, actor);
    describe_peer(call, peer);
    const bool is_renewal = strcmp(path, "/cairn.v1.Fleet/Renew") == 0;
    const bool ours = strncmp(path, package, sizeof(package) - 1) == 0;
    const struct auditlog_call row = { .actor = actor,
                                       .peer = peer,
                                       .method = ours ? path + sizeof(package) - 1 : path,
                                       .about = about,
                                       .code = rpc_code_name(code),
                                       .why = refused ? why : NULL,
                                       .often = code != RPC_OK || is_renewal };
    if (refused) {
        auditlog_refusal(auditlog, &row);
    } else {
        auditlog_note(auditlog, &row);
    }
}

static enum rpc_code authorize(const struct access *access, struct rpc_call *call,
                               const char **out_detail)
{
    struct ucred peer;
    if (rpc_call_peer_cred(call, &peer))
        return judge_owner(call, out_detail);
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
        access_note(access->auditlog, call, "", code, *out_detail);
    return code;
}
