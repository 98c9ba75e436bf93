/*
 * The door: calls that were let in and have said nothing yet.
 *
 * Each has guest_ms for its first message, and how many wait at a time is bounded: in all, per
 * address, and half of all of them per network of IPv6 (/64: what one customer is given, or the
 * nodes of a cluster have in common), so that one machine that opens calls and is silent doesn't
 * keep out the others. A fleet that comes back at once is not kept out
 * by it: its calls leave as fast as their first messages are read, and who finds it full is told to
 * try again, over the connection that it has.
 *
 * Thread: that of the server's queue alone.
 */
#include <arpa/inet.h>
#include <string.h>
#include <sys/random.h>

#include "common/check.h"
#include "common/clock.h"
#include "rpc/server/internal.h"

void rpc_door_open(struct rpc_door *door)
{
    CHECK(getrandom(&door->seed, sizeof(door->seed), 0) == (ssize_t)sizeof(door->seed));
}

/* The text between "ipv6:%5B" and "%5D:" or '%', or between "ipv4:" and ':'. */
static size_t address_of(const char *peer, uint8_t out[16])
{
    char host[INET6_ADDRSTRLEN];
    const bool v6 = strncmp(peer, "ipv6:", 5) == 0;
    if (!v6 && strncmp(peer, "ipv4:", 5) != 0)
        return 0;
    const char *from = peer + 5;
    if (strncmp(from, "%5B", 3) == 0)
        from += 3;
    from += *from == '[';
    const size_t size = strcspn(from, v6 ? "]%" : ":");
    if (size >= sizeof(host))
        return 0;
    memcpy(host, from, size);
    host[size] = '\0';
    if (inet_pton(v6 ? AF_INET6 : AF_INET, host, out) != 1)
        return 0;
    return v6 ? 16 : 4;
}

static uint16_t *counter_of(struct rpc_door *door, const uint8_t *address, size_t size)
{
    uint64_t hash = door->seed + size;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ address[i]) * 0x9e3779b97f4a7c15U ^ hash >> 29;
    return &door->addresses[hash >> 40 & (DOOR_ADDRESSES - 1)];
}

bool rpc_door_enter(struct rpc_server *server, struct rpc_guest *guest, const char *peer)
{
    struct rpc_door *door = &server->door;
    const struct rpc_server_options *options = &server->options;
    uint8_t bytes[16];
    const size_t size = peer != NULL ? address_of(peer, bytes) : 0;
    uint16_t *address = peer != NULL ? counter_of(door, bytes, size) : NULL;
    uint16_t *network = size == 16 ? counter_of(door, bytes, 8) : NULL;
    if ((address != NULL &&
         (door->count >= options->guests_max || *address >= options->guests_address_max)) ||
        (network != NULL && *network >= options->guests_max / 2))
        return false;
    if (address != NULL)
        ++*address;
    if (network != NULL)
        ++*network;
    guest->older = door->youngest;
    guest->younger = NULL;
    guest->until_ns = clock_mono_ns() + server->options.guest_ms * INT64_C(1000000);
    guest->address = address;
    guest->network = network;
    guest->inside = true;
    if (door->youngest != NULL) {
        door->youngest->younger = guest;
    } else {
        door->oldest = guest;
    }
    door->youngest = guest;
    door->count++;
    return true;
}

void rpc_door_leave(struct rpc_server *server, struct rpc_guest *guest)
{
    struct rpc_door *door = &server->door;
    if (!guest->inside)
        return;
    guest->inside = false;
    if (guest->older != NULL) {
        guest->older->younger = guest->younger;
    } else {
        door->oldest = guest->younger;
    }
    if (guest->younger != NULL) {
        guest->younger->older = guest->older;
    } else {
        door->youngest = guest->older;
    }
    CHECK(door->count > 0);
    door->count--;
    if (guest->address != NULL)
        --*guest->address;
    if (guest->network != NULL)
        --*guest->network;
}

int64_t rpc_door_look(void *self)
{
    struct rpc_server *server = self;
    struct rpc_door *door = &server->door;
    while (door->oldest != NULL && door->oldest->until_ns <= clock_mono_ns()) {
        struct rpc_guest *late = door->oldest;
        rpc_door_leave(server, late);
        late->expire(late);
    }
    return door->oldest != NULL ? door->oldest->until_ns : INT64_MAX;
}
