/* Fleet and Training: a call of gRPC, both ways, is a connection of the core (struct coord_conn).
 * */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "server/api/api.h"

struct api_connection {
    struct coord_conn conn; /* first: the core gives it back */
    struct rpc_call *call;
    struct api *api;
    bool agent;
    char node[LIMIT_NAME]; /* the node that its certificate names; "": it shows none */
    int64_t issued_s;      /* of the certificate; Unix time */
    int64_t until_ms;
};

static void send_message(struct coord_conn *conn, const struct coord_message *message)
{
    struct api_connection *connection = (struct api_connection *)conn;
    /* A peer that doesn't read loses the connection. */
    (void)rpc_call_send_packed(connection->call, message->data, message->size);
}

static void finish_call(struct coord_conn *conn, enum rpc_code code, const char *detail)
{
    const struct api_connection *connection = (struct api_connection *)conn;
    access_note(connection->api->auditlog, connection->call, connection->node, code, detail);
    rpc_call_finish(connection->call, code, detail);
}

static const struct coord_conn_ops ops = { .send = send_message, .finish = finish_call };

static void connection_done(struct rpc_call *call, void *data, bool cancelled)
{
    struct api_connection *connection = data;
    (void)call;
    (void)cancelled;
    if (connection->agent) {
        coord_agent_closed(connection->api->coord, &connection->conn);
    } else {
        coord_trainer_closed(connection->api->coord, &connection->conn);
    }
    free(connection);
}

/* The connection of a call, made with its first message; NULL, and the call ended. */
static struct api_connection *connection_of(struct api *api, struct rpc_call *call, bool agent)
{
    struct api_connection *connection = rpc_call_data(call);
    if (connection != NULL)
        return connection;
    connection = api->closing ? NULL : calloc(1, sizeof(*connection));
    if (connection == NULL) {
        rpc_call_finish(call, RPC_UNAVAILABLE, "the coordinator ends");
        return NULL;
    }
    struct ucred peer;
    connection->conn.ops = &ops;
    connection->conn.local = rpc_call_peer_cred(call, &peer);
    if (!rpc_call_token(call, connection->conn.token, sizeof(connection->conn.token)))
        connection->conn.token[0] = '\0';
    connection->call = call;
    connection->api = api;
    connection->agent = agent;
    connection->until_ms = access_until_ms(call);
    if (!access_node(call, connection->node, &connection->issued_s))
        connection->node[0] = '\0';
    rpc_call_set_data(call, connection, connection_done);
    return connection;
}

static void half_close(struct api *api, struct rpc_call *call)
{
    struct api_connection *connection = rpc_call_data(call);
    if (connection != NULL) {
        coord_half_closed(api->coord, &connection->conn);
    } else {
        rpc_call_finish(call, RPC_OK, NULL);
    }
}

/* Returns whether the agent may say this: its certificate hasn't expired, its node wasn't forgotten
 * since, and its hello is that of the node that the certificate names. False: the call ended. */
static bool is_own(struct api_connection *connection, const Cairn__V1__AgentMessage *in)
{
    struct coord_conn *conn = &connection->conn;
    struct reason note;
    if (connection->until_ms <= clock_wall_ms(clock_system())) {
        finish_call(conn, RPC_UNAUTHENTICATED, ACCESS_EXPIRED);
        return false;
    }
    if (connection->node[0] != '\0' &&
        connection->issued_s <= coord_node_forgotten(connection->api->coord, connection->node)) {
        finish_call(conn, RPC_PERMISSION_DENIED, COORD_FORGOTTEN);
        return false;
    }
    if (connection->node[0] == '\0' || in->body_case != CAIRN__V1__AGENT_MESSAGE__BODY_HELLO ||
        strcmp(in->hello->node, connection->node) == 0)
        return true;
    reason_set(
        &note,
        "this certificate is node %s's and the hello says %.100s: start the agent with --name "
        "%s, or make a certificate with 'cairn cert node %.100s'",
        connection->node, in->hello->node, connection->node, in->hello->node);
    finish_call(conn, RPC_PERMISSION_DENIED, note.text);
    return false;
}

static void fleet_session(Cairn__V1__Fleet_Service *service, const Cairn__V1__AgentMessage *in,
                          Cairn__V1__AgentOrder_Closure reply, void *call)
{
    struct api *api = ((struct api_service_connections *)service)->api;
    (void)reply;
    if (in == NULL) {
        half_close(api, call);
        return;
    }
    struct api_connection *connection = connection_of(api, call, true);
    if (connection != NULL && is_own(connection, in))
        coord_agent_message(api->coord, &connection->conn, in);
}

static void training_session(Cairn__V1__Training_Service *service,
                             const Cairn__V1__TrainerMessage *in,
                             Cairn__V1__TrainerOrder_Closure reply, void *call)
{
    struct api *api = ((struct api_service_connections *)service)->api;
    (void)reply;
    if (in == NULL) {
        half_close(api, call);
        return;
    }
    struct api_connection *connection = connection_of(api, call, false);
    if (connection != NULL)
        coord_trainer_message(api->coord, &connection->conn, in);
}

enum status api_connections_open(struct api *api, struct rpc_server *server)
{
    struct api_service_connections *services = api->connections;
    services[0].api = api;
    services[0].service.fleet = (Cairn__V1__Fleet_Service){ .base = CAIRN__V1__FLEET__BASE_INIT,
                                                            .session = fleet_session,
                                                            .join = api_join,
                                                            .renew = api_renew };
    services[1].api = api;
    services[1].service.training =
        (Cairn__V1__Training_Service){ .base = CAIRN__V1__TRAINING__BASE_INIT,
                                       .session = training_session };
    enum status st = rpc_server_add_service(server, &services[0].service.fleet.base, NULL);
    if (st == ST_OK)
        st = rpc_server_add_service(server, &services[1].service.training.base, NULL);
    return st;
}
