/*
 * A node's certificate by an invite (identity/invite.h): the agent makes a key, has the coordinator
 * sign a certificate, and keeps both under the home:
 *
 *     tls/node-NAME.crt, .key    0600; the key never leaves this machine
 *     tls/node-NAME.addr         the address that answered
 *     tls/ca.crt                 the authority, as the invite has it
 *
 * Thread: any, one at a time; rpc_init came before.
 */
#pragma once

#include "common/limits.h"
#include "common/paths.h"
#include "common/reason.h"
#include "common/status.h"

struct join_files {
    char cert[LIMIT_PATH], key[LIMIT_PATH], ca[LIMIT_PATH];
    char address[LIMIT_NAME * 2]; /* of the coordinator */
};

/*
 * Gets the files and the address that a node of that name dials with. If it joined before, and its
 * certificate is still good, the invite isn't looked at. address: the coordinator's, instead of
 * what the invite says; or NULL. Asks each address for some seconds.
 * Errors: ST_CONFIG       the invite, or what lies under the home, won't do
 *         ST_REFUSED      the coordinator doesn't take it
 *         ST_UNREACHABLE  no address answered
 *         others          of files; reason says what, in all cases
 */
MUST_CHECK enum status join_cluster(const struct paths *paths, const char *invite, const char *node,
                                    const char *address, struct join_files *out,
                                    struct reason *reason);
