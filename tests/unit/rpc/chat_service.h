/*
 * The service of chat.proto, for tests of rpc/.
 *
 * Thread: handlers run where the server's executor says; the counters may be read from anywhere.
 */
#pragma once

#include <stdatomic.h>

#include "chat.pb-c.h"
#include "rpc/server.h"

struct chat {
    Cairn__Test__Chat_Service service;
    _Atomic uint32_t open;
    _Atomic uint32_t cancelled;
    _Atomic uint32_t talked; /* messages of Talk */
};

void chat_init(struct chat *chat);

const uint8_t *chat_descriptors(size_t *out_size);
