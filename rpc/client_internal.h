/*
 * Private to rpc/: what channel.c and stream.c share.
 */
#pragma once

#include <pthread.h>

#include "rpc/client.h"
#include "rpc/core.h"
#include "rpc/dial.h"

#define DEFAULT_TIMEOUT_MS 10000

struct rpc_channel {
    grpc_channel *core;
    struct rpc_dial dial;
    pthread_mutex_t mutex;
    struct identity_watch *watch; /* of the files of TLS, or NULL; under mutex */
    grpc_completion_queue *queue; /* of the streams; made with the first one */
    pthread_t queue_thread;
};

/* The queue of the channel's streams. */
grpc_completion_queue *rpc_channel_queue(struct rpc_channel *channel);

/* NULL: the service has no such method. */
const ProtobufCMethodDescriptor *rpc_find_method(const ProtobufCServiceDescriptor *service,
                                                 const char *method);

/* deadline_ms < 0: none. */
grpc_call *rpc_channel_call(struct rpc_channel *channel, grpc_completion_queue *queue,
                            const ProtobufCServiceDescriptor *service, const char *method,
                            int64_t deadline_ms);

/* The metadata that a call sends first; kept until its batch is started, then
 * rpc_metadata_release. */
struct rpc_metadata {
    grpc_metadata rows[2];
    size_t count;
};
/* Fills in SEND_INITIAL_METADATA. authorization, behalf: NULL is none. */
void rpc_channel_metadata(grpc_op *op, struct rpc_metadata *metadata, const char *authorization,
                          const char *behalf, bool wait_for_ready);
void rpc_metadata_release(struct rpc_metadata *metadata);

void rpc_result_set(struct rpc_result *result, grpc_status_code code, grpc_slice detail);
void rpc_result_text(struct rpc_result *result, enum rpc_code code, const char *detail);
