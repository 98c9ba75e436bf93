/*
 * One loop over poll(), for all: nothing in it waits for one connection.
 *
 * Invariants
 *  1. A line is a connection that isn't proved yet. Lines that were dialled stand in dialled[rank],
 *     the others in guests[0, guest_count), the oldest first. fd is -1 in those that aren't open.
 *  2. out[rank] is set once the line to that rank is proved; the line is closed to us then. Of a
 *     rank that isn't wanted neither is ever set.
 *  3. Nothing is read beyond the proof: what follows is the library's.
 */
#include "comm/peers.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/sockets.h"
#include "common/clock.h"
#include "common/limits.h"
#include "identity/proof.h"

#define REDIAL_MS  50   /* between two tries of one that was broken off */
#define REFUSED_MS 1000 /* since the beginning: a rank that refuses until then is dialled again */
#define LOOK_MS    100  /* between two looks whether the generation is over */
#define TEXT       64   /* an address and its port */

union name {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};

struct line {
    int fd;
    int64_t since_ms;
    union name name; /* of the other side */
    bool connecting; /* the kernel hasn't said yet whether somebody is there */
    size_t sent;     /* of proof.out */
    struct identity_proof proof;
};

struct peers {
    struct peers_options options;
    struct identity_proof_key key;
    int listener;
    union name own;
    struct line *dialled; /* [rank] */
    struct line *guests;  /* [guest_max] */
    size_t guest_count, guest_max;
    struct pollfd *polled; /* the listener, dialled, guests */
    int *out;              /* [size], the caller's */
    int missing;           /* ranks */
    int64_t began_ms;      /* of peers_connect */
    unsigned strangers;
};

static int64_t now_ms(void)
{
    return clock_mono_ms(clock_system());
}

static bool is_wanted(const struct peers *peers, uint32_t rank)
{
    const struct peers_options *options = &peers->options;
    return rank < (uint32_t)options->size && rank != (uint32_t)options->rank &&
           (options->wanted == NULL || options->wanted[rank]);
}

/* True if the connection with that rank is still to come. */
static bool is_missing(const struct peers *peers, int rank)
{
    return is_wanted(peers, (uint32_t)rank) && peers->out[rank] < 0;
}

/* ---- addresses ---- */

static socklen_t size_of_name(const union name *name)
{
    return name->any.sa_family == AF_INET ? sizeof(name->in) : sizeof(name->in6);
}

static bool name_of_host(const char *host, union name *out)
{
    memset(out, 0, sizeof(*out));
    out->any.sa_family = AF_INET;
    if (host != NULL && inet_pton(AF_INET, host, &out->in.sin_addr) == 1)
        return true;
    out->any.sa_family = AF_INET6;
    return host != NULL && inet_pton(AF_INET6, host, &out->in6.sin6_addr) == 1;
}

/* The port lies at the same place in both. */
size_t peers_address(const struct peers *peers, uint8_t out[PEERS_ADDRESS_MAX])
{
    const union name *own = &peers->own;
    const size_t host = own->any.sa_family == AF_INET ? 4 : 16;
    memcpy(out, host == 4 ? (const void *)&own->in.sin_addr : &own->in6.sin6_addr, host);
    memcpy(out + host, &own->in.sin_port, 2);
    return host + 2;
}

static bool name_of_address(const struct rendezvous_got *got, union name *out)
{
    memset(out, 0, sizeof(*out));
    if (got->common_size != 6 && got->common_size != PEERS_ADDRESS_MAX)
        return false;
    const size_t host = got->common_size - 2;
    out->any.sa_family = host == 4 ? AF_INET : AF_INET6;
    memcpy(host == 4 ? (void *)&out->in.sin_addr : &out->in6.sin6_addr, got->common, host);
    memcpy(&out->in.sin_port, got->common + host, 2);
    return true;
}

static const char *text_of(const union name *name, char out[TEXT])
{
    char host[INET6_ADDRSTRLEN] = "?";
    const bool four = name->any.sa_family == AF_INET;
    (void)inet_ntop(name->any.sa_family,
                    four ? (const void *)&name->in.sin_addr : &name->in6.sin6_addr, host,
                    sizeof(host));
    (void)snprintf(out, TEXT, four ? "%s:%u" : "[%s]:%u", host, ntohs(name->in.sin_port));
    return out;
}

