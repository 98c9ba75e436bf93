/* Fleet and Training: streams of gRPC as connections of the core. */
#include <stdlib.h>

#include "server/api/api.h"

struct session {
    struct core_conn conn; /* first: the core gives it back */
    struct rpc_call *call;
    struct api *api;
    bool agent;
};

static void send_message(struct core_conn *conn, const ProtobufCMessage *message)
{
    struct session *session = (struct session *)conn;
    (void)rpc_call_send(session->call, message); /* a peer that doesn't read loses its stream */
}

static void finish(struct core_conn *conn, enum rpc_code code, const char *detail)
{
    rpc_call_finish(((struct session *)conn)->call, code, detail);
}

static const struct core_conn_ops ops = { .send = send_message, .finish = finish };

static void session_done(struct rpc_call *call, void *data, bool cancelled)
{
    struct session *session = data;
    (void)call;
    (void)cancelled;
    if (session->agent) {
        core_agent_closed(session->api->core, &session->conn);
    } else {
        core_trainer_closed(session->api->core, &session->conn);
    }
    free(session);
}

/* The session of a call, made with its first message; NULL, and the call ended. */
static struct session *session_of(struct api *api, struct rpc_call *call, bool agent)
{
    struct session *session = rpc_call_data(call);
    if (session)
        return session;
    session = api->closing ? NULL : calloc(1, sizeof *session);
    if (!session) {
        rpc_call_finish(call, RPC_UNAVAILABLE, "the coordinator ends");
        return NULL;
    }
    struct ucred peer;
    session->conn.ops = &ops;
    session->conn.local = rpc_call_peer_cred(call, &peer);
    if (!rpc_call_token(call, session->conn.token, sizeof session->conn.token))
        session->conn.token[0] = '\0';
    session->call = call;
    session->api = api;
    session->agent = agent;
    rpc_call_set_data(call, session, session_done);
    return session;
}

static void fleet_session(Cairn__V1__Fleet_Service *service, const Cairn__V1__AgentMessage *in,
                          Cairn__V1__AgentOrder_Closure reply, void *call)
{
    struct api *api = ((struct api_service_sessions *)service)->api;
    (void)reply;
    if (!in) {
        rpc_call_finish(call, RPC_OK, NULL);
        return;
    }
    struct session *session = session_of(api, call, true);
    if (session)
        core_agent_message(api->core, &session->conn, in);
}

static void training_session(Cairn__V1__Training_Service *service,
                             const Cairn__V1__TrainerMessage *in,
                             Cairn__V1__TrainerOrder_Closure reply, void *call)
{
    struct api *api = ((struct api_service_sessions *)service)->api;
    (void)reply;
    if (!in) {
        rpc_call_finish(call, RPC_OK, NULL);
        return;
    }
    struct session *session = session_of(api, call, false);
    if (session)
        core_trainer_message(api->core, &session->conn, in);
}

enum status api_sessions_open(struct api *api, struct rpc_server *server)
{
    struct api_service_sessions *services = api->sessions;
    services[0].api = api;
    services[0].service.fleet =
        (Cairn__V1__Fleet_Service){ .base = CAIRN__V1__FLEET__BASE_INIT, .session = fleet_session };
    services[1].api = api;
    services[1].service.training =
        (Cairn__V1__Training_Service){ .base = CAIRN__V1__TRAINING__BASE_INIT,
                                       .session = training_session };
    enum status st = rpc_server_add_service(server, &services[0].service.fleet.base, NULL);
    if (st == ST_OK)
        st = rpc_server_add_service(server, &services[1].service.training.base, NULL);
    return st;
}
