/*
 * A certificate authority and what it signs, as PEM texts.
 *
 * ECDSA on P-256 throughout, version 3, a random serial number of 127 bits, valid from an hour
 * before `now_s` (clocks differ). A certificate of a peer names nobody but by its one URI
 * (identity.h); a coordinator's has host names and addresses besides, and is for serving, all
 * others are for dialling: neither is taken for the other.
 *
 * Memory: texts are the caller's (identity_pem_release).
 * Thread: any.
 * Errors: ST_INVALID    a name or a host that can't stand in a certificate
 *         ST_CONFIG     what was given isn't a certificate, a key, a request, or doesn't fit
 *         ST_NO_MEMORY  libcrypto couldn't
 */
#pragma once

#include <stdint.h>

#include "common/reason.h"
#include "common/status.h"
#include "identity/identity.h"

#define IDENTITY_DAYS    30   /* of a peer's certificate: no list of withdrawn ones is kept */
#define IDENTITY_CA_DAYS 3650 /* of an authority's */
#define IDENTITY_EARLY_S 3600

/* The host names of every coordinator, whatever its address; clients ask for the first one. */
#define IDENTITY_SERVER "cairnd"
#define IDENTITY_HOSTS  IDENTITY_SERVER ",localhost,127.0.0.1,::1"

struct identity_pem {
    char *cert; /* or a signing request, where one is asked for */
    char *key;  /* PKCS#8, not encrypted; NULL: it is elsewhere */
};

/* The key is overwritten first. A zeroed one is fine. */
void identity_pem_release(struct identity_pem *pem);

/* A new authority of a cluster. */
MUST_CHECK enum status identity_make_ca(const char *cluster, int64_t now_s,
                                        struct identity_pem *out, struct reason *reason);

/*
 * A new key and a peer's certificate, of the authority's cluster. hosts, for a coordinator only:
 * names and addresses besides IDENTITY_HOSTS, separated by commas; NULL: none.
 */
MUST_CHECK enum status identity_make(const struct identity_pem *ca, enum identity_role role,
                                     const char *name, const char *hosts, int64_t now_s,
                                     struct identity_pem *out, struct reason *reason);

/* A new key, and the request to sign it. It names nobody: who signs decides who that is. */
MUST_CHECK enum status identity_request(struct identity_pem *out, struct reason *reason);

/* A certificate for the key of a request, whose sender has shown by it that he has the key. */
MUST_CHECK enum status identity_sign(const struct identity_pem *ca, const char *request,
                                     enum identity_role role, const char *name, int64_t now_s,
                                     char **out_cert, struct reason *reason);

/* A certificate of this authority once more, from now on: for the same key, name and hosts. */
MUST_CHECK enum status identity_renew(const struct identity_pem *ca, const char *cert,
                                      int64_t now_s, char **out_cert, struct reason *reason);
