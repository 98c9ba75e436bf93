/* Server reflection: the descriptor sets, for tools that ask. */
#include <stdlib.h>
#include <string.h>

#include "common/unconst.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "rpc/core.h"
#include "rpc/services.h"

#define SERVICES_MAX 64
#define FILES_MAX    64

/* Kinds of requests, as protoc-c names them. */
#define REQUEST(kind) GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##kind
#define REQUEST_INT_SIZE                                                                           \
    _GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST__CASE_IS_INT_SIZE
#define RESPONSE_LIST                                                                              \
    GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE
#define RESPONSE_FILES                                                                             \
    GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE
#define RESPONSE_ERROR                                                                             \
    GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE

struct rpc_reflection {
    Grpc__Reflection__V1__ServerReflection_Service service;
    const struct rpc_server *server;
};

static void init_response(Grpc__Reflection__V1__ServerReflectionResponse *response,
                          const Grpc__Reflection__V1__ServerReflectionRequest *request)
{
    grpc__reflection__v1__server_reflection_response__init(response);
    response->valid_host = request->host;
    response->original_request = unconst(request);
}

static void list_services(const struct rpc_reflection *reflection,
                          const Grpc__Reflection__V1__ServerReflectionRequest *request,
                          struct rpc_call *call)
{
    Grpc__Reflection__V1__ServerReflectionResponse response;
    init_response(&response, request);
    const char *names[SERVICES_MAX];
    Grpc__Reflection__V1__ServiceResponse rows[SERVICES_MAX];
    Grpc__Reflection__V1__ServiceResponse *links[SERVICES_MAX];
    Grpc__Reflection__V1__ListServiceResponse list =
        GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT;
    size_t count = rpc_server_services(reflection->server, names, SERVICES_MAX);
    for (size_t i = 0; i < count && i < SERVICES_MAX; i++) {
        grpc__reflection__v1__service_response__init(&rows[i]);
        rows[i].name = unconst(names[i]);
        links[i] = &rows[i];
        list.n_service = i + 1;
    }
    list.service = links;
    response.message_response_case = RESPONSE_LIST;
    response.list_services_response = &list;
    (void)rpc_call_send(call, &response.base);
}

struct files {
    ProtobufCBinaryData list[FILES_MAX];
    size_t count;
};

static void collect_file(void *arg, struct rpc_bytes file)
{
    struct files *files = arg;
    if (files->count < FILES_MAX) {
        files->list[files->count++] =
            (ProtobufCBinaryData){ .len = file.size, .data = unconst(file.data) };
    }
}

static void send_files(const struct rpc_reflection *reflection, const char *name,
                       const Grpc__Reflection__V1__ServerReflectionRequest *request,
                       struct rpc_call *call)
{
    Grpc__Reflection__V1__ServerReflectionResponse response;
    init_response(&response, request);
    struct files files = { .count = 0 };
    rpc_descdb_closure(rpc_server_descdb(reflection->server), name, collect_file, &files);
    Grpc__Reflection__V1__FileDescriptorResponse found =
        GRPC__REFLECTION__V1__FILE_DESCRIPTOR_RESPONSE__INIT;
    found.file_descriptor_proto = files.list;
    found.n_file_descriptor_proto = files.count;
    response.message_response_case = RESPONSE_FILES;
    response.file_descriptor_response = &found;
    (void)rpc_call_send(call, &response.base);
}

static void send_error(enum rpc_code code, const char *text,
                       const Grpc__Reflection__V1__ServerReflectionRequest *request,
                       struct rpc_call *call)
{
    Grpc__Reflection__V1__ServerReflectionResponse response;
    init_response(&response, request);
    Grpc__Reflection__V1__ErrorResponse error = GRPC__REFLECTION__V1__ERROR_RESPONSE__INIT;
    error.error_code = (int32_t)code;
    error.error_message = unconst(text);
    response.message_response_case = RESPONSE_ERROR;
    response.error_response = &error;
    (void)rpc_call_send(call, &response.base);
}

static void reflection_info(Grpc__Reflection__V1__ServerReflection_Service *service,
                            const Grpc__Reflection__V1__ServerReflectionRequest *in,
                            Grpc__Reflection__V1__ServerReflectionResponse_Closure reply,
                            void *call)
{
    (void)reply;
    const struct rpc_reflection *reflection = CONTAINER_OF(service, struct rpc_reflection, service);
    if (in == NULL) {
        rpc_call_finish(call, RPC_OK, NULL);
        return;
    }
    const struct rpc_descdb *db = rpc_server_descdb(reflection->server);
    const char *name = NULL;
    struct rpc_bytes bytes;
    switch (in->message_request_case) {
    case REQUEST(LIST_SERVICES):
        list_services(reflection, in, call);
        return;
    case REQUEST(FILE_BY_FILENAME):
        if (rpc_descdb_file(db, in->file_by_filename, &bytes) == ST_OK)
            name = in->file_by_filename;
        break;
    case REQUEST(FILE_CONTAINING_SYMBOL):
        name = rpc_descdb_symbol(db, in->file_containing_symbol);
        break;
    case REQUEST(FILE_CONTAINING_EXTENSION): /* proto3 has none */
    case REQUEST(ALL_EXTENSION_NUMBERS_OF_TYPE):
    case REQUEST(_NOT_SET):
    case REQUEST_INT_SIZE:
        send_error(RPC_UNIMPLEMENTED, "not supported", in, call);
        return;
    }
    if (name != NULL) {
        send_files(reflection, name, in, call);
    } else {
        send_error(RPC_NOT_FOUND, "not found", in, call);
    }
}

enum status rpc_reflection_new(struct rpc_server *server, struct rpc_reflection **out)
{
    struct rpc_reflection *reflection = rpc_alloc(sizeof(*reflection));
    reflection->service = (Grpc__Reflection__V1__ServerReflection_Service){
        .base = GRPC__REFLECTION__V1__SERVER_REFLECTION__BASE_INIT,
        .server_reflection_info = reflection_info,
    };
    reflection->server = server;
    enum status st = rpc_server_add_service(server, &reflection->service.base, NULL);
    if (st == ST_OK) {
        st = rpc_server_add_service(server, &reflection->service.base,
                                    "grpc.reflection.v1alpha.ServerReflection");
    }
    if (st != ST_OK) {
        rpc_reflection_free(reflection);
        return st;
    }
    *out = reflection;
    return ST_OK;
}

void rpc_reflection_free(struct rpc_reflection *reflection)
{
    free(reflection);
}
