#include "identity/cert.h"

#include <arpa/inet.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "common/buf.h"
#include "identity/pem.h"

/* The cluster that an authority's subject names. */
static bool read_cluster(X509 *ca, char out[IDENTITY_CLUSTER])
{
    X509_NAME *subject = X509_get_subject_name(ca);
    int size = X509_NAME_get_text_by_NID(subject, NID_organizationName, out, IDENTITY_CLUSTER);
    return size > 0 && (size_t)size == strlen(out) && identity_cluster_valid(out);
}

/* Adds a host of a certificate to a list. */
static enum status add_host(struct buf *hosts, const GENERAL_NAME *name)
{
    const char *comma = hosts->size > 0 ? "," : "";
    if (name->type == GEN_DNS) {
        const ASN1_STRING *text = name->d.dNSName;
        return buf_printf(hosts, "%s%.*s", comma, ASN1_STRING_length(text),
                          (const char *)ASN1_STRING_get0_data(text));
    }
    char address[INET6_ADDRSTRLEN];
    const ASN1_STRING *bytes = name->d.iPAddress;
    const int length = ASN1_STRING_length(bytes);
    const int family = length == 4 ? AF_INET : AF_INET6;
    if ((length != 4 && length != 16) ||
        inet_ntop(family, ASN1_STRING_get0_data(bytes), address, sizeof(address)) == NULL)
        return ST_CONFIG;
    return buf_printf(hosts, "%s%s", comma, address);
}

/* The names of a peer: exactly one URI, and hosts. */
static bool read_names(X509 *cert, struct identity_cert *out)
{
    auto_names GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
    auto_buf struct buf hosts;
    buf_init(&hosts, sizeof(out->hosts) - 1);
    int uris = 0;
    for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        const ASN1_STRING *text = name->d.ia5;
        if (name->type == GEN_URI) {
            uris++;
            if (!identity_parse((const char *)ASN1_STRING_get0_data(text),
                                (size_t)ASN1_STRING_length(text), &out->who))
                return false;
        } else if ((name->type == GEN_DNS || name->type == GEN_IPADD) &&
                   add_host(&hosts, name) != ST_OK) {
            return false;
        }
    }
    if (hosts.size > 0)
        memcpy(out->hosts, hosts.data, hosts.size);
    return uris == 1;
}

static bool read_time(const ASN1_TIME *time, int64_t *out)
{
    struct tm parts;
    if (ASN1_TIME_to_tm(time, &parts) != 1)
        return false;
    *out = (int64_t)timegm(&parts);
    return true;
}

static void read_serial(X509 *cert, struct identity_cert *out)
{
    BIGNUM *number = ASN1_INTEGER_to_BN(X509_get0_serialNumber(cert), NULL);
    char *text = number == NULL ? NULL : BN_bn2hex(number);
    (void)snprintf(out->serial, sizeof(out->serial), "%s", text == NULL ? "?" : text);
    OPENSSL_free(text);
    BN_free(number);
}

bool identity_cert_of(X509 *cert, struct identity_cert *out)
{
    *out = (struct identity_cert){ .is_ca = X509_check_ca(cert) == 1 };
    read_serial(cert, out);
    bool read = read_time(X509_get0_notBefore(cert), &out->not_before_s) &&
                read_time(X509_get0_notAfter(cert), &out->not_after_s) &&
                (out->is_ca ? read_cluster(cert, out->who.cluster) : read_names(cert, out));
    ERR_clear_error();
    return read;
}

enum status identity_cert_read(const char *pem, struct identity_cert *out)
{
    auto_cert X509 *cert = identity_pem_cert(pem);
    return cert != NULL && identity_cert_of(cert, out) ? ST_OK : ST_CONFIG;
}

bool identity_hosts_have(const char *hosts, const char *host, size_t size)
{
    for (size_t length = 0; hosts[0] != '\0'; hosts += length + (hosts[length] == ',')) {
        length = strcspn(hosts, ",");
        if (length == size && strncasecmp(hosts, host, size) == 0)
            return true;
    }
    return false;
}

void identity_time(int64_t time_s, char out[IDENTITY_TIME])
{
    struct tm parts;
    time_t time = (time_t)time_s;
    if (gmtime_r(&time, &parts) == NULL || strftime(out, IDENTITY_TIME, "%FT%TZ", &parts) == 0)
        (void)snprintf(out, IDENTITY_TIME, "?");
}
