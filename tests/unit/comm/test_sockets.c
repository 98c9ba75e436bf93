/* Which sockets the interposed calls change, and what they make of them. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/sockets.h"
#include "tests/test.h"
#include "tests/unit/comm/comm_fixture.h"

enum { THREADS = 4, ROUNDS = 2000, FDS = 256, RANGES_FROM = 20000, RANGES_TO = 30000 };

union name {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};

static union name name_of(uint32_t address, unsigned port)
{
    return (union name){ .in = { .sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)port),
                                 .sin_addr = { htonl(address) } } };
}

static bool is_free(unsigned port)
{
    static const int types[] = { SOCK_STREAM, SOCK_DGRAM };
    const union name name = name_of(INADDR_ANY, port);
    bool is = true;
    for (size_t i = 0; i < 2; i++) {
        const int fd = socket(AF_INET, types[i], 0);
        is = is && syscall(SYS_bind, fd, &name.any, sizeof(name.in)) == 0;
        (void)close(fd);
    }
    return is;
}

/* So many ports side by side that nobody uses; the range from now on. */
static struct port_range use_free_ports(unsigned count)
{
    unsigned first = RANGES_FROM + (unsigned)getpid() % 90 * 100, found = 0;
    while (found < count && first + count < RANGES_TO) {
        if (is_free(first + found)) {
            found++;
        } else {
            first += found + 1;
            found = 0;
        }
    }
    assert_int_equal(found, count);
    const struct port_range range = { (uint16_t)first, (uint16_t)(first + count - 1) };
    sockets_use_ports(range);
    return range;
}

/* Makes a socket as Gloo does. */
static int stream_socket(int family)
{
    const int fd = socket(family, SOCK_STREAM, 0), on = 1;
    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
    return fd;
}

static int bound(uint32_t address, unsigned port)
{
    const int fd = stream_socket(AF_INET);
    const union name name = name_of(address, port);
    if (bind(fd, &name.any, sizeof(name.in)) == 0)
        return fd;
    const int error = errno;
    (void)close(fd);
    errno = error;
    return -1;
}

static unsigned port_of(int fd)
{
    union name name;
    socklen_t size = sizeof(name);
    assert_int_equal(getsockname(fd, &name.any, &size), 0);
    return ntohs(name.in.sin_port);
}

static int option_of(int fd, int level, int option)
{
    int value = -1;
    socklen_t size = sizeof(value);
    assert_int_equal(getsockopt(fd, level, option, &value, &size), 0);
    return value;
}

static bool is_in(struct port_range range, unsigned port)
{
    return port >= range.first && port <= range.last;
}

static void a_range_is_two_numbers(void **state)
{
    (void)state;
    struct port_range range;
    assert_int_equal(port_range_parse("21000-21999", &range), ST_OK);
    assert_int_equal(range.first, 21000);
    assert_int_equal(range.last, 21999);
    assert_int_equal(port_range_count(range), 1000);
    assert_int_equal(port_range_parse("65535-65535", &range), ST_OK);
    assert_int_equal(port_range_count(range), 1);
    assert_int_equal(port_range_parse("", &range), ST_OK);
    assert_int_equal(port_range_count(range), 0);
    static const char *const bad[] = { "21000",        "21000-",       "-21000",
                                       "21000-20999",  "80-90",        "21000-65536",
                                       "21000-+21001", "21000-21001 ", "a-b" };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(port_range_parse(bad[i], &range), ST_INVALID);
}

static void the_system_s_choice_becomes_one_of_the_range(void **state)
{
    (void)state;
    const struct port_range range = use_free_ports(3);
    int fds[3];
    for (int i = 0; i < 3; i++) {
        fds[i] = bound(INADDR_ANY, 0);
        assert_true(fds[i] >= 0);
        assert_true(is_in(range, port_of(fds[i])));
        assert_int_equal(option_of(fds[i], SOL_SOCKET, SO_ACCEPTCONN), 1);
    }
    assert_false(sockets_were_taken());
    assert_int_equal(bound(INADDR_ANY, 0), -1);
    assert_int_equal(errno, EADDRINUSE);
    assert_true(sockets_were_taken());
    assert_false(sockets_were_taken());
    (void)close(fds[1]);
    fds[1] = bound(INADDR_ANY, 0);
    assert_true(fds[1] >= 0);
    for (int i = 0; i < 3; i++)
        (void)close(fds[i]);
}

