/*
 * Remote calls: a thin layer over gRPC's C core and protobuf-c.
 *
 *   rpc.h         codes, start-up, credentials (this file)
 *   executor.h    where handlers run; the mailbox into a single-threaded state machine
 *   descdb.h      index of the embedded descriptor sets (streaming flags, reflection)
 *   server.h      server and its calls
 *   client.h      channel, unary calls, streams
 *   services.h    ready-made services: health, reflection
 *
 * No header here includes one of gRPC's: its C interface is not stable, so only the .c files of
 * rpc/ know it.
 *
 * Memory: gRPC's core aborts when memory is exhausted, and so does this layer: no ST_NO_MEMORY.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/log.h"
#include "common/status.h"

/* The numbers of gRPC's status codes. */
enum rpc_code {
    RPC_OK = 0,
    RPC_CANCELLED = 1,
    RPC_UNKNOWN = 2,
    RPC_INVALID_ARGUMENT = 3,
    RPC_DEADLINE_EXCEEDED = 4,
    RPC_NOT_FOUND = 5,
    RPC_ALREADY_EXISTS = 6,
    RPC_PERMISSION_DENIED = 7,
    RPC_RESOURCE_EXHAUSTED = 8,
    RPC_FAILED_PRECONDITION = 9,
    RPC_ABORTED = 10,
    RPC_OUT_OF_RANGE = 11,
    RPC_UNIMPLEMENTED = 12,
    RPC_INTERNAL = 13,
    RPC_UNAVAILABLE = 14,
    RPC_DATA_LOSS = 15,
    RPC_UNAUTHENTICATED = 16,
};

/* "OK", "NOT_FOUND"; static, never NULL. */
const char *rpc_code_name(enum rpc_code code);

/* The code that carries a status to the caller, and the status that a received code means here. */
enum rpc_code rpc_code_from_status(enum status st);
enum status rpc_code_status(enum rpc_code code);

/*
 * Starts gRPC, once per process: after every fork (daemonise first, children only exec), with the
 * signals blocked that the program wants to read itself, because gRPC's threads inherit the mask.
 */
void rpc_init(void);
void rpc_shutdown(void);

/* To be called before rpc_init: problems that gRPC's core finds become lines of this log, which is
 * borrowed for ever. They are ten in ten seconds at most, for peers can provoke them. Without this
 * call gRPC logs nothing. */
void rpc_log_to(const struct log *log);

/* Whether an address is of this machine only: "127.0.0.1:7000", "ipv4:127.0.0.1:7000",
 * "localhost:7000", "[::1]:7000". Tokens go nowhere else. */
bool rpc_address_is_loopback(const char *address);
/* True for HOST:PORT as others can dial it: a name or an address (of IPv6 in brackets), no scheme,
 * a port from 1. */
bool rpc_address_is_dialled(const char *address);
/* True for HOST:PORT as a server may listen at it: like rpc_address_is_dialled, but also port 0. */
bool rpc_address_is_served(const char *address);

/*
 * How many bytes of a status's text travel: gRPC writes each byte that is not printable ASCII, line
 * ends and '%' too, as three, and a peer takes no more than 8 KiB of headers: with more it has
 * neither text nor code. What is too long ends with its last whole line, else a whole character.
 */
#define RPC_DETAIL_MAX 7168 /* as it is written; beside it a peer's limit has room for the rest */
size_t rpc_detail_size(const char *detail);

/* Returns advice for a caller that couldn't connect, by the detail that it got: a clause, or "" if
 * the detail doesn't tell. tls: it spoke TLS. */
const char *rpc_refusal_hint(const char *detail, bool tls);

/* Borrowed bytes. */
struct rpc_bytes {
    const uint8_t *data;
    size_t size;
};
