#include "observer/coordinator/coordinator.h"

#include <stdlib.h>

#include "common/limits.h"

struct coordinator {
    struct rpc_channel *channel;
};

enum status coordinator_open(const struct paths *paths, struct coordinator **out)
{
    char address[LIMIT_PATH + 16];
    enum status st = paths_socket(paths, address, sizeof(address));
    struct coordinator *made = st == ST_OK ? calloc(1, sizeof(*made)) : NULL;
    if (made == NULL)
        return st == ST_OK ? ST_NO_MEMORY : st;
    const struct rpc_channel_options options = { .target = address };
    st = rpc_channel_new(&options, &made->channel);
    if (st != ST_OK) {
        free(made);
        return st;
    }
    *out = made;
    return ST_OK;
}

void coordinator_close(struct coordinator *coordinator)
{
    if (coordinator == NULL)
        return;
    rpc_channel_free(coordinator->channel);
    free(coordinator);
}

enum status coordinator_call(struct coordinator *coordinator, const char *method,
                             const ProtobufCMessage *request, ProtobufCMessage **out,
                             struct rpc_result *result)
{
    return coordinator_call_for(coordinator, NULL, method, request, COORDINATOR_CALL_MS, out,
                                result);
}

enum status coordinator_call_for(struct coordinator *coordinator, const char *behalf,
                                 const char *method, const ProtobufCMessage *request,
                                 int32_t timeout_ms, ProtobufCMessage **out,
                                 struct rpc_result *result)
{
    const struct rpc_call_options options = { .timeout_ms = timeout_ms,
                                              .wait_for_ready = true,
                                              .behalf = behalf };
    return rpc_unary(coordinator->channel, &cairn__v1__control__descriptor, method, request,
                     &options, out, result);
}

enum status coordinator_call_in(struct coordinator *coordinator, const char *method,
                                const ProtobufCMessage *request, ProtobufCAllocator *allocator,
                                ProtobufCMessage **out, struct rpc_result *result)
{
    const struct rpc_call_options options = { .timeout_ms = COORDINATOR_CALL_MS,
                                              .wait_for_ready = true,
                                              .allocator = allocator };
    return rpc_unary(coordinator->channel, &cairn__v1__control__descriptor, method, request,
                     &options, out, result);
}

enum status coordinator_stream(struct coordinator *coordinator, const char *method,
                               const ProtobufCMessage *request, struct rpc_stream **out,
                               struct rpc_result *result)
{
    const struct rpc_stream_options options = { .open_timeout_ms = COORDINATOR_CALL_MS,
                                                .wait_for_ready = true };
    return rpc_stream_request(coordinator->channel, &cairn__v1__control__descriptor, method,
                              request, &options, out, result);
}
