#include "trainer/command/first.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/command/worker.h"

enum {
    LISTENS = 0x0A, /* proc_net_tcp's number of that state */
    MORE_MS = 50,   /* beyond twice as long as it took */
};

/* Reads the local port and the state of a line: "sl: ADDRESS:PORT ADDRESS:PORT STATE ...", in
 * hexadecimal digits. */
static bool read_line(const char *line, unsigned long *out_port, unsigned long *out_state)
{
    const char *at = strchr(line, ':');
    const char *local = at != NULL ? strchr(at + 1, ':') : NULL;
    const char *peer = local != NULL ? strchr(local + 1, ':') : NULL;
    const char *state = peer != NULL ? strchr(peer, ' ') : NULL;
    if (state == NULL)
        return false; /* the line of titles */
    *out_port = strtoul(local + 1, NULL, 16);
    *out_state = strtoul(state, NULL, 16);
    return true;
}

static bool listens_in(const char *path, uint32_t port)
{
    char line[512];
    unsigned long seen = 0, state = LISTENS;
    bool found = false;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    /* Sockets that listen come first: many connections cost nothing. */
    while (!found && state == LISTENS && fgets(line, sizeof(line), file) != NULL)
        found = read_line(line, &seen, &state) && state == LISTENS && seen == port;
    (void)fclose(file);
    return found;
}

bool first_listens(uint32_t port)
{
    return listens_in("/proc/net/tcp", port) || listens_in("/proc/net/tcp6", port);
}

void first_started(struct command_worker *c)
{
    c->first_ms = c->place.size > 1 ? worker_now_ms() : 0;
}

int first_look(struct command_worker *c, int otherwise)
{
    if (c->first_ms == 0)
        return otherwise;
    const int64_t took = worker_now_ms() - c->first_ms;
    const bool listens = first_listens(c->place.master_port);
    if (!listens && took < FIRST_SOON_MS)
        return FIRST_LOOK_MS;
    if (listens && c->listening.ms == 0) {
        LOG_INFO(c->options->log,
                 "rank 0 listens %lld ms after its start: the others are started then",
                 (long long)took);
    }
    c->listening = (struct launch_listening){ .generation = c->options->assignment->generation,
                                              .ms = listens ? (uint32_t)took + 1 : 0 };
    c->first_ms = 0;
    return otherwise;
}

void first_await(struct command_worker *c)
{
    const int64_t usual = c->listening.ms < FIRST_SOON_MS ? c->listening.ms : FIRST_SOON_MS;
    const bool here = c->place.rank == 0, sees = c->place.node_rank == 0;
    const int64_t until = worker_now_ms() + (sees ? 2 * usual + MORE_MS : usual);
    bool waits = usual > 0;
    while (waits && worker_now_ms() < until) {
        worker_turn(c, FIRST_LOOK_MS);
        (void)first_look(c, 0);
        waits = atomic_load(&c->stop) == 0 && /* COMMAND_GOES_ON */
                !(here && c->processes[0].ended) && !(sees && first_listens(c->place.master_port));
    }
    if (waits && sees)
        LOG_INFO(c->options->log, "rank 0 doesn't listen yet: the others are started");
}
