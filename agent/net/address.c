#include "agent/net/address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/cleanup.h"

enum { PEER_TEXT = 128, IPV4_BITS = 32, IPV6_BITS = 128 };

union name {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};

/* IPv4 as IPv6 becomes plain. */
static void plain_name(union name *name)
{
    if (name->any.sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&name->in6.sin6_addr))
        return;
    struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = name->in6.sin6_port };
    memcpy(&in.sin_addr, name->in6.sin6_addr.s6_addr + 12, sizeof(in.sin_addr));
    name->in = in;
}

static bool is_ip(const struct sockaddr *name)
{
    return name != NULL && (name->sa_family == AF_INET || name->sa_family == AF_INET6);
}

static union name name_of(const struct sockaddr *from)
{
    union name name = { .any.sa_family = AF_UNSPEC };
    memcpy(&name, from,
           from->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    plain_name(&name);
    return name;
}

static bool is_link_local(const union name *name)
{
    return name->any.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&name->in6.sin6_addr);
}

static enum status print_name(const union name *name, char out[ADDRESS_TEXT])
{
    const void *bytes = name->any.sa_family == AF_INET ? (const void *)&name->in.sin_addr
                                                       : (const void *)&name->in6.sin6_addr;
    return inet_ntop(name->any.sa_family, bytes, out, ADDRESS_TEXT) != NULL
               ? ST_OK
               : status_from_errno(errno);
}

static enum status parse_address(const char *text, union name *out)
{
    *out = (union name){ .any.sa_family = AF_UNSPEC };
    if (inet_pton(AF_INET, text, &out->in.sin_addr) == 1) {
        out->any.sa_family = AF_INET;
        return ST_OK;
    }
    if (inet_pton(AF_INET6, text, &out->in6.sin6_addr) != 1)
        return ST_INVALID;
    out->any.sa_family = AF_INET6;
    return ST_OK;
}

enum status address_check(const char *text, struct reason *out_why)
{
    union name name;
    if (parse_address(text, &name) != ST_OK) {
        reason_set(out_why,
                   "%.60s is no numeric address: give one of this machine's, such as 10.1.0.7, or "
                   "name the interface with --interface",
                   text);
        return ST_REFUSED;
    }
    if (is_link_local(&name)) {
        reason_set(out_why,
                   "%.60s is link-local: other machines can't tell which link is meant; give a "
                   "global or a unique local address (fd00::/8)",
                   text);
        return ST_REFUSED;
    }
    const bool many =
        name.any.sa_family == AF_INET
            ? name.in.sin_addr.s_addr == INADDR_ANY || IN_MULTICAST(ntohl(name.in.sin_addr.s_addr))
            : IN6_IS_ADDR_UNSPECIFIED(&name.in6.sin6_addr) ||
                  IN6_IS_ADDR_MULTICAST(&name.in6.sin6_addr) ||
                  IN6_IS_ADDR_V4MAPPED(&name.in6.sin6_addr);
    if (many) {
        reason_set(out_why, "%.60s is not the address of one machine", text);
        return ST_REFUSED;
    }
    return ST_OK;
}

/* ---- interfaces ---- */

/* An interface is looked for by its name, or by the first bits of an address. */
struct wanted {
    const char *name; /* NULL: the network */
    union name network;
    unsigned bits;
};

static bool same_bits(const void *a, const void *b, unsigned bits)
{
    const uint8_t *left = a, *right = b;
    const unsigned bytes = bits / 8, rest = bits % 8;
    if (memcmp(left, right, bytes) != 0)
        return false;
    return rest == 0 || (left[bytes] ^ right[bytes]) >> (8 - rest) == 0;
}

static enum status parse_network(const char *spec, struct wanted *out)
{
    char text[ADDRESS_TEXT];
    const char *slash = strchr(spec, '/');
    const size_t size = (size_t)(slash - spec);
    if (size >= sizeof(text))
        return ST_INVALID;
    memcpy(text, spec, size);
    text[size] = '\0';
    enum status st = parse_address(text, &out->network);
    if (st != ST_OK)
        return st;
    char *end = NULL;
    const unsigned long bits = strtoul(slash + 1, &end, 10);
    const unsigned most = out->network.any.sa_family == AF_INET ? IPV4_BITS : IPV6_BITS;
    if (slash[1] < '0' || slash[1] > '9' || *end != '\0' || bits > most)
        return ST_INVALID;
    out->bits = (unsigned)bits;
    return ST_OK;
}

static bool is_wanted(const struct wanted *wanted, const struct ifaddrs *one,
                      const union name *name)
{
    if (wanted->name != NULL)
        return strcmp(one->ifa_name, wanted->name) == 0;
    if (name->any.sa_family != wanted->network.any.sa_family)
        return false;
    if (name->any.sa_family == AF_INET)
        return same_bits(&name->in.sin_addr, &wanted->network.in.sin_addr, wanted->bits);
    return same_bits(&name->in6.sin6_addr, &wanted->network.in6.sin6_addr, wanted->bits);
}

