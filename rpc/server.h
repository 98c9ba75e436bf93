/*
 * A server and its calls.
 *
 * Dispatch is by the service descriptors that protoc-c generates; a handler has protoc-c's own
 * signature:
 *
 *   void f(Service *self, const Request *in, Reply_Closure reply, void *call)
 *
 *   unary            once; reply(&rep, call) once, or rpc_call_finish with an error
 *   server stream    once; rpc_call_send any number of times, then rpc_call_finish
 *   client stream    per message, then once with in == NULL (half-close); then reply() once
 *   bidirectional    per message, then once with in == NULL; rpc_call_send at any time
 *
 * `call` is a struct rpc_call *, valid until its on_done has run (or while a reference is held).
 * `in` is valid during the handler only. Messages of one call arrive in order, the next one only
 * after the handler came back: that is the flow control. A peer that doesn't read what it is sent
 * loses its call (RESOURCE_EXHAUSTED) when send_queue_max messages wait: nothing grows without
 * bound.
 *
 * Nothing is received of a call before `authorize` let it in: gRPC's core takes a message of any
 * size (up to 4 GiB) into memory before it looks whether that is too large. Who was let in has
 * pending_ms to send his first message, and waits among a bounded number of others.
 *
 * Thread: handlers and on_done run where options.executor says; all rpc_call_* functions may be
 *         called from any thread.
 */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <sys/socket.h>

#include "identity/cert.h"
#include "identity/files.h"
#include "rpc/descdb.h"
#include "rpc/executor.h"
#include "rpc/rpc.h"

struct rpc_server;
struct rpc_call;

/* Decides about a call before its handler sees it; runs on gRPC's thread: any thread, must not
 * block. out_detail may be set to a static text. */
typedef enum rpc_code rpc_authorize_fn(void *ctx, struct rpc_call *call, const char **out_detail);

/* Zero members mean the defaults. */
struct rpc_server_options {
    const struct rpc_descdb *descdb; /* borrowed; required: knows every service that is added */
    struct rpc_executor executor;    /* zero: inline */
    rpc_authorize_fn *authorize;     /* NULL: everybody may */
    void *authorize_ctx;
    uint32_t message_size_max;    /* of a request; LIMIT_MESSAGE_BYTES */
    uint32_t first_size_max;      /* of the first message of a stream; message_size_max */
    uint32_t pending_max;         /* calls that wait for their first message; 4096 */
    uint32_t pending_address_max; /* of these, from one address; 1024 */
    int32_t pending_ms;           /* until it has to be there; 10000 */
    uint64_t memory_max;          /* bytes for all connections; a quarter of the machine's */
    uint32_t send_queue_max;      /* messages waiting per call; 64 */
    uint32_t streams_max;         /* calls of one connection at a time; 1024 */
    int32_t keepalive_ms;         /* ping an idle peer; 10000 */
    int32_t keepalive_timeout_ms; /* silent so long after a ping: gone; 5000 */
    int32_t handshake_ms;         /* from a connection to the end of its TLS and HTTP/2; 10000 */
    int32_t idle_ms;              /* a connection without a call is closed then; 60000 */
};

struct rpc_server *rpc_server_new(const struct rpc_server_options *options);

/*
 * Adds every method of the service under its descriptor's name, or under `name`. Before start.
 * Errors: ST_NOT_FOUND  the descriptor sets don't know the service or one of its methods
 */
MUST_CHECK enum status rpc_server_add_service(struct rpc_server *server, ProtobufCService *service,
                                              const char *name);

/*
 * "127.0.0.1:0", "[::1]:7000". Before start. A port that somebody listens on is an error, never
 * shared.
 *
 * tls, NULL for plaintext: TLS 1.2 or 1.3 with these files, all three. They are looked at when
 * somebody connects, once a second at most: who connects gets what is in them; connections that
 * stand stay as they are. While they don't do (one is missing or is garbage, the key doesn't fit)
 * what was read before stays. Callers may come without a certificate; one that they show is
 * verified, and a bad one ends the connection: the caller sees UNAVAILABLE, "Socket closed".
 * Errors: ST_EXISTS   somebody listens there
 *         ST_NOT_FOUND  this machine has no such address
 *         ST_REFUSED  no permission, as for ports below 1024
 *         ST_IO       it can't be bound for another reason
 *         ST_CONFIG   the files don't do; identity/check.h says why
 */
MUST_CHECK enum status rpc_server_listen(struct rpc_server *server, const char *address,
                                         const struct identity_files *tls, int *out_port);

