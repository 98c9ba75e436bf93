#include "identity/make.h"

#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "identity/cert.h"
#include "identity/pem.h"

enum { DAY_S = 86400, SERIAL_BYTES = 16, HOST_MAX = 253 /* RFC 1035 */ };

/* The contents of a certificate that is to be made. */
struct draft {
    enum identity_role role;
    const char *name; /* NULL: an authority's */
    const char *hosts;
    EVP_PKEY *key; /* whose it is; the public part will do */
    int64_t now_s;
};

/* The authority that signs. */
struct signer {
    X509 *cert; /* NULL: the certificate signs itself */
    EVP_PKEY *key;
    char cluster[IDENTITY_CLUSTER];
};

static void drop_signer(struct signer *signer)
{
    X509_free(signer->cert);
    EVP_PKEY_free(signer->key);
}
#define auto_signer __attribute__((cleanup(drop_signer)))

void identity_pem_release(struct identity_pem *pem)
{
    free(pem->cert);
    if (pem->key != NULL)
        explicit_bzero(pem->key, strlen(pem->key));
    free(pem->key);
    *pem = (struct identity_pem){ 0 };
}

static enum status failed(struct reason *reason)
{
    ERR_clear_error();
    reason_set(reason, "libcrypto can't make it");
    return ST_NO_MEMORY;
}

/* ---- names ---- */

/* Adds a name; takes the value over. */
static bool add_name(GENERAL_NAMES *names, int type, ASN1_STRING *value)
{
    GENERAL_NAME *name = value == NULL ? NULL : GENERAL_NAME_new();
    if (name == NULL) {
        ASN1_STRING_free(value);
        return false;
    }
    GENERAL_NAME_set0_value(name, type, value);
    for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
        if (GENERAL_NAME_cmp(name, sk_GENERAL_NAME_value(names, i)) == 0) {
            GENERAL_NAME_free(name); /* said already */
            return true;
        }
    }
    if (sk_GENERAL_NAME_push(names, name) > 0)
        return true;
    GENERAL_NAME_free(name);
    return false;
}

static bool add_text(GENERAL_NAMES *names, int type, const char *text)
{
    ASN1_STRING *value = ASN1_IA5STRING_new();
    if (value != NULL && ASN1_STRING_set(value, text, -1) == 0) {
        ASN1_STRING_free(value);
        return false;
    }
    return add_name(names, type, value);
}

static bool is_host(const char *text)
{
    size_t size = strlen(text);
    return size > 0 && size <= HOST_MAX && text[0] != '-' && text[0] != '.' &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.") == size;
}

/* Names and addresses, separated by commas. */
static enum status add_hosts(GENERAL_NAMES *names, const char *hosts, struct reason *reason)
{
    auto_free char *list = strdup(hosts);
    if (list == NULL)
        return ST_NO_MEMORY;
    char *rest = list, *host = NULL;
    while ((host = strsep(&rest, ",")) != NULL) {
        ASN1_STRING *address = a2i_IPADDRESS(host);
        ERR_clear_error();
        if (address == NULL && !is_host(host)) {
            reason_set(reason, "'%s' is neither a host name nor an address", host);
            return ST_INVALID;
        }
        if (address != NULL ? !add_name(names, GEN_IPADD, address)
                            : !add_text(names, GEN_DNS, host))
            return failed(reason);
    }
    return ST_OK;
}

static enum status add_names(X509 *cert, const struct draft *draft, const char *cluster,
                             struct reason *reason)
{
    struct identity who = { .role = draft->role };
    char uri[IDENTITY_URI];
    if (!identity_name_valid(draft->name)) {
        reason_set(reason,
                   "'%s' can't be a name in a certificate: letters, digits, '.', '_' and '-', the "
                   "first one a letter or a digit, %d at most",
                   draft->name, LIMIT_NAME - 1);
        return ST_INVALID;
    }
    memcpy(who.cluster, cluster, sizeof(who.cluster));
    memcpy(who.name, draft->name, strlen(draft->name));
    identity_uri(&who, uri);
    auto_names GENERAL_NAMES *names = GENERAL_NAMES_new();
    if (names == NULL || !add_text(names, GEN_URI, uri))
        return failed(reason);
    enum status st = ST_OK;
    if (draft->role == IDENTITY_COORDINATOR)
        st = add_hosts(names, IDENTITY_HOSTS, reason);
    if (st == ST_OK && draft->hosts != NULL)
        st = add_hosts(names, draft->hosts, reason);
    if (st == ST_OK && X509_add1_ext_i2d(cert, NID_subject_alt_name, names, 0, 0) != 1)
        st = failed(reason);
    return st;
}

/* ---- a certificate ---- */