static void other_sockets_are_left_alone(void **state)
{
    (void)state;
    struct port_range range = use_free_ports(3);
    range.last--;
    sockets_use_ports(range);
    const int loopback = bound(INADDR_LOOPBACK, 0), asked = bound(INADDR_ANY, range.last + 1U);
    assert_true(loopback >= 0 && asked >= 0);
    assert_false(is_in(range, port_of(loopback)));
    assert_int_equal(port_of(asked), range.last + 1);
    assert_int_equal(option_of(asked, SOL_SOCKET, SO_ACCEPTCONN), 0);
    const int datagrams = socket(AF_INET, SOCK_DGRAM, 0);
    const union name any = name_of(INADDR_ANY, 0);
    assert_int_equal(bind(datagrams, &any.any, sizeof(any.in)), 0);
    assert_false(is_in(range, port_of(datagrams)));
    sockets_use_ports((struct port_range){ 0, 0 });
    const int unlimited = bound(INADDR_ANY, 0);
    assert_int_equal(option_of(unlimited, SOL_SOCKET, SO_ACCEPTCONN), 0);
    (void)close(loopback);
    (void)close(asked);
    (void)close(datagrams);
    (void)close(unlimited);
}

static void ipv6_has_the_same_range(void **state)
{
    (void)state;
    const struct port_range range = use_free_ports(2);
    const int fd = socket(AF_INET6, SOCK_STREAM, 0);
    if (fd < 0)
        skip();
    const union name any = { .in6 = { .sin6_family = AF_INET6, .sin6_addr = in6addr_any } };
    const union name loopback = { .in6 = { .sin6_family = AF_INET6,
                                           .sin6_addr = in6addr_loopback } };
    assert_int_equal(bind(fd, &any.any, sizeof(any.in6)), 0);
    assert_true(is_in(range, port_of(fd)));
    const int other = socket(AF_INET6, SOCK_STREAM, 0);
    if (bind(other, &loopback.any, sizeof(loopback.in6)) == 0)
        assert_false(is_in(range, port_of(other)));
    (void)close(fd);
    (void)close(other);
}

struct crowd {
    pthread_barrier_t together;
    atomic_int failed;
};

static void *bind_often(void *arg)
{
    struct crowd *crowd = arg;
    for (int i = 0; i < ROUNDS; i++) {
        (void)pthread_barrier_wait(&crowd->together);
        const int fd = bound(INADDR_ANY, 0);
        if (fd < 0 || listen(fd, 1) != 0)
            atomic_fetch_add(&crowd->failed, 1);
        (void)pthread_barrier_wait(&crowd->together);
        if (fd >= 0)
            (void)close(fd);
    }
    return NULL;
}

/* Each has a port of its own, though two may have one until somebody listens. */
static void those_who_come_together_don_t_collide(void **state)
{
    (void)state;
    (void)use_free_ports(THREADS);
    struct crowd crowd = { .failed = 0 };
    pthread_t threads[THREADS];
    assert_int_equal(pthread_barrier_init(&crowd.together, NULL, THREADS), 0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, bind_often, &crowd), 0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(crowd.failed, 0);
    (void)pthread_barrier_destroy(&crowd.together);
    (void)sockets_were_taken();
}

struct rival {
    unsigned port;
    atomic_bool ends;
    int failed;
};

/* Somebody who knows nothing of our lock binds, listens and goes, again and again. */
static void *take_and_leave(void *arg)
{
    struct rival *rival = arg;
    const union name name = name_of(INADDR_ANY, rival->port);
    while (!atomic_load(&rival->ends)) {
        const int fd = stream_socket(AF_INET);
        if (syscall(SYS_bind, fd, &name.any, sizeof(name.in)) == 0)
            (void)syscall(SYS_listen, fd, 1);
        (void)close(fd);
    }
    return NULL;
}

