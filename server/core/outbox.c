/*
 * The outbox: messages, ends of streams and store tasks of this group, in the order in which they
 * were made. The core has decided them, and they have not left the process yet: core_commit lets
 * them go.
 */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/fault.h"
#include "server/core/internal.h"

struct core_out {
    enum { OUT_MESSAGE, OUT_END, OUT_TASK, OUT_POINT } kind;
    struct core_conn *conn; /* MESSAGE, END; NULL: it closed meanwhile, and hears nothing more */
    union {
        struct core_message message; /* its bytes are owned */
        struct {
            enum rpc_code code;
            char *detail; /* owned */
        } end;
        struct store_task *task; /* owned */
        struct {
            const char *name;
            int64_t rank, generation, step;
        } point;
    };
};

static void release_out(struct core_out *out)
{
    if (out->kind == OUT_MESSAGE) {
        free(out->message.data);
    } else if (out->kind == OUT_END) {
        free(out->end.detail);
    } else if (out->kind == OUT_TASK) {
        store_task_free(out->task);
    }
}

static void put(struct core *core, struct core_out out, enum core_haste haste, size_t bytes)
{
    struct core_outbox *box = &core->outbox;
    if (box->count == box->capacity) {
        size_t capacity = box->capacity ? 2 * box->capacity : 64;
        struct core_out *more = realloc(box->list, capacity * sizeof *more);
        if (!more) {
            release_out(&out);
            core_fail(core, ST_NO_MEMORY, "keeping what is to leave");
            return;
        }
        box->list = more;
        box->capacity = capacity;
    }
    CHECK(box->count < box->capacity);
    box->list[box->count++] = out;
    box->bytes += bytes;
    box->urgent += haste == CORE_AT_ONCE;
}

void core_post(struct core *core, struct core_conn *conn, enum core_haste haste,
               const ProtobufCMessage *message)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    uint8_t *data = malloc(size ? size : 1);
    if (!data) {
        core_fail(core, ST_NO_MEMORY, "packing a message");
        return;
    }
    (void)protobuf_c_message_pack(message, data);
    put(core,
        (struct core_out){
            .kind = OUT_MESSAGE, .conn = conn, .message = { message->descriptor, data, size } },
        haste, size);
}

void core_hang_up(struct core *core, struct core_conn *conn, enum rpc_code code, const char *detail)
{
    char *copy = strdup(detail);
    if (!copy) {
        core_fail(core, ST_NO_MEMORY, "ending a stream");
        return;
    }
    put(core, (struct core_out){ .kind = OUT_END, .conn = conn, .end = { code, copy } },
        CORE_AT_ONCE, 0);
}

void core_half_closed(struct core *core, struct core_conn *conn)
{
    core_hang_up(core, conn, RPC_OK, "");
}

void core_post_task(struct core *core, struct store_task *task)
{
    put(core, (struct core_out){ .kind = OUT_TASK, .task = task }, CORE_AT_ONCE, sizeof *task);
}

void core_post_point(struct core *core, const char *name, int64_t rank, int64_t generation,
                     int64_t step)
{
    put(core, (struct core_out){ .kind = OUT_POINT, .point = { name, rank, generation, step } },
        CORE_WITH_GROUP, 0);
}

bool core_outbox_full(const struct core *core)
{
    return core->outbox.bytes >= CORE_OUTBOX_BYTES;
}

void core_outbox_forget(struct core *core, const struct core_conn *conn)
{
    for (size_t i = 0; i < core->outbox.count; i++) {
        struct core_out *out = &core->outbox.list[i];
        if ((out->kind == OUT_MESSAGE || out->kind == OUT_END) && out->conn == conn)
            out->conn = NULL;
    }
}

static void leave(const struct core *core, struct core_out *out)
{
    switch (out->kind) {
    case OUT_MESSAGE:
        if (out->conn)
            out->conn->ops->send(out->conn, &out->message);
        break;
    case OUT_END:
        if (out->conn)
            out->conn->ops->finish(out->conn, out->end.code, out->end.detail);
        break;
    case OUT_TASK:
        core->options.store.submit(core->options.store.self, out->task);
        out->task = NULL;
        break;
    case OUT_POINT:
        fault_context(out->point.rank, out->point.generation, out->point.step);
        fault_point(out->point.name);
        break;
    }
}

void core_outbox_empty(struct core *core)
{
    struct core_outbox *box = &core->outbox;
    const size_t count = box->count;
    for (size_t i = 0; i < count; i++) {
        leave(core, &box->list[i]);
        release_out(&box->list[i]);
    }
    CHECK(box->count == count); /* nobody called the core back */
    box->count = 0;
    box->bytes = 0;
    box->urgent = 0;
}

void core_outbox_release(struct core *core)
{
    for (size_t i = 0; i < core->outbox.count; i++)
        release_out(&core->outbox.list[i]);
    free(core->outbox.list);
    core->outbox = (struct core_outbox){ .count = 0 };
}