static bool add_subject(X509_NAME *subject, const char *cluster, const char *what)
{
    return X509_NAME_add_entry_by_NID(subject, NID_organizationName, MBSTRING_ASC,
                                      (const unsigned char *)cluster, -1, -1, 0) == 1 &&
           X509_NAME_add_entry_by_NID(subject, NID_commonName, MBSTRING_ASC,
                                      (const unsigned char *)what, -1, -1, 0) == 1;
}

/* Random: no list of those that were given is needed. The top bit is clear: it is positive. */
static bool set_serial(X509 *cert)
{
    unsigned char bytes[SERIAL_BYTES];
    if (RAND_bytes(bytes, sizeof(bytes)) != 1)
        return false;
    bytes[0] &= 0x7f;
    BIGNUM *number = BN_bin2bn(bytes, sizeof(bytes), NULL);
    bool set = number != NULL && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(cert)) != NULL;
    BN_free(number);
    return set;
}

static bool set_times(X509 *cert, int64_t now_s, int days)
{
    time_t now = (time_t)now_s;
    return X509_time_adj_ex(X509_getm_notBefore(cert), 0, -IDENTITY_EARLY_S, &now) != NULL &&
           X509_time_adj_ex(X509_getm_notAfter(cert), days, 0, &now) != NULL;
}

