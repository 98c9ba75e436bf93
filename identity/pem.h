/*
 * Private to identity/: libcrypto's objects from PEM texts and back.
 *
 * Nothing here asks for a passphrase: a key that is encrypted is no key.
 */
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <stdbool.h>
#include <stdint.h>

static inline void pem_drop_cert(X509 **cert)
{
    X509_free(*cert);
}
static inline void pem_drop_key(EVP_PKEY **key)
{
    EVP_PKEY_free(*key);
}
static inline void pem_drop_names(GENERAL_NAMES **names)
{
    GENERAL_NAMES_free(*names);
}
#define auto_cert  __attribute__((cleanup(pem_drop_cert)))
#define auto_key   __attribute__((cleanup(pem_drop_key)))
#define auto_names __attribute__((cleanup(pem_drop_names)))

/* Each reads an object from a text; NULL: there is none, or not such a one. The caller's. */
X509 *identity_pem_cert(const char *text); /* the first */
EVP_PKEY *identity_pem_key(const char *text);
X509_REQ *identity_pem_request(const char *text);
/* Reads all certificates of a text, at least one. */
STACK_OF(X509) * identity_pem_certs(const char *text);

struct pem_verdict {
    int error;   /* X509_V_OK: the authorities signed it for this use, and neither is too old */
    int depth;   /* 0: it is about the certificate itself */
    X509 *about; /* borrowed from what was given */
};
/* False: no memory. purpose: X509_PURPOSE_SSL_SERVER or _CLIENT. chain may be NULL. */
bool identity_pem_verify(STACK_OF(X509) * authorities, X509 *cert, STACK_OF(X509) * chain,
                         int purpose, int64_t now_s, struct pem_verdict *out);

/* NULL: no memory. The caller's. */
char *identity_pem_of_cert(X509 *cert);
char *identity_pem_of_key(EVP_PKEY *key);
char *identity_pem_of_request(X509_REQ *request);
