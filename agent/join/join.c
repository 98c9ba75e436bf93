#include "agent/join/join.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cairn/v1/fleet.pb-c.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/io.h"
#include "identity/check.h"
#include "identity/invite.h"
#include "identity/make.h"
#include "rpc/client.h"

#define ASK_MS 5000 /* of each address */

static enum status name_files(const struct paths *paths, const char *node, struct join_files *out,
                              char *addr)
{
    enum status st = paths_join(paths, out->cert, sizeof(out->cert), "tls/node-%s.crt", node);
    if (st == ST_OK)
        st = paths_join(paths, out->key, sizeof(out->key), "tls/node-%s.key", node);
    if (st == ST_OK)
        st = paths_join(paths, out->ca, sizeof(out->ca), "tls/ca.crt");
    return st == ST_OK ? paths_join(paths, addr, LIMIT_PATH, "tls/node-%s.addr", node) : st;
}

/* True if the node joined before, and its certificate is still good. */
static bool has_joined(const char *node, const char *addr, struct join_files *out)
{
    struct identity_cert cert;
    struct reason unused;
    size_t size;
    auto_free char *text = NULL;
    const struct identity_files files = { out->cert, out->key, out->ca };
    const int64_t now_s = clock_wall_ms(clock_system()) / 1000;
    if (identity_check(&files, IDENTITY_NODE, now_s, &cert, &unused) != ST_OK ||
        strcmp(cert.who.name, node) != 0 ||
        io_read_file(io_system(), addr, sizeof(out->address) - 1, &text, &size) != ST_OK)
        return false;
    (void)snprintf(out->address, sizeof(out->address), "%s", text);
    return true;
}

static enum status read_invite(const char *path, struct identity_invite *out, struct reason *reason)
{
    size_t size = 0;
    char *text = NULL;
    enum status st = io_read_file(io_system(), path, IDENTITY_INVITE_BYTES, &text, &size);
    if (st != ST_OK) {
        reason_set(reason, "%s: %s", path, status_string(st));
        return st;
    }
    st = identity_invite_read(text, out);
    if (st != ST_OK)
        reason_set(reason, "%s is no invite, as made by 'cairn node invite'", path);
    explicit_bzero(text, size);
    free(text);
    return st;
}

/* The authority of before must be this one: other certificates may lie there. */
static enum status keep_authority(const struct paths *paths, const char *ca, const char *path,
                                  struct reason *reason)
{
    char dir[LIMIT_PATH];
    size_t size;
    auto_free char *there = NULL;
    enum status st = paths_join(paths, dir, sizeof(dir), "tls");
    if (st == ST_OK)
        st = io_mkdir_all(io_system(), dir);
    if (st == ST_OK && chmod(dir, 0700) != 0)
        st = status_from_errno(errno);
    if (st == ST_OK)
        st = io_publish(io_system(), path, ca, strlen(ca));
    if (st == ST_EXISTS)
        st = io_read_file(io_system(), path, IDENTITY_FILE_BYTES, &there, &size);
    if (st == ST_OK && there != NULL && strcmp(there, ca) != 0) {
        reason_set(reason,
                   "%s is another authority's than the invite's: remove it, or set "
                   "CAIRN_HOME",
                   path);
        return ST_CONFIG;
    }
    if (st != ST_OK)
        reason_set(reason, "%s: %s", path, status_string(st));
    return st;
}

/* Asks the coordinator at one address for a certificate. */
static enum status ask(const char *address, const char *ca, const Cairn__V1__JoinRequest *request,
                       char **out_cert, struct reason *reason)
{
    const struct identity_files tls = { .ca = ca };
    const struct rpc_channel_options options = {
        .target = address, .tls = &tls, .token = request->secret, .tls_name = IDENTITY_SERVER
    };
    const struct rpc_call_options call = { .timeout_ms = ASK_MS, .wait_for_ready = true };
    struct rpc_channel *channel = NULL;
    struct rpc_result result = { .code = RPC_INTERNAL };
    ProtobufCMessage *reply = NULL;
    enum status st = rpc_channel_new(&options, &channel);
    if (st != ST_OK) {
        reason_set(reason, "%s: %s", ca, status_string(st));
        return st;
    }
    st = rpc_unary(channel, &cairn__v1__fleet__descriptor, "Join", &request->base, &call, &reply,
                   &result);
    if (st == ST_OK) {
        *out_cert = strdup(((Cairn__V1__JoinReply *)reply)->certificate);
        protobuf_c_message_free_unpacked(reply, NULL);
        st = *out_cert == NULL ? ST_NO_MEMORY : ST_OK;
    } else {
        const bool away = result.code == RPC_UNAVAILABLE || result.code == RPC_DEADLINE_EXCEEDED;
        st = away ? ST_UNREACHABLE : ST_REFUSED;
        reason_set(reason, "%s: %s%s", address, result.detail,
                   away ? ": no coordinator there that the invite's authority knows" : "");
    }
    rpc_channel_free(channel);
    return st;
}

static enum status ask_all(const struct identity_invite *invite, const char *node, const char *csr,
                           const char *address, struct join_files *out, char **out_cert,
                           struct reason *reason)
{
    Cairn__V1__JoinRequest request = CAIRN__V1__JOIN_REQUEST__INIT;
    request.node = (char *)node;
    request.secret = (char *)invite->secret;
    request.request = (char *)csr;
    const size_t count = address != NULL ? 1 : invite->address_count;
    enum status st = ST_UNREACHABLE;
    for (size_t i = 0; st == ST_UNREACHABLE && i < count; i++) {
        (void)snprintf(out->address, sizeof(out->address), "%s",
                       address != NULL ? address : invite->addresses[i]);
        st = ask(out->address, out->ca, &request, out_cert, reason);
    }
    return st;
}

/* The certificate last: with it all is there. */
static enum status keep(const struct join_files *files, const char *addr,
                        const struct identity_pem *pem)
{
    const struct io *io = io_system();
    (void)unlink(files->cert); /* of before: they did no more */
    (void)unlink(files->key);
    enum status st = io_publish_private(io, files->key, pem->key, strlen(pem->key));
    if (st == ST_OK)
        st = io_replace(io, addr, files->address, strlen(files->address));
    return st == ST_OK ? io_publish_private(io, files->cert, pem->cert, strlen(pem->cert)) : st;
}

enum status join_cluster(const struct paths *paths, const char *invite_path, const char *node,
                         const char *address, struct join_files *out, struct reason *reason)
{
    char addr[LIMIT_PATH];
    struct identity_invite invite = { .ca = NULL };
    struct identity_pem pem = { 0 };
    enum status st = name_files(paths, node, out, addr);
    if (st != ST_OK || has_joined(node, addr, out))
        return st;
    st = read_invite(invite_path, &invite, reason);
    if (st == ST_OK)
        st = keep_authority(paths, invite.ca, out->ca, reason);
    if (st == ST_OK)
        st = identity_request(&pem, reason);
    char *cert = NULL;
    if (st == ST_OK)
        st = ask_all(&invite, node, pem.cert, address, out, &cert, reason);
    identity_invite_release(&invite);
    if (st == ST_OK) {
        free(pem.cert);
        pem.cert = cert;
        st = keep(out, addr, &pem);
        if (st != ST_OK)
            reason_set(reason, "%s: %s", out->cert, status_string(st));
    }
    identity_pem_release(&pem);
    return st;
}
