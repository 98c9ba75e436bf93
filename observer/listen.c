#include "observer/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/check.h"
#include "identity/cert.h"
#include "identity/make.h"

#define BACKLOG 64

static bool is_number(const char *host)
{
    struct in6_addr parsed;
    return inet_pton(AF_INET, host, &parsed) == 1 || inet_pton(AF_INET6, host, &parsed) == 1;
}

static bool is_local(const char *host)
{
    struct in_addr four;
    struct in6_addr six;
    if (inet_pton(AF_INET, host, &four) == 1)
        return ntohl(four.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, host, &six) == 1)
        return IN6_IS_ADDR_LOOPBACK(&six);
    return strcasecmp(host, "localhost") == 0;
}

bool listen_parse(const char *address, char host[LISTEN_HOST], uint16_t *out_port, bool *out_local)
{
    const char *colon = strrchr(address, ':');
    char *end = NULL;
    if (colon == NULL || colon[1] < '0' || colon[1] > '9')
        return false;
    const unsigned long port = strtoul(colon + 1, &end, 10);
    const bool six = address[0] == '[' && colon > address && colon[-1] == ']';
    const ptrdiff_t size = colon - address - (six ? 2 : 0);
    if (*end != '\0' || port > UINT16_MAX || size <= 0 || size >= LISTEN_HOST)
        return false;
    (void)snprintf(host, LISTEN_HOST, "%.*s", (int)size, address + six);
    if (six != (strchr(host, ':') != NULL) || (six && !is_number(host)) ||
        strpbrk(host, " ,/\\@[]\"<>&%") != NULL)
        return false;
    *out_port = (uint16_t)port;
    *out_local = is_local(host);
    return !*out_local || is_number(host);
}

static int open_socket(const struct addrinfo *address)
{
    const int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    const int error = errno;
    if (fd >= 0)
        (void)close(fd);
    errno = error;
    return -1;
}

enum status listen_at(const char *host, uint16_t port, int *out_fd)
{
    const struct addrinfo hints = { .ai_family = AF_UNSPEC,
                                    .ai_socktype = SOCK_STREAM,
                                    .ai_flags = AI_NUMERICSERV | AI_PASSIVE };
    struct addrinfo *found = NULL;
    char service[8];
    (void)snprintf(service, sizeof(service), "%u", (unsigned)port);
    if (getaddrinfo(host, service, &hints, &found) != 0)
        return ST_NOT_FOUND;
    const int fd = open_socket(found);
    const enum status st = fd < 0 ? status_from_errno(errno) : ST_OK;
    freeaddrinfo(found);
    if (st == ST_OK)
        *out_fd = fd;
    return st;
}

uint16_t listen_port(int fd)
{
    struct sockaddr_storage address = { 0 };
    socklen_t size = sizeof(address);
    char port[8] = "";
    CHECK(getsockname(fd, (struct sockaddr *)&address, &size) == 0);
    CHECK(getnameinfo((const struct sockaddr *)&address, size, NULL, 0, port, sizeof(port),
                      NI_NUMERICSERV) == 0);
    return (uint16_t)strtoul(port, NULL, 10);
}

bool listen_is_any(const char *host)
{
    uint8_t any[16] = { 0 }, bytes[16] = { 0 };
    return (inet_pton(AF_INET, host, bytes) == 1 || inet_pton(AF_INET6, host, bytes) == 1) &&
           memcmp(bytes, any, sizeof(bytes)) == 0;
}

bool listen_public(const char *host, const char *hosts, char out[LISTEN_HOST])
{
    const bool any = listen_is_any(host);
    (void)snprintf(out, LISTEN_HOST, "%s", any ? "localhost" : host);
    if (!any && identity_hosts_have(hosts, host, strlen(host)))
        return true;
    for (size_t size = 0; hosts[0] != '\0'; hosts += size + (hosts[size] == ',')) {
        size = strcspn(hosts, ",");
        if (size == 0 || size >= LISTEN_HOST || identity_hosts_have(IDENTITY_HOSTS, hosts, size))
            continue;
        (void)snprintf(out, LISTEN_HOST, "%.*s", (int)size, hosts);
        return true;
    }
    return false;
}

void listen_url(bool tls, const char *host, uint16_t port, char out[LISTEN_URL])
{
    const bool six = strchr(host, ':') != NULL;
    (void)snprintf(out, LISTEN_URL, "http%s://%s%s%s:%u/", tls ? "s" : "", six ? "[" : "", host,
                   six ? "]" : "", (unsigned)port);
}
