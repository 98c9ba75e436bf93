/*
 * Calls of the coordinator's Control service. The connection is made by the first of them. Where
 * a terminal is written to (client->plain), texts of answers are plain, but for paths.
 */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdint.h>

#include "cairn/v1/control.pb-c.h"
#include "client/base/client.h"
#include "rpc/client.h"

/*
 * Makes one call. While a supervisor of this home lives, an unreachable coordinator is tried again
 * for some seconds: it is being restarted. A failure is reported on standard error. timeout_ms: 0:
 * the default. out_reply: protobuf_c_message_free_unpacked(reply, NULL).
 */
enum exit_code client_call(struct client *client, const char *method,
                           const ProtobufCMessage *request, int32_t timeout_ms,
                           ProtobufCMessage **out_reply);

/* Like client_call, but silent and once: for polling. */
enum rpc_code client_try(struct client *client, const char *method, const ProtobufCMessage *request,
                         int32_t timeout_ms, ProtobufCMessage **out_reply);

/* Waits for the coordinator to answer, and asks it how many agents it has. */
enum rpc_code client_probe(struct client *client, int32_t timeout_ms, uint32_t *out_agents);

/* Calls GetJob by id or name, like client_call. *out: cairn__v1__job__free_unpacked. */
enum exit_code client_get_job(struct client *client, const char *name, Cairn__V1__Job **out);

/* Opens a server stream, waiting wait_ms for a coordinator that isn't there (0: not at all);
 * nothing is reported. */
enum rpc_code client_stream(struct client *client, const char *method,
                            const ProtobufCMessage *request, int32_t wait_ms,
                            struct rpc_stream **out, struct rpc_result *result);

/* rpc_stream_recv, for commands: on a terminal every text is plain. */
MUST_CHECK enum status client_recv(const struct client *client, struct rpc_stream *stream,
                                   int32_t timeout_ms, ProtobufCMessage **out);

/* Says why a call failed; returns its exit code. */
enum exit_code client_report(const struct client *client, const struct rpc_result *result);

/* 32 random hex digits and a NUL: the same call made twice counts once. */
void client_idempotency_key(char out[33]);
