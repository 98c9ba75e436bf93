/* Connections that our own listener accepted, and whose they are. */
#include <errno.h>
#include <grpc/grpc_posix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "rpc/server/internal.h"

enum { FD_MAX = 1 << 20 }; /* of the table of credentials */

static void set_cred(struct rpc_creds *creds, int fd, const struct ucred *cred)
{
    size_t index = (size_t)fd;
    pthread_mutex_lock(&creds->mutex);
    if (index >= creds->count) {
        size_t count = index * 2 + 64;
        creds->list = realloc(creds->list, count * sizeof(*creds->list));
        if (creds->list == NULL)
            abort();
        memset(creds->list + creds->count, 0, (count - creds->count) * sizeof(*creds->list));
        creds->count = count;
    }
    creds->list[index] = (struct rpc_cred){ .cred = *cred, .known = true };
    pthread_mutex_unlock(&creds->mutex);
}

bool rpc_server_cred(struct rpc_server *server, const char *peer, struct ucred *out)
{
    if (strncmp(peer, "fd:", 3) != 0)
        return false;
    char *end = NULL;
    errno = 0;
    unsigned long fd = strtoul(peer + 3, &end, 10);
    if (errno != 0 || end == peer + 3 || *end != '\0')
        return false;
    struct rpc_creds *creds = &server->creds;
    bool known = false;
    pthread_mutex_lock(&creds->mutex);
    if (fd < creds->count && creds->list[fd].known) {
        *out = creds->list[fd].cred;
        known = true;
    }
    pthread_mutex_unlock(&creds->mutex);
    return known;
}

void rpc_server_peer(grpc_call *call, const struct ucred *cred, char *out, size_t capacity)
{
    if (cred != NULL && cred->pid != 0) {
        (void)snprintf(out, capacity, "unix:uid=%u,pid=%d", cred->uid, cred->pid);
        return;
    }
    if (cred != NULL) { /* in another space of processes */
        (void)snprintf(out, capacity, "unix:uid=%u", cred->uid);
        return;
    }
    char *peer = grpc_call_get_peer(call); /* an IPv6 one has its brackets as %5B and %5D */
    size_t size = 0;
    for (const char *at = peer != NULL ? peer : ""; *at != '\0' && size + 1 < capacity; at++) {
        const bool open = strncmp(at, "%5B", 3) == 0, bracket = open || strncmp(at, "%5D", 3) == 0;
        out[size] = *at;
        if (bracket)
            out[size] = open ? '[' : ']';
        size++;
        at += bracket ? 2 : 0;
    }
    out[size] = '\0';
    gpr_free(peer);
}

void rpc_server_adopt(struct rpc_server *server, int fd, const struct ucred *cred)
{
    CHECK(fd >= 0 && fd < FD_MAX);
    /* Before core sees it: a number that was another connection's says nothing any more. */
    set_cred(&server->creds, fd, cred);
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
    grpc_server_add_channel_from_fd(server->core, fd, credentials);
    grpc_server_credentials_release(credentials);
}
