#include "agent/net/probe.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/check.h"
#include "common/limits.h"

#define TICK_MS 50
#define BACKLOG 128

#define TAKE_BYTES ((size_t)256 * 1024)
#define TAKE_NS    (UINT64_C(1000000) * 200) /* of data that came for longer the begin counts */

/* A connection, of a probe or from outside. */
struct peer {
    uv_tcp_t tcp;      /* first */
    struct peer *next; /* of that probe's, or of the guests */
    struct probes *probes;
    struct probe *probe; /* NULL: from outside */
    uv_connect_t connect;
    uv_write_t write;
    uint64_t since_ms;
    uint64_t sent_ns; /* its bytes, of a probe's */
    uint8_t bytes[PROBE_NONCE];
    size_t count; /* of them, that came */
    bool closing;
    bool takes, answered; /* data of a measurement, since since_ms; and that was answered */
    uint64_t taken, takes_since_ns;
};

struct probe {
    struct probe *next;
    struct probes *probes;
    uint64_t id, since_ms;
    char host[LIMIT_NAME];
    uint32_t port;
    uint8_t nonce[PROBE_NONCE];
    uv_getaddrinfo_t resolve;
    bool resolving, resolved, over;
    struct sockaddr_storage address;
    struct peer *peers; /* its connections, until they are closed */
    unsigned tries;     /* connections that were begun */
    char saw[LIMIT_SAW];
};

struct probes {
    uv_loop_t *loop;
    uv_tcp_t listener;
    uv_timer_t timer; /* runs while there are probes or guests */
    uint16_t port;
    void (*done)(void *arg, const struct probe_result *result);
    void *arg;
    struct peer *guests; /* the newest first */
    size_t guest_count;
    struct probe *list;
    size_t count;
    struct measures measures;
    uint8_t expected[PROBE_NONCE]; /* the token, until expected_until; 0: none is */
    uint64_t expected_until;
    char taken[TAKE_BYTES]; /* nobody reads what came */
    unsigned open;          /* of the two handles above */
    bool closing;
};

static void on_tick(uv_timer_t *timer);

static void run_timer(struct probes *probes)
{
    if (!probes->closing && !uv_is_active((uv_handle_t *)&probes->timer))
        CHECK(uv_timer_start(&probes->timer, on_tick, TICK_MS, TICK_MS) == 0);
}

/* ---- ends ---- */

static void free_if_closed(struct probes *probes)
{
    if (probes->closing && probes->open == 0 && probes->list == NULL && probes->guests == NULL &&
        probes->measures.list == NULL)
        free(probes);
}

static void free_if_over(struct probe *probe)
{
    struct probes *probes = probe->probes;
    if (!probe->over || probe->peers != NULL || probe->resolving)
        return;
    struct probe **at = &probes->list;
    while (*at != probe)
        at = &(*at)->next;
    *at = probe->next;
    probes->count--;
    free(probe);
    free_if_closed(probes);
}

static struct peer **list_of(const struct peer *peer)
{
    return peer->probe != NULL ? &peer->probe->peers : &peer->probes->guests;
}

static void on_peer_closed(uv_handle_t *handle)
{
    struct peer *peer = (struct peer *)handle;
    struct probes *probes = peer->probes;
    struct probe *probe = peer->probe;
    struct peer **at = list_of(peer);
    while (*at != peer)
        at = &(*at)->next;
    *at = peer->next;
    free(peer);
    if (probe != NULL) {
        free_if_over(probe);
    } else {
        probes->guest_count--;
        free_if_closed(probes);
    }
}

static void close_peer(struct peer *peer)
{
    if (peer->closing)
        return;
    peer->closing = true;
    uv_close((uv_handle_t *)&peer->tcp, on_peer_closed);
}

static void give_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct peer *peer = (struct peer *)handle;
    (void)suggested;
    if (peer->takes) {
        *buf = uv_buf_init(peer->probes->taken, TAKE_BYTES);
        return;
    }
    *buf = uv_buf_init((char *)peer->bytes + peer->count, (unsigned)(PROBE_NONCE - peer->count));
}

/* ---- from outside ---- */

static void on_given_back(uv_write_t *request, int status)
{
    (void)status;
    close_peer(request->data);
}

static void on_answered(uv_write_t *request, int status)
{
    if (status != 0)
        close_peer(request->data);
}

/* Answers a measurement. Data that the sender still has under way are read until it hangs up: data
 * left unread would cause a reset, which can overtake the answer. */
