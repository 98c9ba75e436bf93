#include "identity/serving_cert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/limits.h"
#include "common/own/private.h"
#include "identity/cert.h"

static enum status read_file(const char *path, char **out, struct reason *reason)
{
    size_t size;
    const enum status st = io_read_file(io_system(), path, IDENTITY_FILE_BYTES, out, &size);
    if (st != ST_OK) {
        reason_set(reason,
                   "the coordinator can't read %s (%s), so that it signs nothing: 'cairn "
                   "cert' does, where the authority is",
                   path, status_string(st));
    }
    return st;
}

enum status identity_ca_key_read(const char *path, char **out, struct reason *reason)
{
    size_t size;
    return private_read(path, IDENTITY_FILE_BYTES, out, &size, reason);
}

enum status identity_authority_read(const struct identity_files *files, struct identity_pem *out,
                                    struct reason *reason)
{
    char path[LIMIT_PATH];
    const char *ca = files->ca, *slash = strrchr(ca, '/');
    const int length =
        snprintf(path, sizeof(path), "%.*sca.key", slash != NULL ? (int)(slash + 1 - ca) : 0, ca);
    if (length < 0 || (size_t)length >= sizeof(path))
        return ST_FULL;
    const enum status st = read_file(ca, &out->cert, reason);
    if (st != ST_OK)
        return st;
    const enum status key = identity_ca_key_read(path, &out->key, reason);
    return key == ST_NOT_FOUND ? read_file(path, &out->key, reason) : key; /* it says what to do */
}

static bool is_old(const struct identity_cert *cert, int64_t now_s)
{
    return cert->not_after_s - now_s < INT64_C(86400) * IDENTITY_DAYS / 3;
}

enum status identity_renew_own(const struct identity_files *files, int64_t now_s, bool *out_renewed)
{
    struct identity_pem ca = { 0 };
    struct identity_cert own;
    struct reason reason = { "" };
    auto_free char *old = NULL, *cert = NULL;
    *out_renewed = false;
    if (read_file(files->cert, &old, &reason) != ST_OK || identity_cert_read(old, &own) != ST_OK ||
        !is_old(&own, now_s))
        return ST_OK;
    enum status st = identity_authority_read(files, &ca, &reason);
    if (st == ST_OK)
        st = identity_renew(&ca, old, now_s, &cert, &reason);
    identity_pem_release(&ca);
    if (st == ST_OK)
        st = io_replace(io_system(), files->cert, cert, strlen(cert));
    *out_renewed = st == ST_OK;
    return st;
}
