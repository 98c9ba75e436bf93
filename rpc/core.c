#include "rpc/core.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/unconst.h"

#define HOST_MAX 253 /* bytes of a name */

const char *rpc_code_name(enum rpc_code code)
{
    static const char *const names[] = {
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    };
    if ((unsigned)code >= sizeof(names) / sizeof(names[0]))
        return "(no such code)";
    return names[code];
}

struct code_pair {
    enum rpc_code code;
    enum status st;
};

/* A code becomes the status of the first row that has it, a status the code of the first. */
static const struct code_pair code_pairs[] = {
    { RPC_OK, ST_OK },
    { RPC_CANCELLED, ST_CLOSED },
    { RPC_INVALID_ARGUMENT, ST_INVALID },
    { RPC_INVALID_ARGUMENT, ST_CONFIG },
    { RPC_INVALID_ARGUMENT, ST_TOO_LONG },
    { RPC_OUT_OF_RANGE, ST_INVALID },
    { RPC_DEADLINE_EXCEEDED, ST_TIMED_OUT },
    { RPC_NOT_FOUND, ST_NOT_FOUND },
    { RPC_ALREADY_EXISTS, ST_EXISTS },
    { RPC_FAILED_PRECONDITION, ST_REFUSED },
    { RPC_FAILED_PRECONDITION, ST_STALE },
    { RPC_PERMISSION_DENIED, ST_REFUSED },
    { RPC_UNAUTHENTICATED, ST_REFUSED },
    { RPC_RESOURCE_EXHAUSTED, ST_FULL },
    { RPC_RESOURCE_EXHAUSTED, ST_NO_MEMORY },
    { RPC_ABORTED, ST_AGAIN },
    { RPC_UNAVAILABLE, ST_UNREACHABLE },
    { RPC_UNIMPLEMENTED, ST_VERSION },
    { RPC_DATA_LOSS, ST_CORRUPT },
    { RPC_DATA_LOSS, ST_INCOMPLETE },
    { RPC_INTERNAL, ST_IO },
    { RPC_UNKNOWN, ST_IO },
};

enum rpc_code rpc_code_from_status(enum status st)
{
    for (size_t i = 0; i < sizeof(code_pairs) / sizeof(code_pairs[0]); i++) {
        if (code_pairs[i].st == st)
            return code_pairs[i].code;
    }
    return RPC_INTERNAL;
}

enum status rpc_code_status(enum rpc_code code)
{
    for (size_t i = 0; i < sizeof(code_pairs) / sizeof(code_pairs[0]); i++) {
        if (code_pairs[i].code == code)
            return code_pairs[i].st;
    }
    return ST_IO;
}

size_t rpc_detail_size(const char *detail)
{
    size_t line = 0, character = 0, written = 0;
    for (size_t at = 0; detail[at] != '\0'; at++) {
        const unsigned char c = (unsigned char)detail[at];
        if ((c & 0xc0) != 0x80)
            character = at;
        if (at > 0 && detail[at - 1] == '\n')
            line = at;
        written += c >= 0x20 && c < 0x7f && c != '%' ? 1 : 3;
        if (written > RPC_DETAIL_MAX)
            return line > 0 ? line : character;
    }
    return strlen(detail);
}

const char *rpc_refusal_hint(const char *detail, bool tls)
{
    static const struct {
        const char *said;
        bool tls;
        const char *hint;
    } rows[] = {
        { "certificate verify failed", true,
          "the authority of --tls-ca made no certificate for it: take the ca.crt of that "
          "coordinator" },
        { "wrong version number", true,
          "it speaks no TLS: leave out --tls-cert, --tls-key and --tls-ca" },
        { "Socket closed", true,
          "it refuses this certificate, speaks no TLS, or has no room for connections (its log "
          "says "
          "so): see 'cairn cert check'" },
        { "Socket closed", false,
          "it may speak TLS: --tls-cert, --tls-key and --tls-ca, as made by 'cairn cert'" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].tls == tls && strstr(detail, rows[i].said) != NULL)
            return rows[i].hint;
    }
    return "";
}

