/*
 * The connection to the coordinator of this home: calls of its Control service.
 *
 * Thread: any, several at a time.
 */
#pragma once

#include <stdint.h>

#include "cairn/v1/control.pb-c.h"
#include "common/paths.h"
#include "rpc/client.h"

struct coordinator;

/* Opens the connection by the home's socket. paths are copied. */
MUST_CHECK enum status coordinator_open(const struct paths *paths, struct coordinator **out);
/* Closes the connection; to be called after its last call and stream have ended. */
void coordinator_close(struct coordinator *coordinator);

#define COORDINATOR_CALL_MS 5000

/*
 * Makes one call, which takes COORDINATOR_CALL_MS at most; a coordinator that is just being started
 * is waited for. *out: protobuf_c_message_free_unpacked(reply, NULL).
 * Errors: rpc_code_status(result->code); result->detail says why
 */
MUST_CHECK enum status coordinator_call(struct coordinator *coordinator, const char *method,
                                        const ProtobufCMessage *request, ProtobufCMessage **out,
                                        struct rpc_result *result);

/* Like coordinator_call, within timeout_ms and on behalf of somebody; behalf: a line as
 * identity_behalf_text writes it. */
MUST_CHECK enum status coordinator_call_for(struct coordinator *coordinator, const char *behalf,
                                            const char *method, const ProtobufCMessage *request,
                                            int32_t timeout_ms, ProtobufCMessage **out,
                                            struct rpc_result *result);

/* Like coordinator_call; the reply is allocated with `allocator`. */
MUST_CHECK enum status coordinator_call_in(struct coordinator *coordinator, const char *method,
                                           const ProtobufCMessage *request,
                                           ProtobufCAllocator *allocator, ProtobufCMessage **out,
                                           struct rpc_result *result);

/* Opens a server stream; as coordinator_call. rpc_stream_close ends it. */
MUST_CHECK enum status coordinator_stream(struct coordinator *coordinator, const char *method,
                                          const ProtobufCMessage *request, struct rpc_stream **out,
                                          struct rpc_result *result);
