/*
 * An identity says who a peer is: a name in a cluster, with one role, as its certificate's only URI
 * says.
 *
 *   identity.h   names and the URI (this file)
 *   cert.h       what a certificate says
 *   files.h      certificate, key and CA as files, and whether they have changed
 *   make.h       a certificate authority, keys, certificates, signing requests
 *   invite.h     a file with which a machine joins
 *   check.h      whether certificate, key and CA will do
 *   serving_cert.h  the certificate that a coordinator serves with, renewed
 *   peer.h       whether what a caller showed will do
 *   rights.h     what a role may have done
 *   behalf.h     for whom the observer asks
 *
 * No header here includes one of OpenSSL's; only libcrypto is used, never the openssl program.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/limits.h"

/* A bit each, so that the roles which may do something are a number. */
enum identity_role {
    IDENTITY_NODE = 1 << 0,        /* an agent, and the trainers on its machine */
    IDENTITY_OPERATOR = 1 << 1,    /* somebody who may change things */
    IDENTITY_VIEWER = 1 << 2,      /* somebody who may look */
    IDENTITY_COORDINATOR = 1 << 3, /* what the others dial */
};
#define IDENTITY_NOBODY ((enum identity_role)0) /* where there is no certificate */
#define IDENTITY_ANY    (IDENTITY_NODE | IDENTITY_OPERATOR | IDENTITY_VIEWER | IDENTITY_COORDINATOR)

#define IDENTITY_CLUSTER 64 /* bytes of a cluster name, with the NUL: X.509 has no room for more */
#define IDENTITY_URI     (IDENTITY_CLUSTER + LIMIT_NAME + 32)

struct identity {
    enum identity_role role;
    char cluster[IDENTITY_CLUSTER];
    char name[LIMIT_NAME];
};

/* "node", "operator", "viewer", "coordinator"; static. */
const char *identity_role_name(enum identity_role role);

/* Letters, digits, '.', '_' and '-', the first one a letter or a digit; of a cluster no capitals
 * and no '_'. What a name may not be in a certificate it may not be anywhere. */
bool identity_name_valid(const char *name);
bool identity_cluster_valid(const char *cluster);

/* "cairn://CLUSTER/ROLE/NAME" as an identity; false: the bytes are anything else, or more. */
bool identity_parse(const char *uri, size_t size, struct identity *out);
/* The URI of an identity whose names are valid. */
void identity_uri(const struct identity *identity, char out[IDENTITY_URI]);
