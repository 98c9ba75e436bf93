/*
 * The door: calls that were let in and have said nothing yet.
 *
 * Each has pending_ms for its first message, and how many wait at a time is bounded: in all, per
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

void rpc_admission_open(struct rpc_admission *admission)
{
    CHECK(getrandom(&admission->seed, sizeof(admission->seed), 0) ==
          (ssize_t)sizeof(admission->seed));
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

static uint16_t *counter_of(struct rpc_admission *admission, const uint8_t *address, size_t size)
{
    uint64_t hash = admission->seed + size;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ address[i]) * 0x9e3779b97f4a7c15U ^ hash >> 29;
    return &admission->addresses[hash >> 40 & (DOOR_ADDRESSES - 1)];
}

bool rpc_admission_enter(struct rpc_server *server, struct rpc_pending *pending, const char *peer)
{
    struct rpc_admission *admission = &server->admission;
    const struct rpc_server_options *options = &server->options;
    uint8_t bytes[16];
    const size_t size = peer != NULL ? address_of(peer, bytes) : 0;
    uint16_t *address = peer != NULL ? counter_of(admission, bytes, size) : NULL;
    uint16_t *network = size == 16 ? counter_of(admission, bytes, 8) : NULL;
    if ((address != NULL &&
         (admission->count >= options->pending_max || *address >= options->pending_address_max)) ||
        (network != NULL && *network >= options->pending_max / 2))
        return false;
    if (address != NULL)
        ++*address;
    if (network != NULL)
        ++*network;
    pending->older = admission->youngest;
    pending->younger = NULL;
    pending->until_ns = clock_mono_ns() + server->options.pending_ms * INT64_C(1000000);
    pending->address = address;
    pending->network = network;
    pending->inside = true;
    if (admission->youngest != NULL) {
        admission->youngest->younger = pending;
    } else {
        admission->oldest = pending;
    }
    admission->youngest = pending;
    admission->count++;
    return true;
}

void rpc_admission_leave(struct rpc_server *server, struct rpc_pending *pending)
{
    struct rpc_admission *admission = &server->admission;
    if (!pending->inside)
        return;
    pending->inside = false;
    if (pending->older != NULL) {
        pending->older->younger = pending->younger;
    } else {
        admission->oldest = pending->younger;
    }
    if (pending->younger != NULL) {
        pending->younger->older = pending->older;
    } else {
        admission->youngest = pending->older;
    }
    CHECK(admission->count > 0);
    admission->count--;
    if (pending->address != NULL)
        --*pending->address;
    if (pending->network != NULL)
        --*pending->network;
}

int64_t rpc_admission_look(void *self)
{
    struct rpc_server *server = self;
    struct rpc_admission *admission = &server->admission;
    while (admission->oldest != NULL && admission->oldest->until_ns <= clock_mono_ns()) {
        struct rpc_pending *late = admission->oldest;
        rpc_admission_leave(server, late);
        late->expire(late);
    }
    return admission->oldest != NULL ? admission->oldest->until_ns : INT64_MAX;
}
