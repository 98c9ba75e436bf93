/*
 * What a service tells systemd of itself (sd_notify(3)): a datagram to the socket that
 * NOTIFY_SOCKET names. Without that variable nothing is sent. That manual gives the protocol for
 * programs to implement; its library would bring three compressors into each of ours.
 *
 * Thread: any, once it is open.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#define NOTIFY_BYTES 256 /* of a message */

struct notify {
    int fd;           /* -1: nobody wants to know */
    int64_t every_ms; /* a sign of life is due every so often; 0: none is wanted */
    struct sockaddr_un address;
    socklen_t address_size;
};

/*
 * Takes NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID out of the environment, for they are nobody
 * else's. A socket that can't be one, or a watchdog of another process, counts as none. Signs of
 * life are due at half of WATCHDOG_USEC.
 * Thread: the first; before there are others.
 */
void notify_open(struct notify *notify);

/* Sends lines NAME=VALUE, separated by newlines. Waits a second at most, and only if `waits`; what
 * can't be sent then is lost. */
void notify_send(const struct notify *notify, bool waits, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
