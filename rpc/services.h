/*
 * Ready-made services: grpc.health.v1.Health (Check, Watch) and server reflection under both of its
 * names (grpc.reflection.v1, grpc.reflection.v1alpha: the same wire format).
 *
 * Each is added to the server by its new(), and freed after the server.
 */
#pragma once

#include "rpc/server.h"

struct rpc_health;
struct rpc_reflection;

/* Errors: ST_NOT_FOUND  the descriptor sets lack the service */
MUST_CHECK enum status rpc_health_new(struct rpc_server *server, struct rpc_health **out);
void rpc_health_free(struct rpc_health *health);

/* service "": the server as a whole. Thread: any. Errors: ST_FULL  64 services at most */
enum status rpc_health_set(struct rpc_health *health, const char *service, bool serving);

/* Sets every service to NOT_SERVING for good, and ends the watches: before the server stops. */
void rpc_health_drain(struct rpc_health *health);

MUST_CHECK enum status rpc_reflection_new(struct rpc_server *server, struct rpc_reflection **out);
void rpc_reflection_free(struct rpc_reflection *reflection);
