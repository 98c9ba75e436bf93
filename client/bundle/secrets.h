/*
 * The secrets that lie on this machine, named to the filter (client/bundle/redact.h): so that none
 * of them gets into a bundle, wherever a program may have written it.
 *
 *   the home            token, observer/, state/seal, the keys in tls/, webhooks.yaml and what it
 *                       names
 *   the environment     values of variables with the name of a secret, here and of the home's
 *                       processes
 *   files it names      CAIRN_TOKEN_FILE, CAIRN_TLS_KEY, --tls-key, AWS's credentials
 */
#pragma once

#include "client/base/client.h"
#include "client/bundle/redact.h"

/* Files that are not there, or can't be read, hold none. Errors: ST_NO_MEMORY, ST_FULL */
MUST_CHECK enum status secrets_gather(const struct client *client, struct redact *redact);
