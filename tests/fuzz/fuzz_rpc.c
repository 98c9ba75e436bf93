/*
 * Any first bytes at the listeners of a coordinator: its TLS port before and after the handshake,
 * the port without TLS, the Unix socket. Real servers of rpc/ with the services of agents and
 * trainers, and who may call what decided as in cairnd. gRPC reads HTTP/2; the input is so made
 * that much of it comes through to what is ours.
 *
 * The first byte of an input says where it goes (enum mode, by remainder), the rest is a list of
 * records: kind, size, that many bytes.
 *   0 bytes as they are   1 a call begins: method, then who calls   2 a message of the newest call
 *   3 the same, its last  4 the newest call is reset                5 a frame: type, flags, payload
 * All but those that send nothing but the input begin with HTTP/2's preface and end with a PING,
 * whose answer says that all before was read.
 */
#include <arpa/inet.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "cairn/v1/fleet.pb-c.h"
#include "cairn/v1/training.pb-c.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/io.h"
#include "identity/make.h"
#include "proto/descriptors.h"
#include "rpc/services.h"
#include "server/api/access.h"
#include "tests/fuzz/fuzz.h"

enum { WIRE_MAX = 32768, WAIT_MS = 20, ALIVE_MS = 20000, LOOK_EVERY = 256, FDS_MAX = 400 };
enum mode {
    TCP_BYTES,
    TLS_BYTES,
    UNIX_BYTES,
    TCP_CALLS,
    UNIX_CALLS,
    TLS_STRANGER,
    TLS_NODE,
    MODES
};
enum frame { DATA = 0, HEADERS = 1, RST_STREAM = 3, SETTINGS = 4, PING = 6 };

#define TOKEN "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static const char *const paths[] = {
    "/cairn.v1.Fleet/Session",
    "/cairn.v1.Training/Session",
    "/cairn.v1.Fleet/Join",
    "/cairn.v1.Fleet/Renew",
    "/grpc.health.v1.Health/Check",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/no.such/One",
};

/* One of the two servers, and what it needs. */
struct place {
    struct access access;
    struct invites invites;
    struct rpc_server *server;
    struct rpc_health *health;
    struct rpc_reflection *reflection;
    int port;
};

static struct world {
    bool made;
    char dir[64], files[5][96], socket[80], sealed[IDENTITY_TOKEN];
    struct rpc_descdb *db;
    struct place plain, tls;
    SSL_CTX *stranger, *node;
    uint64_t runs;
} world;

/* Bytes on their way to the server. */
struct wire {
    uint8_t data[WIRE_MAX];
    size_t size;
    uint32_t stream; /* of the newest call; 0: there is none */
};

/* ---- services ---- */

static void fleet_session(Cairn__V1__Fleet_Service *service, const Cairn__V1__AgentMessage *in,
                          Cairn__V1__AgentOrder_Closure reply, void *call)
{
    const Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    (void)service;
    if (in == NULL) {
        rpc_call_finish(call, RPC_OK, NULL);
    } else {
        reply(&order, call);
    }
}

static void training_session(Cairn__V1__Training_Service *service,
                             const Cairn__V1__TrainerMessage *in,
                             Cairn__V1__TrainerOrder_Closure reply, void *call)
{
    (void)service;
    (void)reply;
    if (in == NULL || in->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY__NOT_SET)
        rpc_call_finish(call, RPC_INVALID_ARGUMENT, "nothing was said");
}

static void join(Cairn__V1__Fleet_Service *service, const Cairn__V1__JoinRequest *in,
                 Cairn__V1__JoinReply_Closure reply, void *call)
{
    Cairn__V1__JoinReply out = CAIRN__V1__JOIN_REPLY__INIT;
    (void)service;
    out.certificate = in->request;
    reply(&out, call);
}

static void renew(Cairn__V1__Fleet_Service *service, const Cairn__V1__RenewRequest *in,
                  Cairn__V1__JoinReply_Closure reply, void *call)
{
    Cairn__V1__JoinReply out = CAIRN__V1__JOIN_REPLY__INIT;
    struct identity_cert sent;
    (void)service;
    if (identity_cert_read(in->certificate, &sent) == ST_OK)
        out.certificate = in->certificate;
    reply(&out, call);
}

/* ---- the servers ---- */

