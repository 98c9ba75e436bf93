/*
 * Any first bytes at an agent's probe listener, and any answer to a probe of its own.
 *
 * The first byte: 0 a guest that sends the rest, in pieces · 1 the rest is what a probe is answered
 * with · 2 the same, after the nonce that it sent. The second: how long the pieces are.
 */
#include <arpa/inet.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/net/probe.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/limits.h"
#include "tests/fuzz/fuzz.h"

enum { TURNS = 64 };

struct told {
    bool any, reached;
};

static void note(void *arg, const struct probe_result *result)
{
    struct told *told = arg;
    CHECK(result->id == 7);
    CHECK(strlen(result->saw) < LIMIT_SAW);
    CHECK(!told->any); /* once */
    *told = (struct told){ .any = true, .reached = result->reached };
}

static void turn(uv_loop_t *loop)
{
    (void)uv_run(loop, UV_RUN_NOWAIT);
}

static int dial(uint16_t port)
{
    const struct sockaddr_in to = { .sin_family = AF_INET,
                                    .sin_port = htons(port),
                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const struct linger hard = { .l_onoff = 1 };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard)) == 0);
    CHECK(connect(fd, (const struct sockaddr *)&to, sizeof(to)) == 0);
    return fd;
}

static void send_pieces(uv_loop_t *loop, int fd, const uint8_t *data, size_t size, size_t piece)
{
    for (size_t at = 0; at < size; at += piece) {
        const size_t length = size - at < piece ? size - at : piece;
        (void)send(fd, data + at, length, MSG_NOSIGNAL | MSG_DONTWAIT);
        turn(loop);
    }
}

/* A guest gets back the bytes that it sent first, and no more than a nonce of them. */
static void play_guest(uv_loop_t *loop, const struct probes *probes, const uint8_t *data,
                       size_t size, size_t piece)
{
    uint8_t back[PROBE_NONCE + 1];
    ssize_t got = -1;
    const int fd = dial(probes_port(probes));
    send_pieces(loop, fd, data, size, piece);
    for (int i = 0; i < TURNS && got < 0; i++) {
        turn(loop);
        got = recv(fd, back, sizeof(back), MSG_DONTWAIT);
    }
    CHECK(got <= PROBE_NONCE);
    CHECK(got <= 0 || memcmp(back, data, (size_t)got) == 0);
    CHECK(got <= 0 || size >= PROBE_NONCE);
    (void)close(fd);
}

static int listen_here(uint16_t *out_port)
{
    struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof(name);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK(fd >= 0);
    CHECK(bind(fd, (const struct sockaddr *)&name, size) == 0);
    CHECK(listen(fd, 8) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&name, &size) == 0);
    *out_port = ntohs(name.sin_port);
    return fd;
}

static void play_peer(uv_loop_t *loop, struct probes *probes, struct told *told, bool echoes,
                      const uint8_t *data, size_t size, size_t piece)
{
    uint16_t port = 0;
    const int listener = listen_here(&port);
    const int64_t begin_ms = clock_mono_ms(clock_system());
    int fd = -1;
    probes_start(probes, 7, "127.0.0.1", port);
    while (fd < 0 && !told->any) { /* the name is resolved on another thread */
        (void)uv_run(loop, UV_RUN_ONCE);
        fd = accept(listener, NULL, NULL);
    }
    if (fd >= 0) {
        uint8_t nonce[PROBE_NONCE];
        while (!told->any && recv(fd, nonce, sizeof(nonce), MSG_DONTWAIT) != sizeof(nonce))
            turn(loop);
        if (echoes)
            (void)send(fd, nonce, sizeof(nonce), MSG_NOSIGNAL);
        send_pieces(loop, fd, data, size, piece);
        for (int i = 0; i < TURNS && !told->any; i++)
            turn(loop);
        /* Where other work holds this process up, the probe's second is over. */
        const bool late = clock_mono_ms(clock_system()) - begin_ms >= PROBE_MS;
        CHECK(!echoes || told->reached || late);
        CHECK(echoes || !told->reached); /* nobody guesses a nonce */
        (void)close(fd);
    }
    (void)close(listener);
}

static void close_all(uv_loop_t *loop, struct probes *probes)
{
    probes_close(probes);
    CHECK(uv_run(loop, UV_RUN_DEFAULT) == 0);
    CHECK(uv_loop_close(loop) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uv_loop_t loop;
    struct probes *probes = NULL;
    struct told told = { false, false };
    if (size < 2)
        return 0;
    const size_t piece = data[1] % 40 + 1u;
    CHECK(uv_loop_init(&loop) == 0);
    CHECK(probes_open(&loop, "127.0.0.1", (struct port_range){ 0, 0 }, note, &told, &probes) ==
          ST_OK);
    CHECK(probes_port(probes) != 0);
    if (data[0] % 3 == 0) {
        play_guest(&loop, probes, data + 2, size - 2, piece);
    } else {
        play_peer(&loop, probes, &told, data[0] % 3 == 2, data + 2, size - 2, piece);
    }
    close_all(&loop, probes);
    return 0;
}