/* ---- strangers ---- */

static void tell_stranger(struct peers *peers, const struct line *line, const char *what)
{
    char at[TEXT];
    if (++peers->strangers <= PEERS_TOLD && peers->options.log != NULL) {
        LOG_WARN(peers->options.log,
                 "a stranger at %s came where workers find each other: %s, ignoring",
                 text_of(&line->name, at), what);
    }
}

static void tell_strangers(const struct peers *peers)
{
    if (peers->strangers > PEERS_TOLD && peers->options.log != NULL) {
        LOG_WARN(peers->options.log,
                 "%u more strangers came where workers find each other, ignoring",
                 peers->strangers - PEERS_TOLD);
    }
}

static const char *what_stranger(enum identity_proof_end end)
{
    switch (end) {
    case IDENTITY_PROOF_NOISE:
        return "it doesn't speak as a worker does";
    case IDENTITY_PROOF_UNKNOWN:
        return "its secret is that of another generation or job";
    case IDENTITY_PROOF_WRONG:
        return "it doesn't know this generation's secret";
    case IDENTITY_PROOF_GOES_ON:
    case IDENTITY_PROOF_DONE:
        break;
    }
    return "it is no rank of this communicator";
}

/* ---- one line ---- */

static void line_close(struct line *line)
{
    if (line->fd >= 0)
        (void)close(line->fd);
    line->fd = -1;
}

