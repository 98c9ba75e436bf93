/*
 * What a certificate says.
 *
 * Thread: any.
 */
#pragma once

#include <stdint.h>

#include "common/status.h"
#include "identity/identity.h"

struct x509_st; /* libcrypto's X509 */

#define IDENTITY_HOSTS_MAX 1024 /* bytes of a list of hosts, with the NUL */

struct identity_cert {
    bool is_ca;
    struct identity who;            /* of an authority: its cluster only */
    char hosts[IDENTITY_HOSTS_MAX]; /* names and addresses, separated by commas */
    char serial[48];                /* hexadecimal */
    int64_t not_before_s;           /* Unix time */
    int64_t not_after_s;
};

/*
 * Reads the first certificate of a PEM text.
 * Errors: ST_CONFIG  it holds none, or that of somebody else than a peer or an authority of a
 *                    cluster: one with no URI, two, or another scheme's
 */
MUST_CHECK enum status identity_cert_read(const char *pem, struct identity_cert *out);
/* Like identity_cert_read, from a parsed certificate. Its times are in out in any case. */
bool identity_cert_of(struct x509_st *cert, struct identity_cert *out);

/* Whether a host is in a list of hosts, as struct identity_cert has it. */
bool identity_hosts_have(const char *hosts, const char *host, size_t size);

/* "2026-11-23T15:04:05Z" */
#define IDENTITY_TIME 24
void identity_time(int64_t time_s, char out[IDENTITY_TIME]);
