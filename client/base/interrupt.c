#include "client/base/interrupt.h"

#include <poll.h>
#include <stdio.h>

#define REFRESH_MS 1000

bool wait_interruptibly(const struct client *client, int64_t ms)
{
    struct pollfd wait = { .fd = client->signal_fd, .events = POLLIN };
    (void)poll(&wait, 1, ms < 0 ? 0 : (int)ms);
    return !client_interrupted(client);
}

enum exit_code repeat(struct client *client, enum exit_code (*once)(struct client *client))
{
    if (!client->args.watch)
        return once(client);
    if (!client_catch_signals(client)) {
        client_error("can't watch for Ctrl-C");
        return EXIT_INTERNAL;
    }
    for (;;) {
        if (client->terminal)
            (void)fputs("\033[H\033[2J", stdout);
        enum exit_code code = once(client);
        if (code != EXIT_DONE)
            return code;
        if (!wait_interruptibly(client, REFRESH_MS))
            return EXIT_DETACHED;
    }
}
