#include "comm/gloo_address.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

/* As class Address of Gloo's TCP transport lays it out. The number tells apart pairs that share a
 * listening socket, which those of this version don't: it is -1. */
struct long_form {
    struct sockaddr_storage name;
    int64_t number;
};
_Static_assert(sizeof(struct long_form) == GLOO_ADDRESS_BYTES, "Gloo's form");
_Static_assert(sizeof(struct in6_addr) + sizeof(uint32_t) == GLOO_HOST_MAX, "the longest host");

enum status gloo_address_shorten(const uint8_t address[GLOO_ADDRESS_BYTES],
                                 struct gloo_address *out)
{
    struct long_form from;
    memcpy(&from, address, sizeof(from));
    memset(out, 0, sizeof(*out));
    if (from.number != -1)
        return ST_INVALID;
    if (from.name.ss_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, &from.name, sizeof(in));
        out->host_size = sizeof(in.sin_addr);
        memcpy(out->host, &in.sin_addr, sizeof(in.sin_addr));
        memcpy(out->port, &in.sin_port, sizeof(in.sin_port));
        return ST_OK;
    }
    if (from.name.ss_family != AF_INET6)
        return ST_INVALID;
    struct sockaddr_in6 in;
    memcpy(&in, &from.name, sizeof(in));
    const uint32_t scope = htonl(in.sin6_scope_id);
    out->host_size = GLOO_HOST_MAX;
    memcpy(out->host, &in.sin6_addr, sizeof(in.sin6_addr));
    memcpy(out->host + sizeof(in.sin6_addr), &scope, sizeof(scope));
    memcpy(out->port, &in.sin6_port, sizeof(in.sin6_port));
    return ST_OK;
}

enum status gloo_address_expand(const struct gloo_address *address, uint8_t out[GLOO_ADDRESS_BYTES])
{
    struct long_form to = { .number = -1 };
    if (address->host_size == sizeof(struct in_addr)) {
        struct sockaddr_in in = { .sin_family = AF_INET };
        memcpy(&in.sin_addr, address->host, sizeof(in.sin_addr));
        memcpy(&in.sin_port, address->port, sizeof(in.sin_port));
        memcpy(&to.name, &in, sizeof(in));
    } else if (address->host_size == GLOO_HOST_MAX) {
        struct sockaddr_in6 in = { .sin6_family = AF_INET6 };
        uint32_t scope = 0;
        memcpy(&in.sin6_addr, address->host, sizeof(in.sin6_addr));
        memcpy(&scope, address->host + sizeof(in.sin6_addr), sizeof(scope));
        in.sin6_scope_id = ntohl(scope);
        memcpy(&in.sin6_port, address->port, sizeof(in.sin6_port));
        memcpy(&to.name, &in, sizeof(in));
    } else {
        return ST_INVALID;
    }
    memcpy(out, &to, sizeof(to));
    return ST_OK;
}
