/*
 * What a role is allowed to do, by the coordinator's gRPC, and by the observer's page, which uses
 * the same methods only.
 *
 *     node         Fleet
 *     operator     Control
 *     viewer       the methods of Control that change nothing
 *     coordinator  nothing
 *
 * Thread: any.
 */
#pragma once

#include <stdbool.h>

#include "identity/identity.h"

enum identity_service { IDENTITY_CONTROL, IDENTITY_FLEET };

/* True for a method of Control that changes nothing, such as "GetJob". */
bool identity_method_looks(const char *method);

/* NULL: the role may call this method. Else why not, with the way out: one line, static. */
const char *identity_refusal(enum identity_role role, enum identity_service service,
                             const char *method);