static void make_place(struct place *place, bool tls)
{
    static Cairn__V1__Fleet_Service fleet = {
        .base = CAIRN__V1__FLEET__BASE_INIT, .session = fleet_session, .join = join, .renew = renew
    };
    static Cairn__V1__Training_Service training = { .base = CAIRN__V1__TRAINING__BASE_INIT,
                                                    .session = training_session };
    const struct identity_files files = { world.files[0], world.files[1], world.files[4] };
    place->access = (struct access){ .tls = tls, .cluster = "lab", .invites = &place->invites };
    memcpy(place->access.seal, TOKEN, sizeof(TOKEN));
    if (!tls)
        memcpy(place->access.token, TOKEN, sizeof(TOKEN));
    const int64_t now_s = clock_wall_ms(clock_system()) / 1000;
    CHECK(invites_add(&place->invites, TOKEN, 1, now_s + 86400, now_s) == ST_OK);
    const struct rpc_server_options options = { .descdb = world.db,
                                                .authorize = access_authorize,
                                                .authorize_ctx = &place->access,
                                                .first_size_max = 4096,
                                                .pending_ms = 50,
                                                .handshake_ms = 200,
                                                .idle_ms = 1000 };
    place->server = rpc_server_new(&options);
    CHECK(rpc_server_add_service(place->server, &fleet.base, NULL) == ST_OK);
    CHECK(rpc_server_add_service(place->server, &training.base, NULL) == ST_OK);
    CHECK(rpc_health_new(place->server, &place->health) == ST_OK);
    CHECK(rpc_reflection_new(place->server, &place->reflection) == ST_OK);
    CHECK(rpc_health_set(place->health, "", true) == ST_OK);
    if (!tls)
        CHECK(rpc_server_listen_unix(place->server, world.socket) == ST_OK);
    CHECK(rpc_server_listen(place->server, "127.0.0.1:0", tls ? &files : NULL, &place->port) ==
          ST_OK);
    rpc_server_start(place->server);
}

static void put_pair(const struct identity_pem *ca, enum identity_role role, const char *cert,
                     const char *key)
{
    struct identity_pem own;
    struct reason reason;
    CHECK(identity_make(ca, role, "n", NULL, (int64_t)time(NULL), &own, &reason) == ST_OK);
    CHECK(io_replace(io_system(), cert, own.cert, strlen(own.cert)) == ST_OK);
    CHECK(io_replace(io_system(), key, own.key, strlen(own.key)) == ST_OK);
    identity_pem_release(&own);
}

static SSL_CTX *make_context(const char *cert, const char *key)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    CHECK(context != NULL);
    CHECK(SSL_CTX_set_alpn_protos(context, (const uint8_t *)"\2h2", 3) == 0);
    if (cert != NULL) {
        CHECK(SSL_CTX_use_certificate_file(context, cert, SSL_FILETYPE_PEM) == 1);
        CHECK(SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) == 1);
    }
    return context;
}

static void remove_files(void)
{
    char lock[96];
    for (int i = 0; i < 5; i++)
        (void)unlink(world.files[i]);
    (void)snprintf(lock, sizeof(lock), "%s.lock", world.socket);
    (void)unlink(lock);
    (void)unlink(world.socket);
    (void)rmdir(world.dir);
}

static void make_world(void)
{
    static const char *const names[] = { "s.crt", "s.key", "n.crt", "n.key", "ca.crt" };
    struct identity_pem ca;
    struct reason reason;
    size_t size = 0;
    const uint8_t *descriptors = proto_descriptors(&size);
    (void)snprintf(world.dir, sizeof(world.dir), "/tmp/cairn-fuzz-XXXXXX");
    CHECK(mkdtemp(world.dir) != NULL);
    for (int i = 0; i < 5; i++)
        (void)snprintf(world.files[i], sizeof(world.files[i]), "%s/%s", world.dir, names[i]);
    (void)snprintf(world.socket, sizeof(world.socket), "%s/s", world.dir);
    CHECK(atexit(remove_files) == 0);
    CHECK(signal(SIGPIPE, SIG_IGN) != SIG_ERR); /* OpenSSL writes to who has hung up */
    CHECK(identity_make_ca("lab", (int64_t)time(NULL), &ca, &reason) == ST_OK);
    CHECK(io_replace(io_system(), world.files[4], ca.cert, strlen(ca.cert)) == ST_OK);
    put_pair(&ca, IDENTITY_COORDINATOR, world.files[0], world.files[1]);
    put_pair(&ca, IDENTITY_NODE, world.files[2], world.files[3]);
    identity_pem_release(&ca);
    memcpy(world.sealed, TOKEN, sizeof(TOKEN));
    identity_seal(TOKEN, world.sealed);
    world.stranger = make_context(NULL, NULL);
    world.node = make_context(world.files[2], world.files[3]);
    rpc_init();
    world.db = rpc_descdb_new();
    CHECK(rpc_descdb_add(world.db, descriptors, size) == ST_OK);
    make_place(&world.plain, false);
    make_place(&world.tls, true);
    world.made = true;
}

