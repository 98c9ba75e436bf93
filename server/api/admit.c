/*
 * Admission to the cluster: nodes that are forgotten, invites, machines that join by one, agents
 * that renew their certificate.
 *
 * The authority's key, ca.key beside the file of --tls-ca, is read when something is to be signed
 * and not kept. Without it nobody joins and nothing is renewed here: `cairn cert` does that.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "identity/cert.h"
#include "identity/make.h"
#include "identity/serving_cert.h"
#include "server/api/api.h"
#include "server/render/render.h"

#define TOO_MANY_WITHDRAWN                                                                         \
    "100,000 nodes were forgotten within the month that their certificates last, and no more can " \
    "be kept in mind: make a new authority instead, and give those who stay its certificates"

_Static_assert(COORD_WITHDRAWN_DAYS > IDENTITY_DAYS, "what is withdrawn may expire first");

#define REQUEST_BYTES 8192 /* of a certificate or a request to sign one, at most */

static int64_t now_s(const struct api *api)
{
    return clock_wall_ms(coord_options(api->coord)->clock) / 1000;
}

/* False, and the call ended: certificates mean nothing here. */
static bool has_tls(const struct api *api, struct rpc_call *call)
{
    if (api->tls != NULL)
        return true;
    api_refuse(call, RPC_FAILED_PRECONDITION,
               "nobody shows a certificate to this coordinator, as it doesn't speak TLS: "
               "'cairn up --listen ADDRESS:PORT' does");
    return false;
}

/* ---- nodes that are forgotten ---- */

void api_forget_node(Cairn__V1__Control_Service *service, const Cairn__V1__ForgetNodeRequest *in,
                     Cairn__V1__Node_Closure reply, void *call)
{
    struct api *api = ((struct api_service_control *)service)->api;
    struct coord_node *node = NULL;
    if (!has_tls(api, call))
        return;
    if (!identity_name_valid(in->node)) {
        api_refuse(call, RPC_INVALID_ARGUMENT, "this can't be a node's name");
        return;
    }
    char actor[ACCESS_ACTOR];
    access_actor(call, false, actor);
    const enum status st = coord_forget_node(api->coord, in->node, actor, &node);
    if (st != ST_OK) {
        api_refuse(call, rpc_code_from_status(st), "forgetting node %s: %s", in->node,
                   st == ST_FULL ? TOO_MANY_WITHDRAWN : status_string(st));
        return;
    }
    Cairn__V1__Node none = CAIRN__V1__NODE__INIT;
    none.name = in->node;
    none.state = (char *)"forgotten";
    Cairn__V1__Node *out = node != NULL ? render_node(api->coord, node) : NULL;
    reply(out != NULL ? out : &none, call);
    cairn__v1__node__free_unpacked(out, NULL);
}

/* ---- invites ---- */

static bool is_one_of(const char *host, const char *list)
{
    const size_t size = strlen(host);
    for (const char *at = list; at != NULL;
         at = strchr(at, ',') != NULL ? strchr(at, ',') + 1 : NULL) {
        if (strncmp(at, host, size) == 0 && (at[size] == ',' || at[size] == '\0'))
            return true;
    }
    return false;
}

static void add_address(struct identity_invite *invite, const char *host, const char *port)
{
    if (invite->address_count == IDENTITY_ADDRESSES)
        return;
    const bool bare = strchr(host, ':') != NULL && host[0] != '[';
    char *out = invite->addresses[invite->address_count];
    const int length = snprintf(out, IDENTITY_ADDRESS, bare ? "[%s]:%s" : "%s:%s", host, port);
    invite->address_count += length > 0 && length < IDENTITY_ADDRESS;
}

/* Adds the coordinator's addresses: the one that people gave, else the one that is listened on, if
 * it is one; then the others that its certificate names. */
static enum status add_addresses(const struct api *api, struct identity_invite *invite,
                                 struct reason *reason)
{
    struct identity_cert own;
    auto_free char *pem = NULL;
    size_t size = 0;
    enum status st = io_read_file(io_system(), api->tls->cert, IDENTITY_FILE_BYTES, &pem, &size);
    if (st == ST_OK)
        st = identity_cert_read(pem, &own);
    if (st != ST_OK) {
        reason_set(reason, "%s can't be read: %s", api->tls->cert, status_string(st));
        return st;
    }
    const char *address = api->advertise != NULL ? api->advertise : api->address;
    const char *port = strrchr(address, ':') + 1;
    char host[256];
    (void)snprintf(host, sizeof(host), "%.*s", (int)(port - 1 - address), address);
    if (!is_one_of(host, "0.0.0.0,[::],::,*"))
        add_address(invite, host, port);
    char *rest = NULL;
    for (char *at = strtok_r(own.hosts, ",", &rest); at != NULL; at = strtok_r(NULL, ",", &rest)) {
        if (!is_one_of(at, IDENTITY_HOSTS) && strcmp(at, host) != 0)
            add_address(invite, at, port);
    }
    if (invite->address_count > 0)
        return ST_OK;
    reason_set(reason,
               "the coordinator serves on %s and doesn't know how others call it: listen "
               "on an address, say one with --advertise, or name hosts in its certificate ('cairn "
               "cert init --hosts')",
               address);
    return ST_REFUSED;
}

