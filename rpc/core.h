/*
 * Private to rpc/: the only header that knows gRPC's core, and what all files here share.
 *
 * Everything in core's interface is asynchronous: a batch of operations is started with a tag (a
 * void *) that comes out of a completion queue when the batch is through. Our tags are struct
 * rpc_tag, inside an object that lives longer than the batch; a thread per queue calls their fn.
 */
#pragma once

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <protobuf-c/protobuf-c.h>

#include "rpc/rpc.h"

#define CONTAINER_OF(pointer, type, member)                                                        \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

struct rpc_tag {
    void (*fn)(struct rpc_tag *tag, bool ok);
    bool of_stream; /* one message of a stream: where many come, they may wait for each other */
};

/*
 * ThreadSanitizer doesn't see the synchronisation inside gRPC, which isn't instrumented: a tag is
 * released when it goes into core and acquired when it comes back.
 */
#ifdef __SANITIZE_THREAD__
void __tsan_acquire(void *address);
void __tsan_release(void *address);
static inline void rpc_tag_out(void *tag)
{
    __tsan_release(tag);
}
static inline void rpc_tag_back(void *tag)
{
    __tsan_acquire(tag);
}
#else
static inline void rpc_tag_out(void *tag)
{
    (void)tag;
}
static inline void rpc_tag_back(void *tag)
{
    (void)tag;
}
#endif

/* Zeroed memory; a copy of a text. Never NULL: the process aborts without memory, as core does. */
void *rpc_alloc(size_t size);
char *rpc_copy_text(const char *text);

/* The caller's; one allocation. */
grpc_byte_buffer *rpc_pack(const ProtobufCMessage *message);
/* NULL: not such a message. Leaves the bytes to the caller. allocator: NULL is the heap. */
ProtobufCMessage *rpc_unpack(const ProtobufCMessageDescriptor *descriptor, grpc_byte_buffer *bytes,
                             ProtobufCAllocator *allocator);

/* Arguments of a server or channel; keys and texts are borrowed. */
struct rpc_args {
    grpc_arg list[24];
    size_t count;
};
void rpc_args_int(struct rpc_args *args, const char *key, int value);
void rpc_args_text(struct rpc_args *args, const char *key, const char *value);
void rpc_args_pointer(struct rpc_args *args, const char *key, void *value,
                      const grpc_arg_pointer_vtable *vtable);

gpr_timespec rpc_deadline(int64_t timeout_ms); /* < 0: never */

/* Packed messages that wait to be sent, oldest first. Zeroed is empty. */
struct rpc_outgoing {
    struct rpc_outgoing *next;
    grpc_byte_buffer *bytes;
};
struct rpc_outbox {
    struct rpc_outgoing *first, *last;
    uint32_t count;
};
/* Adds a message, whose bytes are taken over. */
void rpc_outbox_put(struct rpc_outbox *box, grpc_byte_buffer *bytes);
/* Takes the oldest message, which is the caller's; NULL: there is none. */
grpc_byte_buffer *rpc_outbox_take(struct rpc_outbox *box);
void rpc_outbox_clear(struct rpc_outbox *box);

/* Runs the tags of a queue until it is shut down and drained; a thread's function. Those of calls
 * at once; where messages of streams come thick and fast, a millisecond's worth at a time. */
void *rpc_queue_run(void *queue);

/* Like rpc_queue_run, on this thread. look is called before each wait: it does what is due and
 * returns when to call it again, in mono ns; INT64_MAX: nothing is due. */
void rpc_queue_watch(grpc_completion_queue *queue, int64_t (*look)(void *self), void *self);

/* accept.c: before gRPC's first listener. */
void rpc_accept_init(void);

_Static_assert((int)RPC_UNAUTHENTICATED == (int)GRPC_STATUS_UNAUTHENTICATED, "gRPC's numbers");
_Static_assert((int)RPC_UNAVAILABLE == (int)GRPC_STATUS_UNAVAILABLE, "gRPC's numbers");
_Static_assert((int)RPC_INTERNAL == (int)GRPC_STATUS_INTERNAL, "gRPC's numbers");
