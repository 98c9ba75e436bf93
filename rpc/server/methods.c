/* The table of methods: services are added to it, calls are dispatched by it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "rpc/server/internal.h"

static uint32_t hash_bytes(const uint8_t *data, size_t size) /* FNV-1a */
{
    uint32_t hash = 2166136261U;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ data[i]) * 16777619U;
    return hash;
}

struct rpc_method *rpc_server_method(struct rpc_server *server, grpc_slice path)
{
    const uint8_t *data = GRPC_SLICE_START_PTR(path);
    size_t size = GRPC_SLICE_LENGTH(path);
    uint32_t hash = hash_bytes(data, size);
    struct rpc_method *method = server->methods.buckets[hash % METHOD_BUCKETS];
    while (method != NULL && (method->hash != hash || method->path_size != size ||
                              memcmp(method->path, data, size) != 0))
        method = method->chain;
    return method;
}

static void add_method(struct rpc_server *server, ProtobufCService *service, unsigned index,
                       const char *service_name)
{
    const ProtobufCMethodDescriptor *descriptor = &service->descriptor->methods[index];
    struct rpc_method *method = rpc_alloc(sizeof(*method));
    size_t capacity = strlen(service_name) + strlen(descriptor->name) + 3;
    method->path = rpc_alloc(capacity);
    (void)snprintf(method->path, capacity, "/%s/%s", service_name, descriptor->name);
    method->path_size = capacity - 1;
    method->hash = hash_bytes((const uint8_t *)method->path, method->path_size);
    method->service = service;
    method->index = index;
    method->flags = rpc_descdb_method_flags(server->options.descdb, service_name, descriptor->name);
    method->input = descriptor->input;
    struct rpc_method **bucket = &server->methods.buckets[method->hash % METHOD_BUCKETS];
    method->chain = *bucket;
    *bucket = method;
}

enum status rpc_server_add_service(struct rpc_server *server, ProtobufCService *service,
                                   const char *name)
{
    CHECK(!server->started);
    const ProtobufCServiceDescriptor *descriptor = service->descriptor;
    const char *service_name = name != NULL ? name : descriptor->name;
    for (unsigned i = 0; i < descriptor->n_methods; i++) {
        if (rpc_descdb_method_flags(server->options.descdb, service_name,
                                    descriptor->methods[i].name) < 0)
            return ST_NOT_FOUND;
    }
    server->methods.services =
        realloc(server->methods.services,
                (server->methods.service_count + 1) * sizeof(*server->methods.services));
    if (server->methods.services == NULL)
        abort();
    server->methods.services[server->methods.service_count++] = rpc_copy_text(service_name);
    for (unsigned i = 0; i < descriptor->n_methods; i++)
        add_method(server, service, i, service_name);
    return ST_OK;
}

size_t rpc_server_services(const struct rpc_server *server, const char **out, size_t capacity)
{
    for (size_t i = 0; i < server->methods.service_count && i < capacity; i++)
        out[i] = server->methods.services[i];
    return server->methods.service_count;
}

const struct rpc_descdb *rpc_server_descdb(const struct rpc_server *server)
{
    return server->options.descdb;
}

void rpc_methods_free(struct rpc_methods *methods)
{
    for (size_t i = 0; i < METHOD_BUCKETS; i++) {
        while (methods->buckets[i] != NULL) {
            struct rpc_method *method = methods->buckets[i];
            methods->buckets[i] = method->chain;
            free(method->path);
            free(method);
        }
    }
    for (size_t i = 0; i < methods->service_count; i++)
        free(methods->services[i]);
    free(methods->services);
}
