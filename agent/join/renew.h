/*
 * A node's certificate renewed at two thirds of its life, by the coordinator that it calls: for the
 * same key, and its file is replaced at once. The coordinator may refuse (it hasn't the authority's
 * key): then it is asked again after a tenth of what is left, a minute to an hour.
 *
 * Thread: one at a time.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/log.h"
#include "identity/files.h"
#include "rpc/client.h"

struct renewal {
    const struct identity_files *files; /* borrowed; .cert NULL: there is nothing to renew */
    const struct log *log;
    int64_t due_s; /* Unix time */
    bool said;     /* the refusal was logged */
};

/* Looks at the file, which may be another one than before. */
void renew_look(struct renewal *renewal);
/* Milliseconds until it is worth looking whether it is due; -1: never. */
int32_t renew_wait_ms(const struct renewal *renewal);
/* Asks if it is due, waiting some seconds at most. true: the file holds a new one. */
bool renew_if_due(struct renewal *renewal, struct rpc_channel *channel);