static void line_open(struct line *line, int fd)
{
    const int on = 1;
    line->fd = fd;
    line->sent = 0;
    line->since_ms = now_ms();
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static bool make_nonce(uint8_t out[IDENTITY_PROOF_NONCE])
{
    return getrandom(out, IDENTITY_PROOF_NONCE, 0) == IDENTITY_PROOF_NONCE;
}

enum moved {
    MOVED_ON,     /* nothing to say yet */
    MOVED_PROVED, /* and all is sent */
    MOVED_BROKEN, /* errno: how it ended, 0 where the other side ended it */
    MOVED_STRANGE,
};

static enum moved line_send(struct line *line)
{
    while (line->sent < line->proof.out_size) {
        const ssize_t n = send(line->fd, line->proof.out + line->sent,
                               line->proof.out_size - line->sent, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return MOVED_ON;
        if (n < 0)
            return MOVED_BROKEN;
        line->sent += (size_t)n;
    }
    line->proof.out_size = line->sent = 0;
    return MOVED_ON;
}

/* Advances the proof as far as it gets without waiting; *out_end: the outcome of the proof. */
static enum moved line_move(struct line *line, enum identity_proof_end *out_end)
{
    uint8_t bytes[IDENTITY_PROOF_BYTES];
    *out_end = IDENTITY_PROOF_GOES_ON;
    enum moved moved = line_send(line);
    while (moved == MOVED_ON && *out_end == IDENTITY_PROOF_GOES_ON && line->proof.out_size == 0) {
        const ssize_t n = recv(line->fd, bytes, identity_proof_wants(&line->proof), 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return MOVED_ON;
        if (n <= 0) {
            errno = n == 0 ? 0 : errno;
            return MOVED_BROKEN;
        }
        *out_end = identity_proof_take(&line->proof, bytes, (size_t)n);
        if (*out_end != IDENTITY_PROOF_GOES_ON && *out_end != IDENTITY_PROOF_DONE)
            return MOVED_STRANGE;
        moved = line_send(line);
    }
    if (moved != MOVED_ON || *out_end != IDENTITY_PROOF_DONE)
        return moved;
    return line->proof.out_size == 0 ? MOVED_PROVED : MOVED_BROKEN; /* a byte has always room */
}

/* Gives the connection to the caller. The last one counts: a rank that dials again has lost the
 * first. */
static void line_proved(struct peers *peers, struct line *line, int rank)
{
    if (peers->out[rank] >= 0) {
        (void)close(peers->out[rank]);
    } else {
        peers->missing--;
    }
    peers->out[rank] = line->fd;
    line->fd = -1;
}

/* ---- those who dial us ---- */

static void guest_drop(struct peers *peers, size_t i)
{
    line_close(&peers->guests[i]);
    peers->guest_count--;
    memmove(&peers->guests[i], &peers->guests[i + 1],
            (peers->guest_count - i) * sizeof(peers->guests[0]));
}

/* Whether one more may come in; if not, *out_ms is how long the oldest is to be left alone. */
static bool has_room(const struct peers *peers, int *out_ms)
{
    const int64_t age_ms = peers->guest_count == 0 ? 0 : now_ms() - peers->guests[0].since_ms;
    *out_ms = age_ms < PEERS_ROOM_MS ? (int)(PEERS_ROOM_MS - age_ms) : 0;
    return peers->guest_count < peers->guest_max || *out_ms == 0;
}

static void send_oldest_away(struct peers *peers)
{
    tell_stranger(peers, &peers->guests[0], "others came, and it had proved nothing");
    guest_drop(peers, 0);
}

/* Accepts one guest, if there is room; false: nobody waits, or has to. */
static bool guest_accept(struct peers *peers, enum status *st)
{
    int ms;
    if (!has_room(peers, &ms))
        return false;
    union name name;
    socklen_t size = sizeof(name);
    memset(&name, 0, sizeof(name));
    const int fd = accept(peers->listener, &name.any, &size);
    if (fd < 0) {
        const bool full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        if (full && peers->guest_count > 0) {
            send_oldest_away(peers);
            return true;
        }
        *st = full ? ST_NO_MEMORY : *st;
        return errno != EAGAIN && !full;
    }
    if (peers->guest_count == peers->guest_max)
        send_oldest_away(peers);
    uint8_t nonce[IDENTITY_PROOF_NONCE];
    struct line *line = &peers->guests[peers->guest_count];
    if (!make_nonce(nonce) || fcntl(fd, F_SETFL, O_NONBLOCK) != 0 ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
        (void)close(fd);
        *st = ST_IO;
        return false;
    }
    line_open(line, fd);
    line->name = name;
    identity_proof_listen(&line->proof, &peers->key, (uint32_t)peers->options.rank, nonce);
    peers->guest_count++;
    return true;
}

/* Accepts at most PEERS_STRANGERS guests at a time, so that those connected already are served. */
static enum status guests_accept(struct peers *peers)
{
    enum status st = ST_OK;
    for (int i = 0; i < PEERS_STRANGERS && guest_accept(peers, &st); i++) {
    }
    return st;
}

/* ready: what poll() said of it. */
static void guest_move(struct peers *peers, size_t i, bool ready)
{
    struct line *line = &peers->guests[i];
    enum identity_proof_end end = IDENTITY_PROOF_GOES_ON;
    switch (ready ? line_move(line, &end) : MOVED_ON) {
    case MOVED_ON:
        if (now_ms() - line->since_ms < PEERS_PROOF_MS)
            return;
        tell_stranger(peers, line, "it proved nothing in time");
        break;
    case MOVED_PROVED:
        if (line->proof.from <= (uint32_t)peers->options.rank ||
            !is_wanted(peers, line->proof.from)) {
            tell_stranger(peers, line, what_stranger(end));
            break;
        }
        line_proved(peers, line, (int)line->proof.from);
        break;
    case MOVED_BROKEN:
        tell_stranger(peers, line, "it went away");
        break;
    case MOVED_STRANGE:
        tell_stranger(peers, line, what_stranger(end));
        break;
    }
    guest_drop(peers, i);
}

/* ---- those whom we dial ---- */

static enum status fail_line(const struct peers *peers, int rank, const char *why)
{
    char at[TEXT];
    if (peers->options.log != NULL) {
        LOG_ERROR(peers->options.log, "no connection with rank %d at %s: %s", rank,
                  text_of(&peers->dialled[rank].name, at), why);
    }
    return ST_PEER;
}

static void dial_later(struct line *line)
{
    line_close(line);
    line->since_ms = now_ms();
}

/* The kernel says that nobody is there. Packets that are lost, or a queue that is full, look like
 * that as well: until the deadline, or, where it was refused, for a moment, it is dialled again. */
static enum status dial_failed(struct peers *peers, int rank, int error)
{
    const bool early = now_ms() - peers->began_ms < REFUSED_MS;
    if (error != ETIMEDOUT && !(error == ECONNREFUSED && early))
        return fail_line(peers, rank, strerror(error));
    dial_later(&peers->dialled[rank]);
    return ST_OK;
}

static enum status dial(struct peers *peers, int rank)
{
    struct line *line = &peers->dialled[rank];
    uint8_t nonce[IDENTITY_PROOF_NONCE];
    const int fd = socket(line->name.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return status_from_errno(errno);
    line_open(line, fd);
    sockets_set_patience(fd);
    if (!make_nonce(nonce))
        return ST_IO;
    identity_proof_dial(&line->proof, &peers->key, (uint32_t)peers->options.rank, (uint32_t)rank,
                        nonce);
    line->connecting = true;
    if (connect(fd, &line->name.any, size_of_name(&line->name)) != 0 && errno != EINPROGRESS)
        return dial_failed(peers, rank, errno);
    return ST_OK;
}

/* ready: what poll() said of it. */
static enum status dialled_move(struct peers *peers, int rank, bool ready)
{
    struct line *line = &peers->dialled[rank];
    if (!is_missing(peers, rank))
        return ST_OK;
    if (line->fd < 0)
        return now_ms() - line->since_ms < REDIAL_MS ? ST_OK : dial(peers, rank);
    if (!ready)
        return ST_OK;
    if (line->connecting) {
        int error = 0;
        socklen_t size = sizeof(error);
        if (getsockopt(line->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
            error = errno;
        if (error != 0)
            return dial_failed(peers, rank, error);
        line->connecting = false;
    }
    enum identity_proof_end end;
    switch (line_move(line, &end)) {
    case MOVED_ON:
        break;
    case MOVED_PROVED:
        line_proved(peers, line, rank);
        break;
    case MOVED_BROKEN: /* made room for others, or too slow for it */
        dial_later(line);
        break;
    case MOVED_STRANGE:
        return fail_line(peers, rank, "who answers there doesn't know this generation's secret");
    }
    return ST_OK;
}

/* ---- the loop ---- */

static struct pollfd poll_for(const struct line *line)
{
    const bool writes = line->connecting || line->sent < line->proof.out_size;
    return (struct pollfd){ .fd = line->fd, .events = writes ? POLLOUT : POLLIN };
}

/* A tick every LOOK_MS, or of the one that is to be dialled again. */
static enum status turn(struct peers *peers)
{
    const size_t below = (size_t)peers->options.rank;
    struct pollfd *polled = peers->polled;
    int wait_ms = LOOK_MS, ms = 0;
    polled[0] = (struct pollfd){ .fd = peers->listener, .events = POLLIN };
    if (!has_room(peers, &ms)) {
        polled[0].fd = -1;
        wait_ms = ms < wait_ms ? ms : wait_ms;
    }
    for (size_t r = 0; r < below; r++) {
        polled[1 + r] = poll_for(&peers->dialled[r]);
        if (peers->dialled[r].fd < 0 && is_missing(peers, (int)r) && wait_ms > REDIAL_MS)
            wait_ms = REDIAL_MS;
    }
    for (size_t i = 0; i < peers->guest_count; i++)
        polled[1 + below + i] = poll_for(&peers->guests[i]);
    if (poll(polled, 1 + below + peers->guest_count, wait_ms) < 0 && errno != EINTR)
        return status_from_errno(errno);
    enum status st = ST_OK;
    for (size_t r = 0; st == ST_OK && r < below; r++)
        st = dialled_move(peers, (int)r, polled[1 + r].revents != 0);
    for (size_t i = peers->guest_count; i > 0; i--) /* a guest that goes moves those behind it */
        guest_move(peers, i - 1, polled[below + i].revents != 0);
    if (st == ST_OK && (polled[0].revents & POLLIN) != 0)
        st = guests_accept(peers);
    return st;
}

static enum status fail_late(const struct peers *peers)
{
    int named = 0;
    for (int r = 0; r < peers->options.size && peers->options.log != NULL; r++) {
        if (!is_missing(peers, r) || named++ >= PEERS_TOLD)
            continue;
        if (r < peers->options.rank) {
            (void)fail_line(peers, r, "no answer in time");
        } else {
            LOG_ERROR(peers->options.log, "no connection with rank %d: it did not come in time", r);
        }
    }
    return ST_PEER;
}

static enum status connect_all(struct peers *peers, const struct rendezvous_got *got,
                               int64_t deadline_ms)
{
    const struct rendezvous *rendezvous = peers->options.rendezvous;
    enum status st = ST_OK;
    for (int r = 0; r < peers->options.rank && st == ST_OK; r++) {
        if (!is_wanted(peers, (uint32_t)r))
            continue;
        if (!name_of_address(&got[r], &peers->dialled[r].name) ||
            peers->dialled[r].name.any.sa_family != peers->own.any.sa_family)
            return fail_line(peers, r, "its address is of another kind than this rank's");
        st = dial(peers, r);
    }
    while (st == ST_OK && peers->missing > 0) {
        st = turn(peers);
        if (st == ST_OK && peers->missing > 0 && rendezvous->is_over(rendezvous->self)) {
            st = ST_STALE;
        } else if (st == ST_OK && peers->missing > 0 && now_ms() >= deadline_ms) {
            st = fail_late(peers);
        }
    }
    return st;
}

enum status peers_connect(struct peers *peers, const struct rendezvous_got *got,
                          int64_t deadline_ms, int *out)
{
    const int size = peers->options.size;
    peers->out = out;
    peers->missing = 0;
    for (int r = 0; r < size; r++) {
        out[r] = -1;
        peers->missing += is_wanted(peers, (uint32_t)r);
    }
    peers->began_ms = now_ms();
    const enum status st = connect_all(peers, got, deadline_ms);
    tell_strangers(peers);
    for (int r = 0; st != ST_OK && r < size; r++) {
        if (out[r] >= 0)
            (void)close(out[r]);
        out[r] = -1;
    }
    return st;
}

/* ---- open and close ---- */

static enum status start_listening(struct peers *peers)
{
    const int on = 1;
    socklen_t size = sizeof(peers->own);
    if (!name_of_host(peers->options.host, &peers->own))
        return ST_INVALID;
    peers->listener =
        socket(peers->own.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (peers->listener < 0 ||
        setsockopt(peers->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        bind(peers->listener, &peers->own.any, size_of_name(&peers->own)) != 0 ||
        listen(peers->listener, LIMIT_RANKS) != 0 ||
        getsockname(peers->listener, &peers->own.any, &size) != 0)
        return ST_IO;
    return ST_OK;
}

enum status peers_new(const struct peers_options *options, struct peers **out)
{
    const size_t ranks = (size_t)options->size;
    struct peers *peers = calloc(1, sizeof(*peers));
    if (peers == NULL)
        return ST_NO_MEMORY;
    peers->options = *options;
    peers->listener = -1;
    peers->guest_max = PEERS_STRANGERS + ranks;
    peers->dialled = calloc(ranks, sizeof(peers->dialled[0]));
    peers->guests = calloc(peers->guest_max, sizeof(peers->guests[0]));
    peers->polled = calloc(1 + ranks + peers->guest_max, sizeof(peers->polled[0]));
    for (size_t r = 0; peers->dialled != NULL && r < ranks; r++)
        peers->dialled[r].fd = -1;
    enum status st = ST_NO_MEMORY;
    if (peers->dialled != NULL && peers->guests != NULL && peers->polled != NULL)
        st = identity_proof_key_make(options->secret, options->purpose, &peers->key);
    if (st == ST_OK)
        st = start_listening(peers);
    if (st != ST_OK) {
        peers_free(peers);
        return st;
    }
    *out = peers;
    return ST_OK;
}

void peers_free(struct peers *peers)
{
    if (peers == NULL)
        return;
    for (int r = 0; peers->dialled != NULL && r < peers->options.size; r++)
        line_close(&peers->dialled[r]);
    for (size_t i = 0; peers->guests != NULL && i < peers->guest_count; i++)
        line_close(&peers->guests[i]);
    if (peers->listener >= 0)
        (void)close(peers->listener);
    explicit_bzero(&peers->key, sizeof(peers->key));
    free(peers->dialled);
    free(peers->guests);
    free(peers->polled);
    free(peers);
}