static void answer_taken(struct peer *peer)
{
    if (peer->answered || peer->closing)
        return;
    peer->answered = true;
    measure_answer_write(peer->taken, (uv_hrtime() - peer->takes_since_ns) / 1000 + 1, peer->bytes);
    const uv_buf_t bytes = uv_buf_init((char *)peer->bytes, MEASURE_ANSWER);
    peer->write.data = peer;
    if (uv_write(&peer->write, (uv_stream_t *)&peer->tcp, &bytes, 1, on_answered) != 0)
        close_peer(peer);
}

static bool has_taken_enough(const struct peer *peer)
{
    return peer->taken >= MEASURE_BYTES_MAX ||
           (peer->taken > 0 && uv_hrtime() - peer->takes_since_ns >= TAKE_NS);
}

static void take_data(struct peer *peer, ssize_t size)
{
    if (size < 0 && (size != UV_EOF || peer->answered || peer->taken == 0)) {
        close_peer(peer);
        return;
    }
    if (size > 0)
        peer->taken += (uint64_t)size;
    if (size < 0 || has_taken_enough(peer))
        answer_taken(peer);
}

static bool is_expected(struct peer *peer)
{
    const struct probes *probes = peer->probes;
    return uv_now(probes->loop) < probes->expected_until &&
           memcmp(peer->bytes, probes->expected, PROBE_NONCE) == 0;
}

static void on_guest_read(uv_stream_t *stream, ssize_t size, const uv_buf_t *buf)
{
    struct peer *peer = (struct peer *)stream;
    (void)buf;
    if (peer->takes) {
        take_data(peer, size);
        return;
    }
    if (size < 0) {
        close_peer(peer);
        return;
    }
    peer->count += (size_t)size;
    if (peer->count < PROBE_NONCE)
        return;
    if (is_expected(peer)) {
        peer->takes = true;
        peer->takes_since_ns = uv_hrtime();
        return;
    }
    (void)uv_read_stop(stream);
    const uv_buf_t bytes = uv_buf_init((char *)peer->bytes, PROBE_NONCE);
    peer->write.data = peer;
    if (uv_write(&peer->write, stream, &bytes, 1, on_given_back) != 0)
        close_peer(peer);
}

static struct peer *new_peer(struct probes *probes, struct probe *probe)
{
    struct peer *peer = calloc(1, sizeof(*peer));
    if (peer == NULL)
        return NULL;
    peer->probes = probes;
    peer->probe = probe;
    peer->since_ms = uv_now(probes->loop);
    if (uv_tcp_init(probes->loop, &peer->tcp) != 0) {
        free(peer);
        return NULL;
    }
    struct peer **list = list_of(peer);
    peer->next = *list;
    *list = peer;
    probes->guest_count += probe == NULL;
    return peer;
}

static void close_oldest_guest(struct probes *probes)
{
    struct peer *oldest = NULL;
    for (struct peer *peer = probes->guests; peer != NULL; peer = peer->next)
        oldest = peer->closing ? oldest : peer;
    if (oldest != NULL)
        close_peer(oldest);
}

static void on_guest(uv_stream_t *listener, int status)
{
    struct probes *probes = listener->data;
    struct peer *peer = status == 0 ? new_peer(probes, NULL) : NULL;
    if (peer == NULL)
        return;
    if (probes->guest_count > PROBE_GUESTS_MAX)
        close_oldest_guest(probes);
    if (uv_accept(listener, (uv_stream_t *)&peer->tcp) != 0 ||
        uv_read_start((uv_stream_t *)&peer->tcp, give_room, on_guest_read) != 0)
        close_peer(peer);
    run_timer(probes);
}

/* ---- probes ---- */

static void note_error(struct probe *probe, int error)
{
    (void)snprintf(probe->saw, sizeof(probe->saw), "%.70s port %" PRIu32 ": %.40s", probe->host,
                   probe->port, uv_strerror(error));
}

/* reach_us: 0: it wasn't reached. */
static void end_probe(struct probe *probe, uint64_t reach_us)
{
    struct probes *probes = probe->probes;
    if (probe->over)
        return;
    probe->over = true;
    const struct probe_result result = {
        .id = probe->id, .reached = reach_us > 0, .reach_us = reach_us, .saw = probe->saw
    };
    if (!probes->closing)
        probes->done(probes->arg, &result);
    for (struct peer *peer = probe->peers; peer != NULL; peer = peer->next)
        close_peer(peer);
    free_if_over(probe);
}

static void on_answer(uv_stream_t *stream, ssize_t size, const uv_buf_t *buf)
{
    struct peer *peer = (struct peer *)stream;
    struct probe *probe = peer->probe;
    (void)buf;
    if (size < 0) {
        if (!probe->over)
            note_error(probe, (int)size);
        close_peer(peer);
        return;
    }
    peer->count += (size_t)size;
    if (peer->count < PROBE_NONCE)
        return;
    if (memcmp(peer->bytes, probe->nonce, PROBE_NONCE) == 0) {
        (void)snprintf(probe->saw, sizeof(probe->saw), "reached within %" PRIu64 " ms",
                       uv_now(probe->probes->loop) - probe->since_ms + 1);
        end_probe(probe, (uv_hrtime() - peer->sent_ns) / 1000 + 1);
        return;
    }
    (void)snprintf(probe->saw, sizeof(probe->saw), "%.70s port %" PRIu32 " is no agent",
                   probe->host, probe->port);
    close_peer(peer);
}

