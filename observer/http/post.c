/* Handlers that change jobs and nodes: the coordinator decides, and records it. */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "common/check.h"
#include "common/unconst.h"
#include "observer/http/internal.h"

#define KEY_BYTES 33

/* Makes the key of a request: a call that is made twice with one key counts once; each request has
 * its own key. */
static void make_key(char out[KEY_BYTES])
{
    uint8_t bytes[16];
    CHECK(getrandom(bytes, sizeof(bytes), 0) == (ssize_t)sizeof(bytes));
    for (size_t i = 0; i < sizeof(bytes); i++)
        (void)snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

static enum MHD_Result steer(struct http_request *request, const char *method)
{
    Cairn__V1__JobRequest message = CAIRN__V1__JOB_REQUEST__INIT;
    char key[KEY_BYTES];
    make_key(key);
    message.job = unconst(request->name);
    message.idempotency_key = key;
    LOG_INFO(request->http->parts.log, "%s of %s, asked for on the page by %s/%s from %s", method,
             request->name, identity_role_name(request->who.is.role), request->who.is.who,
             request->who.is.address);
    return reply_call(request, method, &message.base);
}

/* Ends this browser's session by removing its cookie. Somebody who has a copy of the cookie keeps
 * the session until it ends, or until `cairn open --revoke`. */
enum MHD_Result act_sign_out(struct http_request *request)
{
    char cookie[HTTP_COOKIE];
    struct MHD_Response *response =
        MHD_create_response_from_buffer(3, unconst("{}\n"), MHD_RESPMEM_PERSISTENT);
    if (response == NULL)
        return MHD_NO;
    reply_cookie(request, "", 0, cookie);
    reply_headers(response, false);
    (void)MHD_add_response_header(response, "Content-Type", "application/json");
    (void)MHD_add_response_header(response, "Set-Cookie", cookie);
    const enum MHD_Result queued = MHD_queue_response(request->connection, MHD_HTTP_OK, response);
    MHD_destroy_response(response);
    return queued;
}

enum MHD_Result act_pause(struct http_request *request)
{
    return steer(request, "PauseJob");
}

enum MHD_Result act_resume(struct http_request *request)
{
    return steer(request, "ResumeJob");
}

enum MHD_Result act_stop(struct http_request *request)
{
    return steer(request, "StopJob");
}

enum MHD_Result act_save(struct http_request *request)
{
    Cairn__V1__SaveCheckpointRequest message = CAIRN__V1__SAVE_CHECKPOINT_REQUEST__INIT;
    char key[KEY_BYTES];
    make_key(key);
    message.job = unconst(request->name);
    message.idempotency_key = key;
    return reply_call_for(request, "SaveCheckpoint", &message.base, HTTP_SAVE_MS);
}

enum MHD_Result act_drain(struct http_request *request)
{
    Cairn__V1__DrainNodeRequest message = CAIRN__V1__DRAIN_NODE_REQUEST__INIT;
    json_t *body = json_loadb(request->body, request->body_size, 0, NULL);
    const char *reason = json_string_value(json_object_get(body, "reason"));
    if (request->body_size > 0 && reason == NULL) {
        json_decref(body);
        return reply_error(request, MHD_HTTP_BAD_REQUEST,
                           "the body is {\"reason\": \"…\"}, or empty");
    }
    message.node = unconst(request->name);
    if (reason != NULL)
        message.reason = unconst(reason);
    const enum MHD_Result queued = reply_call(request, "DrainNode", &message.base);
    json_decref(body);
    return queued;
}

enum MHD_Result act_undrain(struct http_request *request)
{
    Cairn__V1__UndrainNodeRequest message = CAIRN__V1__UNDRAIN_NODE_REQUEST__INIT;
    message.node = unconst(request->name);
    return reply_call(request, "UndrainNode", &message.base);
}
