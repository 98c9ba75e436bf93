/*
 * The state of a worker streamed to another (trainer/state/chunk_stream.h) on loopback, hashed on
 * both ends, against the same bytes over a plain TCP connection, which are read and not looked at.
 *
 *     live [MB [ROUNDS]]     prints both rates and their ratio, of each round and the medians
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/check.h"
#include "common/clock.h"
#include "tests/unit/comm/comm_fixture.h"
#include "trainer/state/chunk_stream.h"

#define ROUNDS_MAX 64
#define PIECE      ((size_t)1024 * 1024)

static double rate_of(size_t bytes, int64_t begin_ns)
{
    return (double)bytes / ((double)(clock_mono_ns() - begin_ns) / 1e9) / 1e6;
}

static void wait_for(pid_t child)
{
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void send_plain(uint16_t port, const uint8_t *memory, size_t bytes)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = port };
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
    for (size_t at = 0; at < bytes;) {
        const size_t left = bytes - at;
        const ssize_t n = send(fd, memory + at, left < PIECE ? left : PIECE, 0);
        CHECK(n > 0);
        at += (size_t)n;
    }
    _exit(0);
}

/* Returns the rate of plain TCP, from the first byte to the last. */
static double plain_rate(const uint8_t *from, uint8_t *to, size_t bytes)
{
    struct sockaddr_in here = { .sin_family = AF_INET };
    socklen_t size = sizeof(here);
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(listener >= 0);
    CHECK(bind(listener, (struct sockaddr *)&here, sizeof(here)) == 0);
    CHECK(listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&here, &size) == 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        send_plain(here.sin_port, from, bytes);
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0);
    const int64_t begin_ns = clock_mono_ns();
    for (size_t at = 0; at < bytes;) {
        const size_t left = bytes - at;
        const ssize_t n = recv(fd, to + at, left < PIECE ? left : PIECE, 0);
        CHECK(n > 0);
        at += (size_t)n;
    }
    const double rate = rate_of(bytes, begin_ns);
    wait_for(child);
    (void)close(fd);
    (void)close(listener);
    return rate;
}

/* Streams the memory from rank 0 to rank 1 as one of them, and returns the rate. memory is written
 * to on all ranks but the source. */
/* NOLINTNEXTLINE(readability-non-const-parameter) */
static double stream_rank(struct shared_rendezvous *shared, int rank, uint8_t *memory, size_t bytes)
{
    static const uint32_t sources[] = { 0 };
    const struct chunk_buffer buffer = { memory, bytes };
    struct comm *comm = NULL;
    struct reason reason;
    uint32_t blamed = 0;
    CHECK(gloo_open_rank(shared, rank, 2, 60000, &comm) == ST_OK);
    const struct chunk_stream_options options = { .table = comm_gloo(),
                                                  .comm = comm,
                                                  .rank = (uint32_t)rank,
                                                  .size = 2,
                                                  .sources = sources,
                                                  .source_count = 1,
                                                  .buffers = &buffer,
                                                  .buffer_count = 1 };
    const int64_t begin_ns = clock_mono_ns();
    CHECK(chunk_stream_run(&options, &blamed, &reason) == ST_OK);
    const double rate = rate_of(bytes, begin_ns);
    comm_gloo()->close(comm);
    return rate;
}

static double stream_rate(uint8_t *from, uint8_t *to, size_t bytes)
{
    struct shared_rendezvous *shared = shared_rendezvous_new();
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        (void)stream_rank(shared, 0, from, bytes);
        _exit(0);
    }
    const double rate = stream_rank(shared, 1, to, bytes);
    wait_for(child);
    shared_rendezvous_free(shared);
    CHECK(memcmp(from, to, bytes) == 0);
    return rate;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(*values), compare);
    return values[count / 2];
}

int main(int argc, char **argv)
{
    const long megabytes = argc > 1 ? strtol(argv[1], NULL, 10) : 500;
    const int rounds = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 7;
    if (megabytes < 1 || rounds < 1 || rounds > ROUNDS_MAX) {
        (void)fprintf(stderr, "usage: live [MB [ROUNDS]]\n");
        return 2;
    }
    const size_t bytes = (size_t)megabytes * 1000000;
    double plain[ROUNDS_MAX], streamed[ROUNDS_MAX], ratio[ROUNDS_MAX];
    uint8_t *from = malloc(bytes), *to = malloc(bytes);
    CHECK(from != NULL && to != NULL);
    for (size_t i = 0; i < bytes; i++)
        from[i] = (uint8_t)((i * 2654435761u) >> 13);
    for (int i = 0; i < rounds; i++) {
        memset(to, 0xEE, bytes); /* no page faults in either */
        plain[i] = plain_rate(from, to, bytes);
        memset(to, 0xEE, bytes);
        streamed[i] = stream_rate(from, to, bytes);
        ratio[i] = streamed[i] / plain[i];
        (void)printf("plain TCP %.0f MB/s, state %.0f MB/s, ratio %.2f\n", plain[i], streamed[i],
                     ratio[i]);
    }
    (void)printf("median: plain TCP %.0f MB/s, state %.0f MB/s, ratio %.2f\n",
                 median(plain, rounds), median(streamed, rounds), median(ratio, rounds));
    free(from);
    free(to);
    return 0;
}
