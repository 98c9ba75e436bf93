#include "client/base/interrupt.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/check.h"

#define REFRESH_MS 1000

bool interrupt_catch(struct client *client)
{
    sigset_t set;
    CHECK(client->channel == NULL); /* gRPC's threads inherit the mask */
    CHECK(client->signal_fd < 0);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGTERM);
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
        return false;
    client->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return client->signal_fd >= 0;
}

bool interrupt_came(const struct client *client)
{
    struct signalfd_siginfo info;
    return client->signal_fd >= 0 && read(client->signal_fd, &info, sizeof(info)) > 0;
}

bool interrupt_wait(const struct client *client, int64_t ms)
{
    struct pollfd wait = { .fd = client->signal_fd, .events = POLLIN };
    (void)poll(&wait, 1, ms < 0 ? 0 : (int)ms);
    return !interrupt_came(client);
}

enum exit_code interrupt_repeat(struct client *client,
                                enum exit_code (*once)(struct client *client))
{
    if (!client->args.watch)
        return once(client);
    if (!interrupt_catch(client)) {
        client_error("can't watch for Ctrl-C");
        return EXIT_INTERNAL;
    }
    for (;;) {
        if (client->terminal)
            (void)fputs("\033[H\033[2J", stdout);
        enum exit_code code = once(client);
        if (code != EXIT_DONE)
            return code;
        if (!interrupt_wait(client, REFRESH_MS))
            return EXIT_DETACHED;
    }
}