/* ---- what is sent ---- */

static void put(struct wire *wire, const void *data, size_t size)
{
    if (size > WIRE_MAX - wire->size)
        size = WIRE_MAX - wire->size;
    if (size == 0) /* then data may be NULL */
        return;
    memcpy(wire->data + wire->size, data, size);
    wire->size += size;
}

static void put_frame(struct wire *wire, uint8_t type, uint8_t flags, uint32_t stream,
                      const void *data, size_t size)
{
    const uint8_t head[9] = { (uint8_t)(size >> 16),
                              (uint8_t)(size >> 8),
                              (uint8_t)size,
                              type,
                              flags,
                              (uint8_t)(stream >> 24),
                              (uint8_t)(stream >> 16),
                              (uint8_t)(stream >> 8),
                              (uint8_t)stream };
    put(wire, head, sizeof(head));
    put(wire, data, size);
}

/* A literal, without Huffman and without the table. */
static void put_header(struct wire *block, const char *name, const char *value)
{
    const uint8_t sizes[2] = { (uint8_t)strlen(name), (uint8_t)strlen(value) };
    CHECK(sizes[0] < 127);
    CHECK(sizes[1] < 127);
    put(block, "", 1);
    put(block, &sizes[0], 1);
    put(block, name, sizes[0]);
    put(block, &sizes[1], 1);
    put(block, value, sizes[1]);
}

static void put_call(struct wire *wire, const uint8_t *data, size_t size)
{
    static struct wire block;
    char bearer[IDENTITY_TOKEN + 8];
    block.size = 0;
    put_header(&block, ":method", "POST");
    put_header(&block, ":scheme", "http");
    put_header(&block, ":path", paths[size > 0 ? data[0] % (sizeof(paths) / sizeof(paths[0])) : 0]);
    put_header(&block, ":authority", "cairnd");
    put_header(&block, "te", "trailers");
    put_header(&block, "content-type", "application/grpc");
    switch (size > 1 ? data[1] % 4 : 0) {
    case 1:
        (void)snprintf(bearer, sizeof(bearer), "Bearer %s", TOKEN);
        put_header(&block, "authorization", bearer);
        break;
    case 2:
        (void)snprintf(bearer, sizeof(bearer), "Bearer %s", world.sealed);
        put_header(&block, "authorization", bearer);
        break;
    case 3:
        (void)snprintf(bearer, sizeof(bearer), "Bearer %.*s", (int)(size - 2),
                       (const char *)data + 2);
        put_header(&block, "authorization", bearer);
        break;
    default:
        break;
    }
    wire->stream = wire->stream == 0 ? 1 : wire->stream + 2;
    put_frame(wire, HEADERS, 4, wire->stream, block.data, block.size);
}

static void put_message(struct wire *wire, bool last, const uint8_t *data, size_t size)
{
    uint8_t body[5 + 255] = { 0, 0, 0, 0, (uint8_t)size };
    memcpy(body + 5, data, size);
    put_frame(wire, DATA, last, wire->stream, body, 5 + size);
}

static void put_record(struct wire *wire, uint8_t kind, const uint8_t *data, size_t size)
{
    switch (kind % 6) {
    case 0:
        put(wire, data, size);
        break;
    case 1:
        put_call(wire, data, size);
        break;
    case 4:
        put_frame(wire, RST_STREAM, 0, wire->stream, "\0\0\0\10", 4);
        break;
    case 5:
        if (size >= 2)
            put_frame(wire, data[0] % 10, data[1], wire->stream, data + 2, size - 2);
        break;
    default:
        put_message(wire, kind % 6 == 3, data, size);
        break;
    }
}

