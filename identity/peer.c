#include "identity/peer.h"

#include <openssl/err.h>
#include <string.h>

#include "identity/pem.h"

struct shown {
    X509 *own;
    STACK_OF(X509) * chain; /* own among them */
    STACK_OF(X509) * authorities;
};

static void drop_shown(struct shown *shown)
{
    sk_X509_pop_free(shown->chain, X509_free);
    sk_X509_pop_free(shown->authorities, X509_free);
}
#define auto_shown __attribute__((cleanup(drop_shown)))

/* Adds a certificate to the chain; false: the bytes are none. */
static bool add_cert(struct shown *shown, const struct identity_der *der)
{
    const unsigned char *at = der->data;
    X509 *cert = d2i_X509(NULL, &at, (long)der->size);
    if (cert == NULL)
        return false;
    if (at == der->data + der->size && sk_X509_push(shown->chain, cert) > 0)
        return true;
    X509_free(cert);
    return false;
}

static bool parse(const char *ca, const struct identity_der *chain, size_t count, struct shown *out)
{
    out->chain = sk_X509_new_null();
    out->authorities = identity_pem_certs(ca);
    bool parsed =
        out->chain != NULL && out->authorities != NULL && count > 0 && count <= IDENTITY_CHAIN_MAX;
    for (size_t i = 0; parsed && i < count; i++)
        parsed = add_cert(out, &chain[i]);
    if (parsed)
        out->own = sk_X509_value(out->chain, 0);
    ERR_clear_error();
    return parsed;
}

static enum status refuse(const struct pem_verdict *verdict, const struct identity_cert *cert,
                          struct reason *reason)
{
    char at[IDENTITY_TIME];
    if (verdict->error == X509_V_ERR_CERT_HAS_EXPIRED && verdict->depth == 0) {
        identity_time(cert->not_after_s, at);
        reason_set(reason,
                   "this certificate expired on %s: 'cairn cert renew' where the CA's key is", at);
    } else if (verdict->error == X509_V_ERR_CERT_NOT_YET_VALID && verdict->depth == 0) {
        identity_time(cert->not_before_s, at);
        reason_set(reason, "this certificate is valid from %s on only: are both clocks right?", at);
    } else if (verdict->error == X509_V_ERR_INVALID_PURPOSE && verdict->depth == 0) {
        reason_set(reason, "this certificate is for another use: a coordinator's serves, the "
                           "others dial");
    } else {
        reason_set(reason,
                   "this certificate wasn't signed by an authority of this cluster (%s): 'cairn "
                   "cert' makes others where its CA's key is",
                   X509_verify_cert_error_string(verdict->error));
    }
    return ST_CONFIG;
}

enum status identity_peer_check(const char *ca, const char *cluster,
                                const struct identity_der *chain, size_t count, int64_t now_s,
                                struct identity_cert *out, struct reason *reason)
{
    auto_shown struct shown shown = { 0 };
    struct pem_verdict verdict;
    if (!parse(ca, chain, count, &shown)) {
        reason_set(reason, "this is no chain of certificates: %d of them at most, each whole",
                   IDENTITY_CHAIN_MAX);
        return ST_CONFIG;
    }
    const bool ours = identity_cert_of(shown.own, out) && !out->is_ca;
    if (!identity_pem_verify(shown.authorities, shown.own, shown.chain, X509_PURPOSE_SSL_CLIENT,
                             now_s, &verdict))
        return ST_NO_MEMORY;
    if (verdict.error != X509_V_OK)
        return refuse(&verdict, out, reason);
    if (!ours) {
        reason_set(reason, "this certificate names nobody of a cluster: 'cairn cert show' says "
                           "what it is, 'cairn cert' makes others");
        return ST_CONFIG;
    }
    if (strcmp(out->who.cluster, cluster) != 0) {
        reason_set(reason, "this certificate is of another cluster than the coordinator's");
        return ST_CONFIG;
    }
    return ST_OK;
}
