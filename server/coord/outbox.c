/*
 * The outbox: messages, ends of streams and store tasks of this group, in the order in which they
 * were made. The core has decided them, and they have not left the process yet: coord_commit lets
 * them go.
 */
#include "server/coord/outbox.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/fault.h"
#include "server/coord/base.h"

struct coord_out {
    enum { OUT_MESSAGE, OUT_END, OUT_TASK, OUT_POINT } kind;
    struct coord_conn *conn; /* MESSAGE, END; NULL: it closed meanwhile, and hears nothing more */
    union {
        struct coord_message message; /* its bytes are owned */
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

static void release_out(struct coord_out *out)
{
    if (out->kind == OUT_MESSAGE) {
        free(out->message.data);
    } else if (out->kind == OUT_END) {
        free(out->end.detail);
    } else if (out->kind == OUT_TASK) {
        store_task_free(out->task);
    }
}

static void put(struct coord *coord, struct coord_out out, enum coord_urgency urgency, size_t bytes)
{
    struct coord_outbox *box = &coord->outbox;
    if (box->count == box->capacity) {
        size_t capacity = box->capacity ? 2 * box->capacity : 64;
        struct coord_out *more = realloc(box->list, capacity * sizeof(*more));
        if (more == NULL) {
            release_out(&out);
            coord_fail(coord, ST_NO_MEMORY, "keeping what is to leave");
            return;
        }
        box->list = more;
        box->capacity = capacity;
    }
    CHECK(box->count < box->capacity);
    box->list[box->count++] = out;
    box->bytes += bytes;
    box->urgent += urgency == COORD_COMMIT_SOON;
}

void coord_post(struct coord *coord, struct coord_conn *conn, enum coord_urgency urgency,
                const ProtobufCMessage *message)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    uint8_t *data = malloc(size ? size : 1);
    if (data == NULL) {
        coord_fail(coord, ST_NO_MEMORY, "packing a message");
        return;
    }
    (void)protobuf_c_message_pack(message, data);
    put(coord,
        (struct coord_out){
            .kind = OUT_MESSAGE, .conn = conn, .message = { message->descriptor, data, size } },
        urgency, size);
}

void coord_hang_up(struct coord *coord, struct coord_conn *conn, enum rpc_code code,
                   const char *detail)
{
    char *copy = strdup(detail);
    if (copy == NULL) {
        coord_fail(coord, ST_NO_MEMORY, "ending a stream");
        return;
    }
    put(coord, (struct coord_out){ .kind = OUT_END, .conn = conn, .end = { code, copy } },
        COORD_COMMIT_SOON, 0);
}

void coord_half_closed(struct coord *coord, struct coord_conn *conn)
{
    coord_hang_up(coord, conn, RPC_OK, "");
}

void coord_post_task(struct coord *coord, struct store_task *task)
{
    put(coord, (struct coord_out){ .kind = OUT_TASK, .task = task }, COORD_COMMIT_SOON,
        sizeof(*task));
}

void coord_post_point(struct coord *coord, const char *name, int64_t rank, int64_t generation,
                      int64_t step)
{
    put(coord, (struct coord_out){ .kind = OUT_POINT, .point = { name, rank, generation, step } },
        COORD_WITH_GROUP, 0);
}

bool coord_outbox_full(const struct coord *coord)
{
    return coord->outbox.bytes >= COORD_OUTBOX_BYTES;
}

void coord_outbox_forget(struct coord *coord, const struct coord_conn *conn)
{
    for (size_t i = 0; i < coord->outbox.count; i++) {
        struct coord_out *out = &coord->outbox.list[i];
        if ((out->kind == OUT_MESSAGE || out->kind == OUT_END) && out->conn == conn)
            out->conn = NULL;
    }
}

static void leave(const struct coord *coord, struct coord_out *out)
{
    switch (out->kind) {
    case OUT_MESSAGE:
        if (out->conn != NULL)
            out->conn->ops->send(out->conn, &out->message);
        break;
    case OUT_END:
        if (out->conn != NULL)
            out->conn->ops->finish(out->conn, out->end.code, out->end.detail);
        break;
    case OUT_TASK:
        coord->options.store.submit(coord->options.store.self, out->task);
        out->task = NULL;
        break;
    case OUT_POINT:
        fault_context(out->point.rank, out->point.generation, out->point.step);
        fault_point(out->point.name);
        break;
    }
}

void coord_outbox_empty(struct coord *coord)
{
    struct coord_outbox *box = &coord->outbox;
    const size_t count = box->count;
    for (size_t i = 0; i < count; i++) {
        leave(coord, &box->list[i]);
        release_out(&box->list[i]);
    }
    CHECK(box->count == count); /* nobody called the core back */
    box->count = 0;
    box->bytes = 0;
    box->urgent = 0;
}

void coord_outbox_release(struct coord *coord)
{
    for (size_t i = 0; i < coord->outbox.count; i++)
        release_out(&coord->outbox.list[i]);
    free(coord->outbox.list);
    coord->outbox = (struct coord_outbox){ .count = 0 };
}