/* Between our bind() and our listen() the port may become another's: then it is the next one. */
static void who_takes_no_lock_takes_a_port_at_most(void **state)
{
    (void)state;
    struct rival rival = { .port = use_free_ports(2).first };
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, take_and_leave, &rival), 0);
    for (int i = 0; i < 50 * ROUNDS; i++) {
        const int fd = stream_socket(AF_INET);
        const union name any = name_of(INADDR_ANY, 0);
        assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
        rival.failed += bind(fd, &any.any, sizeof(any.in)) != 0 ||
                        option_of(fd, SOL_SOCKET, SO_ACCEPTCONN) != 1 ||
                        (fcntl(fd, F_GETFL) & O_NONBLOCK) == 0;
        (void)close(fd);
    }
    atomic_store(&rival.ends, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(rival.failed, 0);
    (void)sockets_were_taken();
}

static void connections_end_with_silence_and_free_their_port(void **state)
{
    (void)state;
    const struct port_range range = use_free_ports(1);
    const int listener = bound(INADDR_ANY, 0), plain = stream_socket(AF_INET);
    const union name name = name_of(INADDR_LOOPBACK, range.first);
    assert_int_equal(connect(plain, &name.any, sizeof(name.in)), 0);
    const int accepted = accept(listener, NULL, NULL);
    assert_true(accepted >= 0);
    assert_int_equal(option_of(accepted, IPPROTO_TCP, TCP_USER_TIMEOUT), SOCKETS_SILENCE_MS);
    assert_int_equal(option_of(accepted, SOL_SOCKET, SO_KEEPALIVE), 1);
    assert_int_equal(option_of(accepted, IPPROTO_TCP, TCP_KEEPIDLE), 1);
    assert_int_equal(option_of(plain, IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
    assert_int_equal(option_of(plain, SOL_SOCKET, SO_KEEPALIVE), 0);
    (void)close(listener);
    const int next = bound(INADDR_ANY, 0); /* while the connection of before lives on */
    assert_true(next >= 0);
    (void)close(next);
    (void)close(plain);
    (void)close(accepted);
}

static void a_peer_that_is_gone_has_the_address_zero(void **state)
{
    (void)state;
    sockets_use_ports((struct port_range){ 0, 0 });
    const struct linger at_once = { 1, 0 };
    union name peer = name_of(INADDR_LOOPBACK, 1);
    socklen_t size = sizeof(peer);
    const int listener = bound(INADDR_LOOPBACK, 0), dialled = stream_socket(AF_INET);
    assert_int_equal(getpeername(dialled, &peer.any, &size), -1); /* it never had one */
    assert_int_equal(errno, ENOTCONN);
    assert_int_equal(listen(listener, 1), 0);
    const union name name = name_of(INADDR_LOOPBACK, port_of(listener));
    assert_int_equal(connect(dialled, &name.any, sizeof(name.in)), 0);
    const int accepted = accept(listener, NULL, NULL);
    size = sizeof(peer);
    assert_int_equal(getpeername(accepted, &peer.any, &size), 0);
    assert_int_equal(peer.in.sin_port, htons((uint16_t)port_of(dialled)));
    assert_int_equal(setsockopt(dialled, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
    (void)close(dialled); /* a reset */
    assert_int_equal(syscall(SYS_getpeername, accepted, &peer.any, &size), -1);
    size = sizeof(peer);
    assert_int_equal(getpeername(accepted, &peer.any, &size), 0);
    assert_int_equal(size, sizeof(peer.in));
    assert_int_equal(peer.any.sa_family, AF_INET);
    assert_int_equal(peer.in.sin_port, 0);
    (void)close(accepted);
    (void)close(listener);
}

static bool is_listening(int fd)
{
    int value = 0;
    socklen_t size = sizeof(value);
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &size) == 0 && value == 1;
}

static void on_stage_a_listener_accepts_what_is_handed_in(void **state)
{
    (void)state;
    sockets_use_ports((struct port_range){ 0, 0 });
    sockets_stage_begin();
    assert_int_equal(sockets_stage_end(), -1);
    sockets_stage_begin();
    const int fd = bound(INADDR_LOOPBACK, 1); /* whosever port that is */
    assert_true(fd >= 0);
    assert_int_equal(listen(fd, 1), 0);
    const int end = sockets_stage_end();
    assert_true(end >= 0);
    assert_false(is_listening(fd));
    assert_int_equal(accept(fd, NULL, NULL), -1);
    assert_int_equal(errno, EAGAIN);

    const int listener = bound(INADDR_LOOPBACK, 0), dialled = stream_socket(AF_INET);
    assert_int_equal(listen(listener, 1), 0);
    assert_true(is_listening(listener));
    const union name name = name_of(INADDR_LOOPBACK, port_of(listener));
    assert_int_equal(connect(dialled, &name.any, sizeof(name.in)), 0);
    assert_int_equal(sockets_hand_in(end, dialled), ST_OK);
    (void)close(dialled);
    union name peer;
    socklen_t size = sizeof(peer);
    const int taken = accept(fd, &peer.any, &size);
    assert_true(taken >= 0);
    assert_int_equal(ntohs(peer.in.sin_port), port_of(listener));
    const int accepted = accept(listener, NULL, NULL);
    assert_int_equal(write(taken, "x", 1), 1);
    char byte = 0;
    assert_int_equal(read(accepted, &byte, 1), 1);
    assert_int_equal(byte, 'x');

    (void)close(end);
    assert_int_equal(accept(fd, NULL, NULL), -1); /* nobody hands in any more */
    assert_int_equal(errno, ECONNABORTED);
    const int all[] = { fd, listener, taken, accepted };
    for (size_t i = 0; i < 4; i++)
        (void)close(all[i]);
}

/* Connections of this process over TCP that have no such patience; *out_with: that have. */
static int impatient(int *out_with)
{
    int without = 0;
    for (int fd = 0; fd < FDS; fd++) {
        struct tcp_info info;
        socklen_t size = sizeof(info);
        if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
            info.tcpi_state != TCP_ESTABLISHED)
            continue;
        if (option_of(fd, IPPROTO_TCP, TCP_USER_TIMEOUT) == SOCKETS_SILENCE_MS) {
            ++*out_with;
        } else {
            without++;
        }
    }
    return without;
}

/* 0: all of its connections are watched. */
static int rank_of_gloo(struct shared_rendezvous *shared, int rank, int size)
{
    struct comm *comm = NULL;
    int with = 0;
    if (gloo_open_rank(shared, rank, size, 120000, &comm) != ST_OK)
        return 1;
    const int without = impatient(&with);
    comm_gloo()->close(comm);
    return without == 0 && with == size - 1 ? 0 : 2;
}

static void gloo_s_connections_are_all_watched(void **state)
{
    (void)state;
    enum { RANKS = 3 };
    struct shared_rendezvous *shared = shared_rendezvous_new();
    pid_t pids[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        pids[rank] = fork();
        assert_true(pids[rank] >= 0);
        if (pids[rank] == 0)
            _exit(rank_of_gloo(shared, rank, RANKS));
    }
    for (int rank = 0; rank < RANKS; rank++) {
        int how = -1;
        assert_int_equal(waitpid(pids[rank], &how, 0), pids[rank]);
        assert_int_equal(how, 0);
    }
    shared_rendezvous_free(shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_range_is_two_numbers),
        cmocka_unit_test(the_system_s_choice_becomes_one_of_the_range),
        cmocka_unit_test(other_sockets_are_left_alone),
        cmocka_unit_test(ipv6_has_the_same_range),
        cmocka_unit_test(those_who_come_together_don_t_collide),
        cmocka_unit_test(who_takes_no_lock_takes_a_port_at_most),
        cmocka_unit_test(connections_end_with_silence_and_free_their_port),
        cmocka_unit_test(a_peer_that_is_gone_has_the_address_zero),
        cmocka_unit_test(on_stage_a_listener_accepts_what_is_handed_in),
        cmocka_unit_test(gloo_s_connections_are_all_watched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