enum status address_of_interface(const char *spec, char out[ADDRESS_TEXT], struct reason *out_why)
{
    struct wanted wanted = { .name = strchr(spec, '/') == NULL ? spec : NULL };
    if (wanted.name == NULL && parse_network(spec, &wanted) != ST_OK) {
        reason_set(out_why, "%.60s is neither an interface nor a network such as 10.1.0.0/16",
                   spec);
        return ST_NOT_FOUND;
    }
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0)
        return status_from_errno(errno);
    union name best = { .any.sa_family = AF_UNSPEC };
    bool link_local = false;
    for (const struct ifaddrs *one = all; one != NULL; one = one->ifa_next) {
        if (!is_ip(one->ifa_addr) || !(one->ifa_flags & IFF_UP))
            continue;
        const union name name = name_of(one->ifa_addr);
        if (!is_wanted(&wanted, one, &name))
            continue;
        if (is_link_local(&name)) {
            link_local = true;
        } else if (best.any.sa_family == AF_UNSPEC ||
                   (best.any.sa_family == AF_INET6 && name.any.sa_family == AF_INET)) {
            best = name;
        }
    }
    freeifaddrs(all);
    if (best.any.sa_family != AF_UNSPEC)
        return print_name(&best, out);
    reason_set(out_why,
               link_local ? "%.60s has link-local addresses only, which other machines can't use"
                          : "no interface that is up, of those this machine has, is %.60s",
               spec);
    return link_local ? ST_REFUSED : ST_NOT_FOUND;
}

enum status address_interface(const char *address, char out[IF_NAMESIZE])
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0)
        return status_from_errno(errno);
    enum status st = ST_NOT_FOUND;
    for (const struct ifaddrs *one = all; st != ST_OK && one != NULL; one = one->ifa_next) {
        char text[ADDRESS_TEXT];
        if (!is_ip(one->ifa_addr))
            continue;
        const union name name = name_of(one->ifa_addr);
        if (print_name(&name, text) == ST_OK && strcmp(text, address) == 0) {
            (void)snprintf(out, IF_NAMESIZE, "%s", one->ifa_name);
            st = ST_OK;
        }
    }
    freeifaddrs(all);
    return st;
}

/* ---- the way to a peer ---- */

/* gRPC writes brackets and percent signs as in a URI. */
static void decode(const char *text, char out[PEER_TEXT])
{
    size_t size = 0;
    for (; *text != '\0' && size < PEER_TEXT - 1; text++) {
        if (*text == '%' && isxdigit((unsigned char)text[1]) && isxdigit((unsigned char)text[2])) {
            const char code[] = { text[1], text[2], '\0' };
            out[size++] = (char)strtoul(code, NULL, 16);
            text += 2;
        } else {
            out[size++] = *text;
        }
    }
    out[size] = '\0';
}

/* "10.1.0.7:7000", "[fd00::7]:7000", also with a scope ("[fe80::1%eth0]:7000"). */
static enum status resolve(char *text, union name *out)
{
    char *colon = strrchr(text, ':');
    if (colon == NULL)
        return ST_INVALID;
    *colon = '\0';
    if (text[0] == '[' && colon > text && colon[-1] == ']') {
        colon[-1] = '\0';
        text++;
    }
    const struct addrinfo numeric = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                                      .ai_socktype = SOCK_DGRAM };
    struct addrinfo *found = NULL;
    if (getaddrinfo(text, colon + 1, &numeric, &found) != 0)
        return ST_INVALID;
    if (is_ip(found->ai_addr))
        *out = name_of(found->ai_addr);
    freeaddrinfo(found);
    return out->any.sa_family == AF_UNSPEC ? ST_INVALID : ST_OK;
}

enum status address_towards(const char *peer, char out[ADDRESS_TEXT], struct reason *out_why)
{
    if (strncmp(peer, "unix:", 5) == 0) {
        (void)snprintf(out, ADDRESS_TEXT, ADDRESS_LOOPBACK);
        return ST_OK;
    }
    char text[PEER_TEXT];
    union name name = { .any.sa_family = AF_UNSPEC };
    if (strncmp(peer, "ipv4:", 5) != 0 && strncmp(peer, "ipv6:", 5) != 0)
        return ST_INVALID;
    decode(peer + 5, text);
    enum status st = resolve(text, &name);
    if (st != ST_OK)
        return st;
    auto_close int fd = socket(name.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t size = sizeof(name);
    const socklen_t peer_size = name.any.sa_family == AF_INET ? sizeof(name.in) : sizeof(name.in6);
    if (fd < 0 || connect(fd, &name.any, peer_size) != 0 || getsockname(fd, &name.any, &size) != 0)
        return status_from_errno(errno);
    plain_name(&name);
    if (is_link_local(&name)) {
        reason_set(out_why, "the way to the coordinator is link-local, which other machines can't "
                            "use: start this agent with --interface or --host");
        return ST_REFUSED;
    }
    return print_name(&name, out);
}
