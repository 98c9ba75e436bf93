/*
 * Whether certificate, key and CA will do: told before anybody dials, for in TLS 1.3 a server that
 * refuses a client's certificate says no more than that the connection is closed.
 *
 * Thread: any.
 */
#pragma once

#include <stdint.h>

#include "common/reason.h"
#include "common/status.h"
#include "identity/cert.h"
#include "identity/files.h"

/*
 * Whether the files do for a peer of one of these roles at that time: each is there and parses, the
 * key fits, the CA signed the certificate for this use, neither is too old or too young, it names
 * one of our identities. out is what the certificate says; reason one line with the file and the
 * way out.
 * Errors: ST_CONFIG  they don't
 *         others     of reading
 */
MUST_CHECK enum status identity_check(const struct identity_files *files, unsigned roles,
                                      int64_t now_s, struct identity_cert *out,
                                      struct reason *reason);

/* Whether certificate, key and CA parse and the key fits, as what a listener or channel is about to
 * use must. A client without an identity has neither certificate nor key (both NULL). */
bool identity_usable(const struct identity_texts *texts);