/* Values are ours: none comes from outside. */
static bool extend(X509 *cert, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    bool added = extension != NULL && X509_add_ext(cert, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return added;
}

static bool add_usage(X509 *cert, X509 *issuer, const struct draft *draft)
{
    const bool is_ca = draft->name == NULL;
    const char *basic = is_ca ? "critical,CA:TRUE,pathlen:0" : "critical,CA:FALSE";
    const char *usage = is_ca ? "critical,keyCertSign,cRLSign" : "critical,digitalSignature";
    const char *extended = draft->role == IDENTITY_COORDINATOR ? "serverAuth" : "clientAuth";
    return extend(cert, issuer, NID_basic_constraints, basic) &&
           extend(cert, issuer, NID_key_usage, usage) &&
           extend(cert, issuer, NID_subject_key_identifier, "hash") &&
           extend(cert, issuer, NID_authority_key_identifier, "keyid:always") &&
           (is_ca || extend(cert, issuer, NID_ext_key_usage, extended));
}

static enum status fill_in(X509 *cert, const struct draft *draft, const struct signer *signer,
                           struct reason *reason)
{
    X509 *issuer = signer->cert == NULL ? cert : signer->cert;
    const char *what = draft->name == NULL ? "Cairn CA" : identity_role_name(draft->role);
    const int days = draft->name == NULL ? IDENTITY_CA_DAYS : IDENTITY_DAYS;
    if (X509_set_version(cert, X509_VERSION_3) != 1 || !set_serial(cert) ||
        !set_times(cert, draft->now_s, days) ||
        !add_subject(X509_get_subject_name(cert), signer->cluster, what) ||
        X509_set_issuer_name(cert, X509_get_subject_name(issuer)) != 1 ||
        X509_set_pubkey(cert, draft->key) != 1 || !add_usage(cert, issuer, draft))
        return failed(reason);
    enum status st = draft->name == NULL ? ST_OK : add_names(cert, draft, signer->cluster, reason);
    if (st == ST_OK && X509_sign(cert, signer->key, EVP_sha256()) == 0)
        st = failed(reason);
    return st;
}

static enum status issue(const struct draft *draft, const struct signer *signer, char **out_cert,
                         struct reason *reason)
{
    struct identity_cert read;
    auto_cert X509 *cert = X509_new();
    if (cert == NULL)
        return failed(reason);
    enum status st = fill_in(cert, draft, signer, reason);
    if (st != ST_OK)
        return st;
    if (!identity_cert_of(cert, &read)) { /* each name is good by itself */
        reason_set(reason, "these are too many hosts for one certificate");
        return ST_INVALID;
    }
    *out_cert = identity_pem_of_cert(cert);
    return *out_cert == NULL ? failed(reason) : ST_OK;
}

/* Issues a certificate with its key: both texts or none. */
static enum status issue_with_key(const struct draft *draft, const struct signer *signer,
                                  struct identity_pem *out, struct reason *reason)
{
    struct identity_pem pem = { .key = identity_pem_of_key(draft->key) };
    enum status st = pem.key == NULL ? failed(reason) : issue(draft, signer, &pem.cert, reason);
    if (st != ST_OK) {
        identity_pem_release(&pem);
        return st;
    }
    *out = pem;
    return ST_OK;
}

/* ---- what is offered ---- */

enum status identity_make_ca(const char *cluster, int64_t now_s, struct identity_pem *out,
                             struct reason *reason)
{
    struct signer self = { 0 };
    if (!identity_cluster_valid(cluster)) {
        reason_set(reason,
                   "'%s' can't be a cluster's name: small letters, digits, '.' and '-', the first "
                   "one a letter or a digit, %d at most",
                   cluster, IDENTITY_CLUSTER - 1);
        return ST_INVALID;
    }
    memcpy(self.cluster, cluster, strlen(cluster));
    auto_key EVP_PKEY *key = EVP_EC_gen("P-256");
    if (key == NULL)
        return failed(reason);
    self.key = key;
    const struct draft draft = { .key = key, .now_s = now_s };
    return issue_with_key(&draft, &self, out, reason);
}

static enum status load_signer(const struct identity_pem *ca, int64_t now_s, struct signer *out,
                               struct reason *reason)
{
    struct identity_cert read;
    char until[IDENTITY_TIME];
    out->cert = identity_pem_cert(ca->cert);
    out->key = identity_pem_key(ca->key);
    if (out->cert == NULL || !identity_cert_of(out->cert, &read) || !read.is_ca) {
        reason_set(reason, "this is no certificate authority of a cluster");
        return ST_CONFIG;
    }
    if (out->key == NULL || X509_check_private_key(out->cert, out->key) != 1) {
        ERR_clear_error();
        reason_set(reason, "the authority's key isn't that of its certificate");
        return ST_CONFIG;
    }
    if (now_s >= read.not_after_s) {
        identity_time(read.not_after_s, until);
        reason_set(reason, "this certificate authority expired on %s: make a new one", until);
        return ST_CONFIG;
    }
    memcpy(out->cluster, read.who.cluster, sizeof(out->cluster));
    return ST_OK;
}

enum status identity_make(const struct identity_pem *ca, enum identity_role role, const char *name,
                          const char *hosts, int64_t now_s, struct identity_pem *out,
                          struct reason *reason)
{
    auto_signer struct signer signer = { 0 };
    enum status st = load_signer(ca, now_s, &signer, reason);
    if (st != ST_OK)
        return st;
    auto_key EVP_PKEY *key = EVP_EC_gen("P-256");
    if (key == NULL)
        return failed(reason);
    const struct draft draft = {
        .role = role, .name = name, .hosts = hosts, .key = key, .now_s = now_s
    };
    return issue_with_key(&draft, &signer, out, reason);
}

enum status identity_request(struct identity_pem *out, struct reason *reason)
{
    struct identity_pem pem = { 0 };
    auto_key EVP_PKEY *key = EVP_EC_gen("P-256");
    X509_REQ *request = key == NULL ? NULL : X509_REQ_new();
    if (request != NULL && X509_REQ_set_version(request, X509_REQ_VERSION_1) == 1 &&
        X509_REQ_set_pubkey(request, key) == 1 && X509_REQ_sign(request, key, EVP_sha256()) > 0) {
        pem.key = identity_pem_of_key(key);
        pem.cert = identity_pem_of_request(request);
    }
    X509_REQ_free(request);
    if (pem.key == NULL || pem.cert == NULL) {
        identity_pem_release(&pem);
        return failed(reason);
    }
    *out = pem;
    return ST_OK;
}

enum status identity_sign(const struct identity_pem *ca, const char *request,
                          enum identity_role role, const char *name, int64_t now_s, char **out_cert,
                          struct reason *reason)
{
    auto_signer struct signer signer = { 0 };
    enum status st = load_signer(ca, now_s, &signer, reason);
    if (st != ST_OK)
        return st;
    X509_REQ *parsed = identity_pem_request(request);
    EVP_PKEY *key = parsed == NULL ? NULL : X509_REQ_get0_pubkey(parsed);
    if (key == NULL || EVP_PKEY_is_a(key, "EC") != 1 || X509_REQ_verify(parsed, key) != 1) {
        ERR_clear_error();
        reason_set(reason, "this is no signing request made with an elliptic curve's key");
        st = ST_CONFIG;
    } else {
        const struct draft draft = { .role = role, .name = name, .key = key, .now_s = now_s };
        st = issue(&draft, &signer, out_cert, reason);
    }
    X509_REQ_free(parsed);
    return st;
}

enum status identity_renew(const struct identity_pem *ca, const char *cert, int64_t now_s,
                           char **out_cert, struct reason *reason)
{
    struct identity_cert read;
    auto_signer struct signer signer = { 0 };
    enum status st = load_signer(ca, now_s, &signer, reason);
    if (st != ST_OK)
        return st;
    auto_cert X509 *old = identity_pem_cert(cert);
    if (old == NULL || !identity_cert_of(old, &read) || read.is_ca) {
        reason_set(reason, "this is no certificate of a node, an operator, a viewer or a "
                           "coordinator");
        return ST_CONFIG;
    }
    if (X509_verify(old, signer.key) != 1) {
        ERR_clear_error();
        reason_set(reason, "another authority signed this certificate");
        return ST_CONFIG;
    }
    const struct draft draft = { .role = read.who.role,
                                 .name = read.who.name,
                                 .hosts = read.hosts[0] == '\0' ? NULL : read.hosts,
                                 .key = X509_get0_pubkey(old),
                                 .now_s = now_s };
    return issue(&draft, &signer, out_cert, reason);
}
