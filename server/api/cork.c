/* Calls of Control: what they are answered waits for their group's commit, and is noted then. */
#include <stdlib.h>

#include "server/api/api.h"

static bool keep_corked(struct api *api, struct rpc_call *call)
{
    if (api->corked_count == api->corked_capacity) {
        size_t capacity = api->corked_capacity ? 2 * api->corked_capacity : 64;
        struct api_corked *more = realloc(api->corked, capacity * sizeof(*more));
        if (more == NULL)
            return false;
        api->corked = more;
        api->corked_capacity = capacity;
    }
    rpc_call_ref(call);
    api->corked[api->corked_count++] = (struct api_corked){ .call = call };
    return true;
}

/* Notes the job or node as the caller names it; a handler that finds out more says so
 * (api_about). */
static void note_about(struct api *api, const ProtobufCMessage *input)
{
    static const char *const fields[] = { "job", "node", "file_name" };
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field_by_name(input->descriptor, fields[i]);
        if (field != NULL && field->type == PROTOBUF_C_TYPE_STRING)
            api_about(api, *(char *const *)((const char *)input + field->offset));
    }
}

void api_invoke_corked(ProtobufCService *service, unsigned method, const ProtobufCMessage *input,
                       ProtobufCClosure closure, void *call)
{
    struct api_service_control *control = (struct api_service_control *)service;
    if (!keep_corked(control->api, call)) {
        api_refuse(call, RPC_INTERNAL, "no memory");
        return;
    }
    note_about(control->api, input);
    rpc_call_cork(call);
    control->invoke(service, method, input, closure, call);
}

void api_later(struct api *api, struct rpc_call *call, struct later *later)
{
    if (later != NULL) {
        api->corked[api->corked_count - 1].later = later;
    } else {
        api_refuse(call, RPC_INTERNAL, "no memory");
    }
}

/* The group is committed: a thread that reads the journal beside the core finds it there. */
static void end_later(struct api *api, struct later *later)
{
    struct later_reader reader = { .coord = api->coord };
    if (api->later == NULL || !later_queue_put(api->later, later))
        (void)later_end(later, &reader);
    later_reader_release(&reader);
}

void api_release(struct api *api)
{
    for (size_t i = 0; i < api->corked_count; i++) {
        const struct api_corked *corked = &api->corked[i];
        enum rpc_code code;
        if (!rpc_call_answered(corked->call, &code))
            code = RPC_OK; /* the call was taken; the answer waits, or the caller doesn't */
        access_note(api->auditlog, corked->call, corked->about, code, "");
        rpc_call_uncork(corked->call);
        rpc_call_unref(corked->call);
        if (corked->later != NULL)
            end_later(api, corked->later);
    }
    api->corked_count = 0;
}