static enum status make_invite(struct api *api, uint32_t uses, int64_t until_s,
                               struct identity_invite *invite, struct reason *reason)
{
    uint8_t bytes[32];
    struct identity_pem ca = { 0 };
    enum status st = identity_authority_read(api->tls, &ca, reason);
    if (st == ST_OK)
        st = add_addresses(api, invite, reason);
    invite->ca = ca.cert;
    ca.cert = NULL;
    identity_pem_release(&ca);
    if (st != ST_OK)
        return st;
    const struct coord_options *options = coord_options(api->coord);
    options->random(options->random_arg, bytes, sizeof(bytes));
    identity_secret_make(bytes, invite->secret);
    explicit_bzero(bytes, sizeof(bytes));
    invite->until_s = until_s;
    st = invites_add(&api->invites, invite->secret, uses, until_s, now_s(api));
    if (st == ST_FULL) {
        reason_set(reason, "%d invites count already: wait until one is used up or too old",
                   INVITES_MAX);
    }
    return st;
}

void api_invite_nodes(Cairn__V1__Control_Service *service, const Cairn__V1__InviteNodesRequest *in,
                      Cairn__V1__InviteNodesReply_Closure reply, void *call)
{
    struct api *api = ((struct api_service_control *)service)->api;
    const uint32_t uses = in->uses > 0 ? in->uses : 1;
    const uint32_t valid_s = in->valid_s > 0 ? in->valid_s : INVITES_USUAL_S;
    if (!has_tls(api, call))
        return;
    if (uses > INVITES_USES || valid_s > INVITES_VALID_S) {
        api_refuse(call, RPC_INVALID_ARGUMENT, "an invite is for %d machines and %d days at most",
                   INVITES_USES, INVITES_VALID_S / 86400);
        return;
    }
    struct identity_invite invite = { .ca = NULL };
    struct reason reason = { "" };
    char *text = NULL;
    enum status st = make_invite(api, uses, now_s(api) + valid_s, &invite, &reason);
    if (st == ST_OK)
        st = identity_invite_text(&invite, &text);
    if (st == ST_OK) {
        char until[IDENTITY_TIME];
        identity_time(invite.until_s, until);
        Cairn__V1__InviteNodesReply out = CAIRN__V1__INVITE_NODES_REPLY__INIT;
        out.file = text;
        out.until = until;
        reply(&out, call);
        LOG_INFO(api->log, "an invite was made: for %u nodes, until %s", uses, until);
        explicit_bzero(text, strlen(text));
    } else {
        api_refuse(call, st == ST_FULL ? RPC_RESOURCE_EXHAUSTED : RPC_FAILED_PRECONDITION,
                   "no invite: %s", reason.text[0] ? reason.text : status_string(st));
    }
    free(text);
    identity_invite_release(&invite);
}

/* ---- machines that join ---- */

static void answer(struct rpc_call *call, const char *cert, Cairn__V1__JoinReply_Closure reply)
{
    Cairn__V1__JoinReply out = CAIRN__V1__JOIN_REPLY__INIT;
    out.certificate = (char *)cert;
    reply(&out, call);
}

/* Returns whether that node may join, after the secret was found good. False: the call ended. */
static bool may_join(struct api *api, struct rpc_call *call, const Cairn__V1__JoinRequest *in)
{
    if (!identity_name_valid(in->node) || strlen(in->request) > REQUEST_BYTES) {
        api_refuse(call, RPC_INVALID_ARGUMENT,
                   "this can't be a node's name, or no request to sign a certificate: names are "
                   "letters, digits, '.', '_' and '-'");
        return false;
    }
    if (coord_node_is_taken(api->coord, in->node)) {
        api_refuse(call, RPC_ALREADY_EXISTS,
                   "a node of the name %s is there already: join with another --name, or end its "
                   "agent first",
                   in->node);
        return false;
    }
    return true;
}

