#include "agent/join/renew.h"

#include <stdlib.h>
#include <string.h>

#include "cairn/v1/fleet.pb-c.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "identity/cert.h"
#include "identity/check.h"

enum { LOOK_MS = 60000, ASK_MS = 5000, AGAIN_MIN_S = 60, AGAIN_MAX_S = 3600 };

static int64_t now_s(void)
{
    return clock_wall_ms(clock_system()) / 1000;
}

void renew_look(struct renewal *renewal)
{
    size_t size;
    struct identity_cert cert;
    auto_free char *pem = NULL;
    renewal->due_s = INT64_MAX;
    renewal->said = false;
    if (renewal->files->cert == NULL ||
        io_read_file(io_system(), renewal->files->cert, IDENTITY_FILE_BYTES, &pem, &size) !=
            ST_OK ||
        identity_cert_read(pem, &cert) != ST_OK)
        return;
    renewal->due_s = cert.not_after_s - (cert.not_after_s - cert.not_before_s) / 3;
}

int32_t renew_wait_ms(const struct renewal *renewal)
{
    if (renewal->due_s == INT64_MAX)
        return -1;
    const int64_t left_s = renewal->due_s - now_s();
    if (left_s <= 0)
        return 0;
    return left_s < LOOK_MS / 1000 ? (int32_t)left_s * 1000 : LOOK_MS; /* the clock may be set */
}

static void try_again_later(struct renewal *renewal, const char *why)
{
    struct identity_cert cert = { .not_after_s = 0 };
    struct identity_texts texts = { 0 };
    struct reason unused;
    if (identity_texts_read(renewal->files, &texts, &unused) == ST_OK &&
        identity_cert_read(texts.cert, &cert) != ST_OK)
        cert.not_after_s = 0;
    identity_texts_release(&texts);
    int64_t pause_s = (cert.not_after_s - now_s()) / 10;
    pause_s = pause_s < AGAIN_MIN_S ? AGAIN_MIN_S : pause_s;
    renewal->due_s = now_s() + (pause_s < AGAIN_MAX_S ? pause_s : AGAIN_MAX_S);
    if (!renewal->said) {
        char until[IDENTITY_TIME];
        identity_time(cert.not_after_s, until);
        LOG_WARN(renewal->log, "%s, good until %s, isn't renewed, trying on: %s",
                 renewal->files->cert, until, why);
    }
    renewal->said = true;
}

/* Replaces the certificate by the one that came, if that fits the key that is here. */
static bool keep(struct renewal *renewal, struct identity_texts *texts, const char *cert)
{
    char *old = texts->cert;
    texts->cert = (char *)cert;
    const bool good = identity_usable(texts);
    texts->cert = old;
    const enum status st =
        good ? io_replace(io_system(), renewal->files->cert, cert, strlen(cert)) : ST_CONFIG;
    if (st == ST_OK) {
        LOG_INFO(renewal->log, "%s is renewed", renewal->files->cert);
        renew_look(renewal);
        return true;
    }
    try_again_later(renewal, good ? status_string(st) : "what the coordinator sent doesn't fit");
    return false;
}

bool renew_if_due(struct renewal *renewal, struct rpc_channel *channel)
{
    if (renewal->due_s > now_s())
        return false;
    struct reason reason = { "" };
    struct identity_texts texts = { 0 };
    ProtobufCMessage *reply = NULL;
    bool renewed = false;
    if (identity_texts_read(renewal->files, &texts, &reason) != ST_OK) {
        try_again_later(renewal, reason.text);
        identity_texts_release(&texts);
        return false;
    }
    Cairn__V1__RenewRequest request = CAIRN__V1__RENEW_REQUEST__INIT;
    const struct rpc_call_options options = { .timeout_ms = ASK_MS };
    struct rpc_result result;
    request.certificate = texts.cert;
    if (rpc_unary(channel, &cairn__v1__fleet__descriptor, "Renew", &request.base, &options, &reply,
                  &result) == ST_OK) {
        renewed = keep(renewal, &texts, ((Cairn__V1__JoinReply *)reply)->certificate);
        protobuf_c_message_free_unpacked(reply, NULL);
    } else {
        try_again_later(renewal, result.detail);
    }
    identity_texts_release(&texts);
    return renewed;
}
