/*
 * What a role may have done: by the coordinator's gRPC, and by the observer's page, which shows and
 * does nothing but by the same methods.
 *
 *     node         Fleet
 *     operator     Control
 *     viewer       what Control has to look at
 *     coordinator  nothing
 *
 * Thread: any.
 */
#pragma once

#include <stdbool.h>

#include "identity/identity.h"

enum identity_service { IDENTITY_CONTROL, IDENTITY_FLEET };

/* "GetJob": a method of Control that changes nothing. */
bool identity_method_looks(const char *method);

/* NULL: the role may call this method. Else why not, with the way out: one line, static. */
const char *identity_refusal(enum identity_role role, enum identity_service service,
                             const char *method);
