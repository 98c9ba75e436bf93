/* The outbox: what waits for the commit before it leaves. */
#pragma once

#include "server/coord/state.h"

/* Packs a message. conn may close before it leaves. */
void coord_post(struct coord *coord, struct coord_conn *conn, enum coord_urgency urgency,
                const ProtobufCMessage *message);
void coord_hang_up(struct coord *coord, struct coord_conn *conn, enum rpc_code code,
                   const char *detail);
void coord_post_task(struct coord *coord, struct store_task *task); /* takes it over */
/* Posts a fault point between messages (tests), and its context. */
void coord_post_point(struct coord *coord, const char *name, int64_t rank, int64_t generation,
                      int64_t step);
bool coord_outbox_full(const struct coord *coord);
/* Forgets what was to leave over a connection that is gone. */
void coord_outbox_forget(struct coord *coord, const struct coord_conn *conn);
void coord_outbox_empty(struct coord *coord); /* lets all of it leave */
void coord_outbox_release(struct coord *coord);
