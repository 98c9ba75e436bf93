/* A call that is refused before it is one of ours. */
#include <stdlib.h>
#include <string.h>

#include "rpc/server/internal.h"

struct refused_call {
    struct rpc_tag tag;
    grpc_call *call;
    int cancelled;
};

static void drop_refusal(struct rpc_tag *tag, bool ok)
{
    (void)ok;
    struct refused_call *refusal = CONTAINER_OF(tag, struct refused_call, tag);
    grpc_call_unref(refusal->call);
    free(refusal);
}

void rpc_refuse(grpc_call *call, enum rpc_code code, const char *text)
{
    struct refused_call *refusal = rpc_alloc(sizeof(*refusal));
    refusal->tag.fn = drop_refusal;
    refusal->call = call;
    grpc_slice detail = grpc_slice_from_static_string(text);
    grpc_op ops[3];
    memset(ops, 0, sizeof(ops));
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[1].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    ops[1].data.send_status_from_server.status = (grpc_status_code)code;
    ops[1].data.send_status_from_server.status_details = &detail;
    ops[2].op = GRPC_OP_RECV_CLOSE_ON_SERVER;
    ops[2].data.recv_close_on_server.cancelled = &refusal->cancelled;
    rpc_tag_out(&refusal->tag);
    if (grpc_call_start_batch(call, ops, 3, &refusal->tag, NULL) != GRPC_CALL_OK)
        drop_refusal(&refusal->tag, false);
}
