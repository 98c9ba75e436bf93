/* Answers: JSON, errors, what the coordinator said; what is asked with a request. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "observer/http/internal.h"
#include "observer/page/page.h"
#include "proto/text/json.h"

#define ERROR_BYTES   1024
#define COOKIE_FORMAT "%s; Path=/api; HttpOnly; SameSite=Strict; Max-Age=%d%s"
#define COOKIE_SECURE "; Secure" /* over TLS */

/* Strict-Transport-Security isn't among them: it is for a whole host, and what else is served
 * there, as a Grafana beside it, is seldom served over TLS. */
void reply_headers(struct MHD_Response *response, bool keeps)
{
    (void)MHD_add_response_header(response, "Cache-Control", keeps ? "no-cache" : "no-store");
    (void)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    (void)MHD_add_response_header(response, "X-Frame-Options", "DENY");
    (void)MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
    (void)MHD_add_response_header(response, "Cross-Origin-Resource-Policy", "same-origin");
    (void)MHD_add_response_header(response, "Cross-Origin-Opener-Policy", "same-origin");
    (void)MHD_add_response_header(response, "Content-Security-Policy", page_csp());
}

enum MHD_Result reply_buf(const struct http_request *request, unsigned code, const char *type,
                          struct buf *out)
{
    size_t size = 0;
    char *bytes = buf_take(out, &size);
    struct MHD_Response *response =
        MHD_create_response_from_buffer(size, bytes, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        free(bytes);
        return MHD_NO;
    }
    reply_headers(response, false);
    (void)MHD_add_response_header(response, "Content-Type", type);
    const enum MHD_Result queued = MHD_queue_response(request->connection, code, response);
    MHD_destroy_response(response);
    return queued;
}

static enum MHD_Result reply_value(const struct http_request *request, unsigned code, json_t *value)
{
    auto_buf struct buf out;
    buf_init(&out, HTTP_JSON_BYTES);
    const enum status st = json_print(value, true, &out);
    json_decref(value);
    if (st != ST_OK)
        return MHD_NO; /* no memory: the connection ends */
    return reply_buf(request, code, "application/json", &out);
}

enum MHD_Result reply_json(const struct http_request *request, json_t *value)
{
    return reply_value(request, MHD_HTTP_OK, value);
}

enum MHD_Result reply_message(const struct http_request *request, const ProtobufCMessage *message)
{
    return reply_json(request, json_from_message(message));
}

enum MHD_Result reply_error(const struct http_request *request, unsigned code, const char *format,
                            ...)
{
    char text[ERROR_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return reply_value(request, code, json_pack("{s:o}", "error", json_from_text(text)));
}

static unsigned http_code(enum rpc_code code)
{
    switch (code) {
    case RPC_OK:
        return MHD_HTTP_OK;
    case RPC_INVALID_ARGUMENT:
    case RPC_OUT_OF_RANGE:
        return MHD_HTTP_BAD_REQUEST;
    case RPC_NOT_FOUND:
        return MHD_HTTP_NOT_FOUND;
    case RPC_ALREADY_EXISTS:
    case RPC_FAILED_PRECONDITION:
    case RPC_ABORTED:
        return MHD_HTTP_CONFLICT;
    case RPC_PERMISSION_DENIED:
    case RPC_UNAUTHENTICATED:
        return MHD_HTTP_FORBIDDEN;
    case RPC_RESOURCE_EXHAUSTED:
        return MHD_HTTP_TOO_MANY_REQUESTS;
    case RPC_CANCELLED:
    case RPC_DEADLINE_EXCEEDED:
    case RPC_UNAVAILABLE:
        return MHD_HTTP_SERVICE_UNAVAILABLE;
    case RPC_UNIMPLEMENTED:
    case RPC_UNKNOWN:
    case RPC_INTERNAL:
    case RPC_DATA_LOSS:
        break;
    }
    return MHD_HTTP_INTERNAL_SERVER_ERROR;
}

enum MHD_Result reply_result(const struct http_request *request, const struct rpc_result *result)
{
    if (result->code == RPC_UNAVAILABLE || result->code == RPC_DEADLINE_EXCEEDED) {
        return reply_error(request, MHD_HTTP_SERVICE_UNAVAILABLE,
                           "the coordinator doesn't answer; 'cairn up' starts it, training goes on "
                           "without it");
    }
    return reply_error(request, http_code(result->code == RPC_OK ? RPC_INTERNAL : result->code),
                       "%s",
                       result->detail[0] != '\0' ? result->detail : rpc_code_name(result->code));
}

enum MHD_Result reply_call(const struct http_request *request, const char *method,
                           const ProtobufCMessage *message)
{
    return reply_call_for(request, method, message, COORDINATOR_CALL_MS);
}

enum MHD_Result reply_call_for(const struct http_request *request, const char *method,
                               const ProtobufCMessage *message, int32_t timeout_ms)
{
    ProtobufCMessage *reply = NULL;
    struct rpc_result result = { .code = RPC_INTERNAL };
    char behalf[IDENTITY_BEHALF];
    identity_behalf_text(&request->who.is, behalf);
    if (coordinator_call_for(request->http->parts.coordinator, behalf, method, message, timeout_ms,
                             &reply, &result) != ST_OK)
        return reply_result(request, &result);
    const enum MHD_Result queued = reply_message(request, reply);
    protobuf_c_message_free_unpacked(reply, NULL);
    return queued;
}

void reply_cookie(const struct http_request *request, const char *token, int seconds,
                  char out[HTTP_COOKIE])
{
    (void)snprintf(out, HTTP_COOKIE, HTTP_COOKIE_FORMAT COOKIE_FORMAT,
                   (unsigned)request->http->port, token, seconds,
                   request->http->tls != NULL ? COOKIE_SECURE : "");
}

const char *request_header(const struct http_request *request, const char *name)
{
    return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

const char *request_parameter(const struct http_request *request, const char *name)
{
    return MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, name);
}

uint64_t request_number(const struct http_request *request, const char *name, uint64_t otherwise,
                        uint64_t max)
{
    const char *text = request_parameter(request, name);
    char *end = NULL;
    if (text == NULL || text[0] < '0' || text[0] > '9')
        return otherwise;
    const uint64_t value = strtoull(text, &end, 10);
    return *end != '\0' ? otherwise : value < max ? value : max;
}