bool rpc_address_is_loopback(const char *address)
{
    static const char *const schemes[] = { "ipv4:", "ipv6:", "dns:///", "dns:" };
    char host[INET_ADDRSTRLEN];
    struct in_addr parsed;
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        if (strncmp(address, schemes[i], strlen(schemes[i])) == 0) {
            address += strlen(schemes[i]);
            break;
        }
    }
    if (strchr(address, ',') != NULL) /* several */
        return false;
    if (strncmp(address, "[::1]:", 6) == 0 || strncmp(address, "localhost:", 10) == 0)
        return true;
    const size_t size = strcspn(address, ":");
    if (size >= sizeof(host))
        return false;
    memcpy(host, address, size);
    host[size] = '\0';
    return inet_pton(AF_INET, host, &parsed) == 1 && ntohl(parsed.s_addr) >> 24 == 127;
}

/* The port may be any; false: it is no address. */
static bool read_address(const char *address, unsigned long *out_port)
{
    static const char name[] = "0123456789-.ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    char host[INET6_ADDRSTRLEN];
    struct in6_addr six;
    const char *port = strrchr(address, ':');
    size_t size = strspn(address, name);
    if (address[0] == '[' && port != NULL) {
        const int inner = (int)(port - address) - 2;
        if (inner <= 0 || inner >= (int)sizeof(host) || port[-1] != ']')
            return false;
        (void)snprintf(host, sizeof(host), "%.*s", inner, address + 1);
        size = inet_pton(AF_INET6, host, &six) == 1 ? (size_t)(port - address) : 0;
    }
    if (port == NULL || size == 0 || size > HOST_MAX || address + size != port)
        return false;
    char *end;
    *out_port = strtoul(port + 1, &end, 10);
    return port[1] >= '0' && port[1] <= '9' && *end == '\0' && *out_port <= UINT16_MAX;
}

bool rpc_address_is_dialled(const char *address)
{
    unsigned long port = 0;
    return read_address(address, &port) && port > 0;
}

bool rpc_address_is_served(const char *address)
{
    unsigned long port = 0;
    return read_address(address, &port);
}

void *rpc_alloc(size_t size)
{
    void *memory = calloc(1, size > 0 ? size : 1);
    if (memory == NULL)
        abort();
    return memory;
}

char *rpc_copy_text(const char *text)
{
    size_t size = strlen(text) + 1;
    return memcpy(rpc_alloc(size), text, size);
}

grpc_byte_buffer *rpc_pack(const ProtobufCMessage *message)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    grpc_slice slice = grpc_slice_malloc(size);
    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *bytes = grpc_raw_byte_buffer_create(&slice, 1); /* holds its own reference */
    grpc_slice_unref(slice);
    return bytes;
}

ProtobufCMessage *rpc_unpack(const ProtobufCMessageDescriptor *descriptor, grpc_byte_buffer *bytes,
                             ProtobufCAllocator *allocator)
{
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, bytes))
        return NULL;
    /* A message of one slice (the usual case) is only referenced; several slices are joined. */
    grpc_slice all = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    ProtobufCMessage *message = protobuf_c_message_unpack(
        descriptor, allocator, GRPC_SLICE_LENGTH(all), GRPC_SLICE_START_PTR(all));
    grpc_slice_unref(all);
    return message;
}

static grpc_arg *next_arg(struct rpc_args *args, const char *key)
{
    CHECK(args->count < sizeof(args->list) / sizeof(args->list[0]));
    grpc_arg *arg = &args->list[args->count++];
    *arg = (grpc_arg){ .key = unconst(key) };
    return arg;
}

void rpc_args_int(struct rpc_args *args, const char *key, int value)
{
    grpc_arg *arg = next_arg(args, key);
    arg->type = GRPC_ARG_INTEGER;
    arg->value.integer = value;
}

void rpc_args_text(struct rpc_args *args, const char *key, const char *value)
{
    grpc_arg *arg = next_arg(args, key);
    arg->type = GRPC_ARG_STRING;
    arg->value.string = unconst(value);
}