static void join(struct api *api, const Cairn__V1__JoinRequest *in,
                 Cairn__V1__JoinReply_Closure reply, struct rpc_call *call)
{
    if (!has_tls(api, call))
        return;
    struct invite *invite = invites_find(&api->invites, in->secret, now_s(api));
    if (invite == NULL) {
        rpc_call_finish(call, RPC_UNAUTHENTICATED, INVITES_REFUSED);
        return;
    }
    if (!may_join(api, call, in))
        return;
    struct identity_pem ca = { 0 };
    struct reason reason = { "" };
    auto_free char *cert = NULL;
    const int64_t forgotten_s = coord_node_forgotten(api->coord, in->node);
    const int64_t issued_s = now_s(api) > forgotten_s ? now_s(api) : forgotten_s + 1;
    enum status st = identity_authority_read(api->tls, &ca, &reason);
    if (st == ST_OK)
        st = identity_sign(&ca, in->request, IDENTITY_NODE, in->node, issued_s, &cert, &reason);
    identity_pem_release(&ca);
    if (st != ST_OK) {
        api_refuse(call, RPC_FAILED_PRECONDITION, "%s",
                   reason.text[0] ? reason.text : status_string(st));
        return;
    }
    invites_use(&api->invites, invite);
    LOG_INFO(api->log, "node %s has a certificate, by an invite", in->node);
    answer(call, cert, reply);
}

void api_join(Cairn__V1__Fleet_Service *service, const Cairn__V1__JoinRequest *in,
              Cairn__V1__JoinReply_Closure reply, void *call)
{
    struct api *api = ((struct api_service_connections *)service)->api;
    enum rpc_code code;
    join(api, in, reply, call);
    if (rpc_call_answered(call, &code))
        access_note(api->auditlog, call, in->node, code, INVITES_REFUSED);
}

/* ---- certificates that are renewed ---- */

void api_renew_own(const struct identity_files *tls, const struct log *log)
{
    bool renewed = false;
    const enum status st = identity_renew_own(tls, clock_wall_ms(clock_system()) / 1000, &renewed);
    if (renewed)
        LOG_INFO(log, "%s is renewed", tls->cert);
    if (st != ST_OK) {
        LOG_WARN(log, "%s expires soon and couldn't be renewed (%s): 'cairn cert renew' does it",
                 tls->cert, status_string(st));
    }
}

/* The certificate that it sent is the one that it calls with, and that counts. False: the call
 * ended. */
static bool may_renew(struct api *api, struct rpc_call *call, const Cairn__V1__RenewRequest *in,
                      char node[LIMIT_NAME])
{
    struct identity_cert shown, sent;
    int64_t issued_s;
    if (!access_node(call, node, &issued_s) || rpc_call_peer_identity(call, &shown) != ST_OK ||
        strlen(in->certificate) > REQUEST_BYTES ||
        identity_cert_read(in->certificate, &sent) != ST_OK ||
        strcmp(shown.serial, sent.serial) != 0) {
        api_refuse(call, RPC_PERMISSION_DENIED, "a node renews the certificate that it shows");
        return false;
    }
    if (issued_s > coord_node_forgotten(api->coord, node))
        return true;
    rpc_call_finish(call, RPC_PERMISSION_DENIED, COORD_FORGOTTEN);
    return false;
}

static void renew(struct api *api, const Cairn__V1__RenewRequest *in,
                  Cairn__V1__JoinReply_Closure reply, struct rpc_call *call)
{
    char node[LIMIT_NAME];
    if (!has_tls(api, call) || !may_renew(api, call, in, node))
        return;
    struct identity_pem ca = { 0 };
    struct reason reason = { "" };
    auto_free char *cert = NULL;
    enum status st = identity_authority_read(api->tls, &ca, &reason);
    if (st == ST_OK)
        st = identity_renew(&ca, in->certificate, now_s(api), &cert, &reason);
    identity_pem_release(&ca);
    if (st != ST_OK) {
        api_refuse(call, RPC_FAILED_PRECONDITION, "%s",
                   reason.text[0] ? reason.text : status_string(st));
        return;
    }
    LOG_INFO(api->log, "node %s renewed its certificate", node);
    answer(call, cert, reply);
}

void api_renew(Cairn__V1__Fleet_Service *service, const Cairn__V1__RenewRequest *in,
               Cairn__V1__JoinReply_Closure reply, void *call)
{
    struct api *api = ((struct api_service_connections *)service)->api;
    enum rpc_code code;
    renew(api, in, reply, call);
    if (rpc_call_answered(call, &code)) {
        access_note(api->auditlog, call, "", code,
                    "a node renews the certificate that it shows, unless it was forgotten");
    }
}