static void on_sent(uv_write_t *request, int status)
{
    if (status != 0)
        close_peer(request->data);
}

static void on_connected(uv_connect_t *request, int status)
{
    struct peer *peer = request->data;
    struct probe *probe = peer->probe;
    uv_stream_t *stream = (uv_stream_t *)&peer->tcp;
    if (peer->closing)
        return;
    const uv_buf_t bytes = uv_buf_init((char *)probe->nonce, PROBE_NONCE);
    peer->write.data = peer;
    peer->sent_ns = uv_hrtime();
    int error = status;
    if (error == 0)
        error = uv_read_start(stream, give_room, on_answer);
    if (error == 0)
        error = uv_write(&peer->write, stream, &bytes, 1, on_sent);
    if (error == 0)
        return;
    note_error(probe, error);
    close_peer(peer);
}

static void begin_try(struct probe *probe)
{
    probe->tries++;
    struct peer *peer = new_peer(probe->probes, probe);
    if (peer == NULL)
        return;
    peer->connect.data = peer;
    const int error = uv_tcp_connect(&peer->connect, &peer->tcp,
                                     (const struct sockaddr *)&probe->address, on_connected);
    if (error == 0)
        return;
    note_error(probe, error);
    close_peer(peer);
}

static void on_resolved(uv_getaddrinfo_t *request, int status, struct addrinfo *found)
{
    struct probe *probe = request->data;
    probe->resolving = false;
    if (status == 0 && found != NULL && found->ai_addrlen <= sizeof(probe->address) &&
        !probe->over) {
        memcpy(&probe->address, found->ai_addr, found->ai_addrlen);
        probe->resolved = true;
        begin_try(probe);
    } else if (!probe->over) {
        note_error(probe, status);
        end_probe(probe, 0);
        uv_freeaddrinfo(found);
        return;
    }
    uv_freeaddrinfo(found);
    free_if_over(probe);
}

void probes_start(struct probes *probes, uint64_t id, const char *host, uint32_t port)
{
    if (probes == NULL || probes->closing || probes->count >= PROBES_MAX || port == 0 ||
        port > UINT16_MAX || strlen(host) >= LIMIT_NAME)
        return;
    struct probe *probe = calloc(1, sizeof(*probe));
    if (probe == NULL || getrandom(probe->nonce, sizeof(probe->nonce), 0) != sizeof(probe->nonce)) {
        free(probe);
        return;
    }
    uv_update_time(probes->loop);
    probe->probes = probes;
    probe->id = id;
    probe->port = port;
    probe->since_ms = uv_now(probes->loop);
    (void)snprintf(probe->host, sizeof(probe->host), "%s", host);
    (void)snprintf(probe->saw, sizeof(probe->saw), "%.70s port %" PRIu32 ": no answer within %d ms",
                   host, port, PROBE_MS);
    char service[8];
    (void)snprintf(service, sizeof(service), "%" PRIu32, port);
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
    probe->resolve.data = probe;
    probe->resolving =
        uv_getaddrinfo(probes->loop, &probe->resolve, on_resolved, host, service, &hints) == 0;
    if (!probe->resolving) {
        free(probe);
        return;
    }
    probe->next = probes->list;
    probes->list = probe;
    probes->count++;
    run_timer(probes);
}

/* ---- measurements ---- */

static void on_measured(void *arg, const struct probe_result *result)
{
    struct probes *probes = arg;
    probes->done(probes->arg, result);
}

static void on_measures_empty(void *arg)
{
    free_if_closed(arg);
}

void probes_measure(struct probes *probes, const struct measure_ask *ask)
{
    if (probes != NULL && !probes->closing)
        measures_start(&probes->measures, ask);
}

void probes_expect(struct probes *probes, const uint8_t token[PROBE_NONCE])
{
    if (probes == NULL)
        return;
    memcpy(probes->expected, token, PROBE_NONCE);
    uv_update_time(probes->loop);
    probes->expected_until = uv_now(probes->loop) + PROBE_EXPECT_MS;
}

/* ---- time ---- */

