#include "identity/check.h"

#include <openssl/err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "identity/pem.h"

/* Files as libcrypto's objects. */
struct parsed {
    X509 *cert;
    STACK_OF(X509) * chain; /* cert among them */
    STACK_OF(X509) * authorities;
    EVP_PKEY *key;
};

static void drop_parsed(struct parsed *parsed)
{
    X509_free(parsed->cert);
    sk_X509_pop_free(parsed->chain, X509_free);
    sk_X509_pop_free(parsed->authorities, X509_free);
    EVP_PKEY_free(parsed->key);
}
#define auto_parsed __attribute__((cleanup(drop_parsed)))

static enum status refuse(struct reason *reason, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static enum status refuse(struct reason *reason, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    reason_set_list(reason, format, list);
    va_end(list);
    ERR_clear_error();
    return ST_CONFIG;
}

static enum status parse(const struct identity_files *files, const struct identity_texts *texts,
                         struct parsed *out, struct reason *reason)
{
    out->cert = identity_pem_cert(texts->cert);
    out->chain = out->cert == NULL ? NULL : identity_pem_certs(texts->cert);
    if (out->chain == NULL) {
        return refuse(reason, "%s holds no certificate: make one with 'cairn cert'", files->cert);
    }
    out->key = identity_pem_key(texts->key);
    if (out->key == NULL) {
        return refuse(reason, "%s holds no key that can be read without a passphrase", files->key);
    }
    out->authorities = identity_pem_certs(texts->ca);
    if (out->authorities == NULL) {
        return refuse(reason,
                      "%s holds no certificate authority: copy ca.crt from where 'cairn "
                      "cert init' was called",
                      files->ca);
    }
    if (X509_check_private_key(out->cert, out->key) != 1) {
        return refuse(reason, "%s isn't the key of %s: copy both anew, or make both anew",
                      files->key, files->cert);
    }
    return ST_OK;
}

bool identity_usable(const struct identity_texts *texts)
{
    auto_parsed struct parsed parsed = { .authorities = identity_pem_certs(texts->ca) };
    if (texts->cert == NULL && texts->key == NULL)
        return parsed.authorities != NULL;
    parsed.cert = identity_pem_cert(texts->cert);
    parsed.chain = identity_pem_certs(texts->cert);
    parsed.key = identity_pem_key(texts->key);
    bool fits = parsed.authorities != NULL && parsed.chain != NULL && parsed.key != NULL &&
                X509_check_private_key(parsed.cert, parsed.key) == 1;
    ERR_clear_error();
    return fits;
}

/* Explains why the chain was refused, and what to do. */
static enum status explain(const struct identity_files *files, int error, int depth, X509 *at,
                           int64_t now_s, struct reason *reason)
{
    struct identity_cert cert;
    char now[IDENTITY_TIME], from[IDENTITY_TIME], until[IDENTITY_TIME];
    (void)identity_cert_of(at, &cert); /* its times are there, whoever it is */
    identity_time(now_s, now);
    identity_time(cert.not_before_s, from);
    identity_time(cert.not_after_s, until);
    const char *file = depth == 0 ? files->cert : files->ca;
    if (error == X509_V_ERR_CERT_HAS_EXPIRED && depth == 0) {
        return refuse(reason,
                      "%s expired on %s, and here it is %s: renew it with 'cairn cert renew' "
                      "where the CA's key is, or set this machine's clock",
                      file, until, now);
    }
    if (error == X509_V_ERR_CERT_HAS_EXPIRED) {
        return refuse(reason,
                      "the authority in %s expired on %s, and here it is %s: make a new one with "
                      "'cairn cert init' in another folder, or set this machine's clock",
                      file, until, now);
    }
    if (error == X509_V_ERR_CERT_NOT_YET_VALID) {
        return refuse(reason,
                      "%s is valid from %s on only, and here it is %s: is this machine's "
                      "clock right?",
                      file, from, now);
    }
    if (error == X509_V_ERR_INVALID_PURPOSE && depth == 0) {
        return refuse(reason,
                      "%s is for another use: a coordinator's certificate serves, the "
                      "others dial",
                      file);
    }
    return refuse(reason,
                  "%s wasn't signed by the authority in %s (%s): take both from the same "
                  "'cairn cert init'",
                  files->cert, files->ca, X509_verify_cert_error_string(error));
}

static enum status check_chain(const struct identity_files *files, const struct parsed *parsed,
                               const struct identity_cert *cert, int64_t now_s,
                               struct reason *reason)
{
    const int purpose =
        cert->who.role == IDENTITY_COORDINATOR ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT;
    struct pem_verdict verdict;
    if (!identity_pem_verify(parsed->authorities, parsed->cert, parsed->chain, purpose, now_s,
                             &verdict))
        return ST_NO_MEMORY;
    if (verdict.error == X509_V_OK)
        return ST_OK;
    return explain(files, verdict.error, verdict.depth, verdict.about, now_s, reason);
}

/* "a node or an operator" */
static void roles_text(unsigned roles, char *out, size_t capacity)
{
    static const enum identity_role list[] = { IDENTITY_NODE, IDENTITY_OPERATOR, IDENTITY_VIEWER,
                                               IDENTITY_COORDINATOR };
    size_t size = 0;
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]) && size < capacity; i++) {
        if ((roles & list[i]) != 0) {
            size += (size_t)snprintf(out + size, capacity - size, "%s%s%s", size == 0 ? "" : " or ",
                                     list[i] == IDENTITY_OPERATOR ? "an " : "a ",
                                     identity_role_name(list[i]));
        }
    }
}

enum status identity_check(const struct identity_files *files, unsigned roles, int64_t now_s,
                           struct identity_cert *out, struct reason *reason)
{
    struct identity_texts texts;
    auto_parsed struct parsed parsed = { 0 };
    enum status st = identity_texts_read(files, &texts, reason);
    if (st != ST_OK)
        return st;
    st = parse(files, &texts, &parsed, reason);
    identity_texts_release(&texts);
    if (st != ST_OK)
        return st;
    if (!identity_cert_of(parsed.cert, out) || out->is_ca) {
        return refuse(reason,
                      "%s names no node, operator, viewer or coordinator of a cluster: "
                      "make one with 'cairn cert'",
                      files->cert);
    }
    st = check_chain(files, &parsed, out, now_s, reason);
    if (st == ST_OK && (roles & out->who.role) == 0) {
        char wanted[96];
        roles_text(roles, wanted, sizeof(wanted));
        st = refuse(reason, "%s is the certificate of a %s, and that of %s is needed here",
                    files->cert, identity_role_name(out->who.role), wanted);
    }
    return st;
}
