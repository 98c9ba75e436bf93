/*
 * The observer's HTTP server as it runs, in this process: with its snapshots, its rows, its keys on
 * disk, and a coordinator that answers each call with what it was told to say, and counts.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "observer/http/http.h"
#include "rpc/rpc.h"

struct world {
    uint16_t port; /* of the server; another one after world_again */
    struct sessions sessions;
    char operator[IDENTITY_TOKEN], viewer[IDENTITY_TOKEN];
    char expired[IDENTITY_TOKEN]; /* an operator's, until a while ago */
    char foreign[IDENTITY_TOKEN]; /* an operator's, of another home */
};

/* Started when it is asked for first; ends with the process. */
struct world *world_get(void);

/* Ends the server and starts another: streams that are open end. Checks that no thread of it, no
 * connection and no file is left. */
void world_again(void);

/* What the coordinator says to each call from now on: an error, or the message in these bytes, as
 * far as they are one. size 0 and RPC_OK: an empty message, of a job one that is over. */
void world_says(enum rpc_code code, const uint8_t *data, size_t size);

/* Calls so far that do something to a job or a node. */
uint64_t world_acts(void);

/* A link for one sign-in, and its code. */
void world_link(const char *role, char code[33]);
