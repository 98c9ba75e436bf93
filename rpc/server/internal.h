/*
 * Private to rpc/server/: the server, from the floor to the roof
 *
 *     methods.c         the table of methods
 *     creds.c           whose connection a peer is
 *     tls.c             certificates of listeners and of peers
 *     unix_listener.c   accepts connections of Unix sockets, with their credentials
 *     refuse.c          calls of methods that there aren't
 *     admission.c            calls that have said nothing yet
 *     call.c            one call, from asking core for it to its end
 *     life.c            a server's life: made, started, stopped, freed
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "rpc/core.h"
#include "rpc/server.h"

#define METHOD_BUCKETS 256

struct rpc_method {
    char *path; /* "/package.Service/Method" */
    size_t path_size;
    uint32_t hash;
    ProtobufCService *service; /* borrowed */
    unsigned index;
    int flags; /* enum rpc_method_flags */
    const ProtobufCMessageDescriptor *input;
    struct rpc_method *chain; /* next method of its bucket */
};

/* The table of methods, by the hash of the path. */
struct rpc_methods {
    struct rpc_method *buckets[METHOD_BUCKETS];
    char **services; /* names */
    size_t service_count;
};

/* Credentials of a peer. For a peer in another space of processes the system gives process 0: that,
 * too, is known. */
struct rpc_cred {
    struct ucred cred;
    bool known;
};

/* Credentials of adopted connections, by descriptor: gRPC's name of such a peer is "fd:N". */
struct rpc_creds {
    pthread_mutex_t mutex;
    struct rpc_cred *list;
    size_t count;
};

struct rpc_unix_listener {
    struct rpc_unix_listener *next;
    struct rpc_server *server;
    int folder_fd;
    char name[108]; /* of the socket, in that folder */
    int fd;
    int lock_fd;
    int stop_fd; /* eventfd */
    pthread_t thread;
    bool running;
};

/* A call that has sent no message yet. Embedded in the call. */
struct rpc_pending {
    void (*expire)(struct rpc_pending *pending); /* ends the call: nothing came in time */
    struct rpc_pending *older, *younger;
    int64_t until_ns;
    /* Counts the guests of this address, and of its network; NULL: the call is from this machine's
     * owner. */
    uint16_t *address, *network;
    bool inside;
};

#define DOOR_ADDRESSES                                                                             \
    8192 /* counters; addresses and networks share one by their hash, which nobody can aim */

/* The guests; used by the queue's thread only. */
struct rpc_admission {
    struct rpc_pending *oldest,
        *youngest; /* all may stay as long, so these are the order of ends */
    uint32_t count;
    uint64_t seed;
    uint16_t addresses[DOOR_ADDRESSES];
};

/* Files of a TLS listener. */
struct rpc_tls_listener;

struct rpc_server {
    struct rpc_server_options options;
    grpc_server *core;
    grpc_completion_queue *queue;
    pthread_t queue_thread;
    pthread_t stop_thread;
    struct rpc_methods methods;
    struct rpc_unix_listener *unix_listeners;
    struct rpc_tls_listener *tls_listeners;
    struct rpc_creds creds;
    struct rpc_admission admission;
    bool started;
    bool stop_joinable;
    atomic_bool stopping;
    atomic_bool stopped;
    int32_t grace_ms;
    struct rpc_tag on_down;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    bool down; /* core's shutdown is complete; under mutex */
};

/* ---- methods.c ---- */

/* NULL: there is no such method. */
struct rpc_method *rpc_server_method(struct rpc_server *server, grpc_slice path);
void rpc_methods_free(struct rpc_methods *methods);

/* ---- creds.c ---- */

/* Serves a connected, non-blocking stream socket, which it takes over (plaintext). After start. */
void rpc_server_adopt(struct rpc_server *server, int fd, const struct ucred *cred);
/* Finds the credentials of a peer by gRPC's name of it; false: it is no adopted connection. */
bool rpc_server_cred(struct rpc_server *server, const char *peer, struct ucred *out);
/* A peer's address for people; cred: of an adopted connection, else NULL. */
void rpc_server_peer(grpc_call *call, const struct ucred *cred, char *out, size_t capacity);

/* ---- tls.c ---- */

/* Credentials that follow the files for the server's life. NULL: the files don't do. */
grpc_server_credentials *rpc_tls_listen(struct rpc_server *server,
                                        const struct identity_files *files);
void rpc_tls_listeners_free(struct rpc_server *server);
/* Reads the identity in a peer's certificate. Errors: as rpc_call_peer_identity */
enum status rpc_tls_identity(grpc_call *call, struct identity_cert *out);

/* ---- admission.c ---- */

void rpc_admission_open(struct rpc_admission *admission);
/* Lets a call in. peer: as gRPC names it; NULL: of this machine's owner, who is only timed. False:
 * too many wait. */
bool rpc_admission_enter(struct rpc_server *server, struct rpc_pending *pending, const char *peer);
/* The guest's first message came, or its call is over. Does nothing if it has left already. */
void rpc_admission_leave(struct rpc_server *server, struct rpc_pending *pending);
/* Ends the calls of guests that waited too long; returns when to look again, mono ns. self is the
 * server. */
int64_t rpc_admission_look(void *self);

/* ---- memory.c ---- */

/* Returns half of the memory that the machine and its control groups let this process have, and 1
 * GiB at least. */
uint64_t rpc_memory_usual(void);

/* ---- refuse.c ---- */

/* Answers a call with an error, and takes the call over. text: static. */
void rpc_refuse(grpc_call *call, enum rpc_code code, const char *text);

/* ---- call.c ---- */

/* Asks core for the next call. False: the server is going down. */
bool rpc_call_request(struct rpc_server *server);

/* ---- unix_listener.c ---- */

void rpc_unix_listeners_start(struct rpc_server *server);
void rpc_unix_listeners_stop(struct rpc_server *server); /* ends the threads, removes the sockets */
void rpc_unix_listeners_free(struct rpc_server *server);