static void tick_probe(struct probe *probe, uint64_t now)
{
    const uint64_t age = now - probe->since_ms;
    if (probe->over)
        return;
    if (age >= PROBE_MS) {
        end_probe(probe, 0);
    } else if (probe->resolved && probe->tries < PROBE_TRIES &&
               age >= (uint64_t)probe->tries * PROBE_GAP_MS) {
        begin_try(probe);
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct probes *probes = timer->data;
    const uint64_t now = uv_now(probes->loop);
    for (struct probe *probe = probes->list, *next; probe != NULL; probe = next) {
        next = probe->next; /* it may be freed, no other one is */
        tick_probe(probe, now);
    }
    for (struct peer *peer = probes->guests; peer != NULL; peer = peer->next) {
        if (peer->takes && has_taken_enough(peer))
            answer_taken(peer);
        if (now - peer->since_ms >= (uint64_t)2 * PROBE_MS)
            close_peer(peer);
    }
    if (probes->list == NULL && probes->guests == NULL)
        (void)uv_timer_stop(timer);
}

/* ---- the listener ---- */

static int try_socket(const struct sockaddr *address, socklen_t size)
{
    const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (bind(fd, address, size) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    const int error = errno;
    (void)close(fd);
    errno = error;
    return -1;
}

/* Opens a socket at that address, or at all addresses: in front of a translated address, or of a
 * name, nobody knows which. -1: errno. */
static int open_socket(const char *host, int port)
{
    struct sockaddr_in four;
    struct sockaddr_in6 six;
    int fd = -1;
    errno = EINVAL;
    if (uv_ip4_addr(host, port, &four) == 0) {
        fd = try_socket((const struct sockaddr *)&four, sizeof(four));
    } else if (uv_ip6_addr(host, port, &six) == 0) {
        fd = try_socket((const struct sockaddr *)&six, sizeof(six));
    }
    if (fd < 0 && errno != EADDRINUSE && uv_ip6_addr("::", port, &six) == 0)
        fd = try_socket((const struct sockaddr *)&six, sizeof(six));
    if (fd < 0 && errno != EADDRINUSE && uv_ip4_addr("0.0.0.0", port, &four) == 0)
        fd = try_socket((const struct sockaddr *)&four, sizeof(four));
    return fd;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_storage name;
    memset(&name, 0, sizeof(name));
    socklen_t size = sizeof(name);
    if (getsockname(fd, (struct sockaddr *)&name, &size) != 0)
        return 0;
    return ntohs(name.ss_family == AF_INET ? ((const struct sockaddr_in *)&name)->sin_port
                                           : ((const struct sockaddr_in6 *)&name)->sin6_port);
}

static int open_in_range(const char *host, struct port_range ports)
{
    int fd = open_socket(host, ports.last);
    for (int port = ports.last - 1; fd < 0 && errno == EADDRINUSE && port >= ports.first; port--)
        fd = open_socket(host, port);
    return fd;
}

enum status probes_open(uv_loop_t *loop, const char *host, struct port_range ports,
                        void (*done)(void *arg, const struct probe_result *result), void *arg,
                        struct probes **out)
{
    const int fd = open_in_range(host, ports);
    if (fd < 0)
        return status_from_errno(errno);
    struct probes *probes = calloc(1, sizeof(*probes));
    if (probes == NULL) {
        (void)close(fd);
        return ST_NO_MEMORY;
    }
    probes->loop = loop;
    probes->done = done;
    probes->arg = arg;
    probes->measures = (struct measures){
        .loop = loop, .done = on_measured, .empty = on_measures_empty, .arg = probes
    };
    probes->open = 2;
    CHECK(uv_timer_init(loop, &probes->timer) == 0); /* neither asks the system for anything */
    CHECK(uv_tcp_init(loop, &probes->listener) == 0);
    probes->timer.data = probes;
    probes->listener.data = probes;
    if (uv_tcp_open(&probes->listener, fd) != 0) {
        (void)close(fd);
    } else if (uv_listen((uv_stream_t *)&probes->listener, BACKLOG, on_guest) == 0) {
        probes->port = port_of(fd);
    }
    *out = probes;
    return ST_OK;
}

uint16_t probes_port(const struct probes *probes)
{
    return probes != NULL ? probes->port : 0;
}

static void on_closed(uv_handle_t *handle)
{
    struct probes *probes = handle->data;
    probes->open--;
    free_if_closed(probes);
}

void probes_close(struct probes *probes)
{
    if (probes == NULL)
        return;
    probes->closing = true;
    measures_close(&probes->measures);
    uv_close((uv_handle_t *)&probes->timer, on_closed);
    uv_close((uv_handle_t *)&probes->listener, on_closed);
    for (struct peer *peer = probes->guests; peer != NULL; peer = peer->next)
        close_peer(peer);
    for (struct probe *probe = probes->list, *next; probe != NULL; probe = next) {
        next = probe->next;
        end_probe(probe, 0);
    }
}