/*
 * A Unix socket for processes of the same user (or root): mode 0600, peers checked by their
 * credentials. "PATH.lock" is held by flock for the server's life, so that a stale socket is
 * replaced and a live one never stolen; both go at the end. The path may have any length. Before
 * start.
 * Errors: ST_INVALID  its last name is missing, or too long
 *         ST_REFUSED  others may put a socket in its folder
 *         ST_EXISTS   another process serves it
 *         others      of lock, bind, chmod, listen
 */
MUST_CHECK enum status rpc_server_listen_unix(struct rpc_server *server, const char *path);

void rpc_server_start(struct rpc_server *server);

/*
 * Ends the server: no new calls, those in flight may end within grace_ms, then they are cancelled.
 * With a mailbox: stop_begin, drain the mailbox until stopped, then free. A stream that nobody
 * finishes uses up the whole grace.
 */
void rpc_server_stop_begin(struct rpc_server *server, int32_t grace_ms);
bool rpc_server_stopped(const struct rpc_server *server);

/* Waits for a stop that was begun. Stopped or never started; NULL is fine. */
void rpc_server_free(struct rpc_server *server);

/* Names of the services; returns how many there are, writes at most capacity. */
size_t rpc_server_services(const struct rpc_server *server, const char **out, size_t capacity);
const struct rpc_descdb *rpc_server_descdb(const struct rpc_server *server);

/*
 * Queues a message. On a unary or client-streaming method it is the reply and ends the call.
 * Errors: ST_CLOSED  the call is over
 *         ST_FULL    send_queue_max messages wait already; the call ends with RESOURCE_EXHAUSTED
 */
enum status rpc_call_send(struct rpc_call *call, const ProtobufCMessage *message);
/* Like rpc_call_send, with a message of the method's type that is packed already. */
enum status rpc_call_send_packed(struct rpc_call *call, const void *data, size_t size);

/* Between cork and uncork, messages and the end of the call are held back: for an answer that must
 * not leave before something else has happened. */
void rpc_call_cork(struct rpc_call *call);
void rpc_call_uncork(struct rpc_call *call);

/* Messages that wait to be sent: a producer of many stays below the bound by looking. */
uint32_t rpc_call_queued(struct rpc_call *call);

/* Ends the call after what is queued; detail (copied, may be NULL) goes to the caller. Later calls
 * do nothing. */
void rpc_call_finish(struct rpc_call *call, enum rpc_code code, const char *detail);

/* Attaches the owner's data; on_done is called exactly once, when the call is over for whatever
 * reason and no handler of it runs. To be called from the call's handler. */
void rpc_call_set_data(struct rpc_call *call, void *data,
                       void (*on_done)(struct rpc_call *call, void *data, bool cancelled));
void *rpc_call_data(struct rpc_call *call);

const char *rpc_call_path(const struct rpc_call *call); /* "/cairn.v1.Control/GetJob" */

/* First value of a metadata key (lower case); borrowed for the call's life. */
bool rpc_call_metadata(const struct rpc_call *call, const char *key, struct rpc_bytes *out);

/* The caller's bearer token equals `token` (compared in constant time). */
bool rpc_call_has_token(const struct rpc_call *call, const char *token);

/* The value of the bearer token; false: there is none, or it doesn't fit. */
bool rpc_call_token(const struct rpc_call *call, char *out, size_t capacity);

/* The caller's address, for people: "ipv4:10.0.0.7:40312", "unix:uid=0,pid=12"; cut to capacity. */
void rpc_call_peer(const struct rpc_call *call, char *out, size_t capacity);

/* The code that the call is answered with, also while the answer is corked. False: there is none
 * yet, or nobody waits for it any more. */
bool rpc_call_answered(struct rpc_call *call, enum rpc_code *out);

/* True for a peer that came over listen_unix: its credentials were checked then. */
bool rpc_call_peer_cred(const struct rpc_call *call, struct ucred *out);

/*
 * Reads who the caller is from its certificate, which was good when it connected: the caller of
 * this function must see himself whether it has expired since.
 * Errors: ST_NOT_FOUND  it showed none
 *         ST_CONFIG     it is nobody's in a cluster (identity/cert.h)
 */
MUST_CHECK enum status rpc_call_peer_identity(const struct rpc_call *call,
                                              struct identity_cert *out);

void rpc_call_ref(struct rpc_call *call);
void rpc_call_unref(struct rpc_call *call);