static void put_input(struct wire *wire, const uint8_t *data, size_t size)
{
    put(wire, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
    put_frame(wire, SETTINGS, 0, 0, NULL, 0);
    for (size_t at = 0; at + 2 <= size;) {
        size_t length = data[at + 1];
        if (length > size - at - 2)
            length = size - at - 2;
        put_record(wire, data[at], data + at + 2, length);
        at += 2 + length;
    }
    put_frame(wire, PING, 0, 0, "all read", 8);
}

/* ---- to and fro ---- */

static int dial(enum mode mode)
{
    struct sockaddr_un local = { .sun_family = AF_UNIX };
    const bool tls = mode == TLS_BYTES || mode == TLS_STRANGER || mode == TLS_NODE;
    const struct sockaddr_in to = { .sin_family = AF_INET,
                                    .sin_port =
                                        htons((uint16_t)(tls ? world.tls.port : world.plain.port)),
                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const bool is_local = mode == UNIX_BYTES || mode == UNIX_CALLS;
    memcpy(local.sun_path, world.socket, sizeof(world.socket));
    const int fd = socket(is_local ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    const struct linger hard = { .l_onoff = 1 }; /* no port waits for what is over */
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard)) == 0);
    CHECK((is_local ? connect(fd, (const struct sockaddr *)&local, sizeof(local))
                    : connect(fd, (const struct sockaddr *)&to, sizeof(to))) == 0);
    return fd;
}

/* Whether the PING was answered, before the server hung up or wait_ms passed. */
static bool read_answer(int fd, SSL *ssl, int wait_ms)
{
    uint8_t data[8192];
    size_t size = 0;
    const int64_t until = clock_mono_ms(clock_system()) + wait_ms;
    for (;;) {
        struct pollfd in = { .fd = fd, .events = POLLIN };
        const int64_t left = until - clock_mono_ms(clock_system());
        if (left <= 0 || ((ssl == NULL || SSL_pending(ssl) == 0) && poll(&in, 1, (int)left) <= 0))
            return false;
        if (size > sizeof(data) / 2) { /* the last bytes may be half of it */
            memmove(data, data + size - 8, 8);
            size = 8;
        }
        const ssize_t got = ssl != NULL ? SSL_read(ssl, data + size, (int)(sizeof(data) - size))
                                        : recv(fd, data + size, sizeof(data) - size, MSG_DONTWAIT);
        if (got <= 0)
            return false;
        size += (size_t)got;
        if (memmem(data, size, "all read", 8) != NULL)
            return true;
    }
}

static bool exchange(enum mode mode, const struct wire *wire, int wait_ms)
{
    bool answered = false;
    const int fd = dial(mode);
    if (mode == TLS_STRANGER || mode == TLS_NODE) {
        SSL *ssl = SSL_new(mode == TLS_NODE ? world.node : world.stranger);
        CHECK(ssl != NULL);
        CHECK(SSL_set_fd(ssl, fd) == 1);
        if (SSL_connect(ssl) == 1 && SSL_write(ssl, wire->data, (int)wire->size) > 0)
            answered = read_answer(fd, ssl, wait_ms);
        SSL_free(ssl);
    } else {
        (void)send(fd, wire->data, wire->size, MSG_NOSIGNAL);
        answered = read_answer(fd, NULL, wait_ms);
    }
    (void)close(fd);
    return answered;
}

/* On a busy machine a handshake may take too long for the server. */
static void must_serve(enum mode mode)
{
    static struct wire wire;
    const int64_t until = clock_mono_ms(clock_system()) + ALIVE_MS;
    wire.size = wire.stream = 0;
    put_input(&wire, NULL, 0);
    while (!exchange(mode, &wire, ALIVE_MS))
        CHECK(clock_mono_ms(clock_system()) < until);
}

/* Each listener serves, and no connection is left lying about. */
static void look_alive(void)
{
    must_serve(TCP_CALLS);
    must_serve(UNIX_CALLS);
    must_serve(TLS_NODE);
    const int fd = dup(STDOUT_FILENO); /* the lowest that is free */
    CHECK(fd >= 0);
    CHECK(fd < FDS_MAX);
    (void)close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct wire wire;
    if (!world.made)
        make_world();
    if (size == 0)
        return 0;
    const enum mode mode = data[0] % MODES;
    wire.size = wire.stream = 0;
    if (mode == TCP_BYTES || mode == TLS_BYTES || mode == UNIX_BYTES) {
        put(&wire, data + 1, size - 1);
        (void)exchange(mode, &wire, 2); /* what is no preface is answered at once, or never */
    } else {
        put_input(&wire, data + 1, size - 1);
        (void)exchange(mode, &wire, WAIT_MS);
    }
    if (++world.runs % LOOK_EVERY == 1)
        look_alive();
    return 0;
}