void rpc_args_pointer(struct rpc_args *args, const char *key, void *value,
                      const grpc_arg_pointer_vtable *vtable)
{
    grpc_arg *arg = next_arg(args, key);
    arg->type = GRPC_ARG_POINTER;
    arg->value.pointer.p = value;
    arg->value.pointer.vtable = vtable;
}

gpr_timespec rpc_deadline(int64_t timeout_ms)
{
    if (timeout_ms < 0)
        return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                        gpr_time_from_millis(timeout_ms, GPR_TIMESPAN));
}

void rpc_outbox_put(struct rpc_outbox *box, grpc_byte_buffer *bytes)
{
    struct rpc_outgoing *message = rpc_alloc(sizeof(*message));
    message->bytes = bytes;
    if (box->last != NULL) {
        box->last->next = message;
    } else {
        box->first = message;
    }
    box->last = message;
    box->count++;
}

grpc_byte_buffer *rpc_outbox_take(struct rpc_outbox *box)
{
    struct rpc_outgoing *message = box->first;
    if (message == NULL)
        return NULL;
    CHECK(box->count > 0);
    grpc_byte_buffer *bytes = message->bytes;
    box->first = message->next;
    if (box->first == NULL)
        box->last = NULL;
    box->count--;
    free(message);
    return bytes;
}

void rpc_outbox_clear(struct rpc_outbox *box)
{
    grpc_byte_buffer *bytes = NULL;
    while ((bytes = rpc_outbox_take(box)) != NULL)
        grpc_byte_buffer_destroy(bytes);
}

/*
 * To wake up for each of many messages costs more than to handle them: where BUSY_MESSAGES of
 * streams came within BUSY_NS, the queue is left alone for NAP_NS when it is found empty, and then
 * holds several. Callers who ask one thing after the other aren't counted, and wait for nothing.
 */
enum { BUSY_MESSAGES = 8, BUSY_NS = 4000000, NAP_NS = 1000000 };

struct burst {
    int64_t since_ns;
    uint32_t messages; /* since then */
};

static void count_message(struct burst *burst)
{
    const int64_t now_ns = clock_mono_ns();
    if (now_ns - burst->since_ns > BUSY_NS)
        *burst = (struct burst){ .since_ns = now_ns };
    burst->messages++;
}

static void nap(struct burst *burst)
{
    const struct timespec time = { .tv_nsec = NAP_NS };
    (void)nanosleep(&time, NULL);
    *burst = (struct burst){ .since_ns = clock_mono_ns() };
}

static gpr_timespec until(int64_t mono_ns)
{
    if (mono_ns == INT64_MAX)
        return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    return (gpr_timespec){ .tv_sec = mono_ns / 1000000000,
                           .tv_nsec = (int32_t)(mono_ns % 1000000000),
                           .clock_type = GPR_CLOCK_MONOTONIC };
}

static int64_t nothing_is_due(void *self)
{
    (void)self;
    return INT64_MAX;
}

void *rpc_queue_run(void *queue)
{
    rpc_queue_watch(queue, nothing_is_due, NULL);
    return NULL;
}

void rpc_queue_watch(grpc_completion_queue *queue, int64_t (*look)(void *self), void *self)
{
    struct burst burst = { 0 };
    for (;;) {
        const bool busy = burst.messages >= BUSY_MESSAGES;
        const int64_t due_ns = look(self);
        grpc_event event = grpc_completion_queue_next(
            queue, busy ? gpr_inf_past(GPR_CLOCK_MONOTONIC) : until(due_ns), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN)
            return;
        if (event.type == GRPC_QUEUE_TIMEOUT && busy)
            nap(&burst);
        if (event.type != GRPC_OP_COMPLETE)
            continue;
        struct rpc_tag *tag = event.tag;
        rpc_tag_back(tag);
        const bool of_stream = tag->of_stream; /* the tag may be gone afterwards */
        tag->fn(tag, event.success != 0);
        if (of_stream)
            count_message(&burst);
    }
}
