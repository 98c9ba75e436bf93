/*
 * A client: channel, unary calls, streams.
 *
 * A channel connects when it is first used and again by itself, waiting backoff_min_ms doubling to
 * backoff_max_ms between tries. Proxies of the environment are ignored.
 *
 * Whom a call goes to is looked at before it is made: a socket has to be ours or root's, as has the
 * folder that it lies in; without TLS a token goes on loopback only to us or root. Else the call
 * fails with PERMISSION_DENIED, and says whose it is. The path of a socket may have any length, and
 * its folder any name.
 *
 * Thread: everything here may be called from any thread; one thread at a time receives on a stream.
 */
#pragma once

#include <protobuf-c/protobuf-c.h>

#include "identity/files.h"
#include "rpc/rpc.h"

struct rpc_channel;
struct rpc_stream;

/* Zero members mean the defaults. Strings are copied. */
struct rpc_channel_options {
    const char *target; /* required: "unix:/run/x.sock", "ipv4:127.0.0.1:7000", "host:7000" */
    const struct identity_files *tls; /* NULL: plaintext. The CA, and cert and key or neither */
    const char *tls_name;             /* expected in the certificate; NULL: the target's */
    const char *token;            /* sent as "authorization: Bearer TOKEN"; that it goes to no other
                                     machine without TLS is the caller's business */
    const char *token_file;       /* file with the token instead: read for each call, only if nobody
                                     but its owner can; without a file nothing is sent */
    uint32_t message_size_max;    /* of a reply; LIMIT_MESSAGE_BYTES */
    int32_t keepalive_ms;         /* 10000 */
    int32_t keepalive_timeout_ms; /* 5000 */
    int32_t backoff_min_ms;       /* 100 */
    int32_t backoff_max_ms;       /* 1000 */
};

/* Errors: ST_CONFIG  the files of tls don't do; identity/check.h says why */
MUST_CHECK enum status rpc_channel_new(const struct rpc_channel_options *options,
                                       struct rpc_channel **out);
/* Frees a channel; to be called after its last call and stream have ended. */
void rpc_channel_free(struct rpc_channel *channel);

/* True if the files of tls have changed. A channel uses those that it began with for ever, so it is
 * time for a new one. Looks once in IDENTITY_LOOK_MS at most. */
bool rpc_channel_stale(struct rpc_channel *channel);

/* How a call ended. */
struct rpc_result {
    enum rpc_code code;
    char detail[512];
};

struct rpc_call_options {
    int32_t timeout_ms;  /* of the whole call; 0: 10000 */
    bool wait_for_ready; /* a server that can't be reached is waited for (within timeout_ms), else
                            the call fails at once with UNAVAILABLE */
    const char *behalf;  /* for whom it is asked, as identity_behalf_text says it; NULL: nobody */
    ProtobufCAllocator *allocator; /* of the reply; NULL: the heap */
};

/*
 * Makes a call and waits for its end. out_reply is the caller's
 * (protobuf_c_message_free_unpacked(reply, NULL), or with the allocator). result may be NULL.
 * options may be NULL.
 * Errors: rpc_code_status(result->code)
 */
MUST_CHECK enum status rpc_unary(struct rpc_channel *channel,
                                 const ProtobufCServiceDescriptor *service, const char *method,
                                 const ProtobufCMessage *request,
                                 const struct rpc_call_options *options,
                                 ProtobufCMessage **out_reply, struct rpc_result *result);

struct rpc_stream_options {
    int32_t open_timeout_ms; /* until the server accepted; 0: 10000 */
    int32_t deadline_ms;     /* of the whole call; 0: none */
    bool wait_for_ready;
    uint32_t send_queue_max; /* messages waiting; 0: 64 */
    /* Called on gRPC's thread, or in open, whenever rpc_stream_recv would no longer say
     * ST_TIMED_OUT; must not block or call this stream. NULL: none. */
    void (*notify)(void *arg);
    void *notify_arg;
};

/*
 * Opens a streaming call and waits until the server accepted it. A refusal may show only in the
 * first recv. options and result may be NULL.
 * Errors: rpc_code_status(result->code); ST_UNREACHABLE: no server answered in time
 */
MUST_CHECK enum status rpc_stream_open(struct rpc_channel *channel,
                                       const ProtobufCServiceDescriptor *service,
                                       const char *method, const struct rpc_stream_options *options,
                                       struct rpc_stream **out, struct rpc_result *result);

/* rpc_stream_open, one request, half-close: for server-stream methods. */
MUST_CHECK enum status rpc_stream_request(struct rpc_channel *channel,
                                          const ProtobufCServiceDescriptor *service,
                                          const char *method, const ProtobufCMessage *request,
                                          const struct rpc_stream_options *options,
                                          struct rpc_stream **out, struct rpc_result *result);

/*
 * Queues a message; never blocks.
 * Errors: ST_CLOSED  the stream is over
 *         ST_FULL    send_queue_max messages wait; the stream lives, the message was not taken
 */
MUST_CHECK enum status rpc_stream_send(struct rpc_stream *stream, const ProtobufCMessage *message);

/* Half-close: no more messages from here, after those that wait. */
void rpc_stream_send_done(struct rpc_stream *stream);

/*
 * Receives the next message, which is the caller's; waits timeout_ms at most (0: not at all; < 0:
 * for ever).
 * Errors: ST_TIMED_OUT  none came
 *         ST_AGAIN      rpc_stream_interrupt was called
 *         ST_CLOSED     the call is over and all its messages were taken: rpc_stream_close says
 *                       how it ended
 */
MUST_CHECK enum status rpc_stream_recv(struct rpc_stream *stream, int32_t timeout_ms,
                                       ProtobufCMessage **out);

/* Makes the current (or else the next) rpc_stream_recv return ST_AGAIN. The stream lives on. */
void rpc_stream_interrupt(struct rpc_stream *stream);

/* Writes the address of the server of an accepted stream, as gRPC names it: "ipv4:10.1.0.7:7000",
 * "unix:/run/x.sock". */
void rpc_stream_peer(struct rpc_stream *stream, char *out, size_t capacity);

/*
 * Half-closes and waits until the server has ended the call, timeout_ms at most: then it has
 * everything that was sent, which a cancel (rpc_stream_close) would drop on its way. Messages that
 * come meanwhile are dropped. 0: doesn't wait.
 */
void rpc_stream_finish(struct rpc_stream *stream, int32_t timeout_ms);

/* Ends the call from this side at once; recv returns ST_CLOSED. */
void rpc_stream_cancel(struct rpc_stream *stream);

/* Cancels what isn't over and frees. result (may be NULL) is how the call ended. */
void rpc_stream_close(struct rpc_stream *stream, struct rpc_result *result);
